"""Predict the labels of new rows with the model that a fit selected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from l2i.files.output import ProgressCallback
from l2i.fit.artifact import FitArtifact
from l2i.fit.impute import make_label_columns, make_unique_name, round_targets
from l2i.fit.modules import encode_inputs, load_network, predict_outputs
from l2i.fit.preprocess import ImagePreprocessor, load_preprocessor
from l2i.fit.readers.source import read_new

if TYPE_CHECKING:
    import pandas as pd


def predict_table(
    folder: str, fitted: FitArtifact, path: str, notify: ProgressCallback
) -> pd.DataFrame:
    """Return the id and label of each new row, and for classes all probabilities."""
    import pandas as pd

    network, inputs = load_network(Path(folder), fitted), load_preprocessor(fitted.inputs)
    table_inputs = None if isinstance(inputs, ImagePreprocessor) else inputs
    new_rows = read_new(path, fitted.source, table_inputs, notify)
    for note in new_rows.notes:
        notify(note)
    encoded = encode_inputs(fitted, new_rows.inputs, Path(folder))
    outputs = predict_outputs(network, fitted, encoded).astype(np.float64)
    columns: dict[str, Any] = {"id": new_rows.ids}
    if fitted.classes is None:
        targets = round_targets(outputs, fitted.target_std)
        return pd.DataFrame(columns | make_label_columns(fitted, targets, None, new_rows.sizes))
    probability = softmax(outputs / fitted.temperature, axis=1)
    columns |= make_label_columns(fitted, probability.argmax(axis=1), None, None)
    columns["confidence"] = probability.max(axis=1).round(6)
    for i, name in enumerate(fitted.classes):
        columns[make_unique_name(f"p({name})", columns)] = probability[:, i].round(6)
    return pd.DataFrame(columns)
