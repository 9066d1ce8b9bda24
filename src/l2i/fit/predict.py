"""Predict the labels of new rows with the model that a fit selected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from l2i.candidates.distance import LabeledDistance
from l2i.candidates.error_scale import ErrorScale
from l2i.files.output import ProgressCallback
from l2i.fit.artifact import FitArtifact, Floats
from l2i.fit.impute import compute_probability, make_label_columns, make_unique_name, round_targets
from l2i.fit.modules import encode_inputs, load_network, load_table_model, predict_outputs
from l2i.fit.preprocess import load_preprocessor
from l2i.fit.readers.new_rows import read_new

if TYPE_CHECKING:
    import pandas as pd


def predict_table(
    folder: str, fitted: FitArtifact, path: str, notify: ProgressCallback
) -> pd.DataFrame:
    """Return the id and label of each new row, and for classes all probabilities."""
    import pandas as pd

    inputs = load_preprocessor(fitted.inputs)
    distance: LabeledDistance | None = None
    if fitted.model is None:
        network = load_network(Path(folder), fitted)
    else:
        network, distance = load_table_model(Path(folder), fitted)
    new_rows = read_new(path, fitted.source, inputs, notify)
    for note in new_rows.notes:
        notify(note)
    encoded = encode_inputs(fitted, new_rows.inputs, Path(folder))
    outputs = predict_outputs(network, fitted, encoded).astype(np.float64)
    relative = None if distance is None else distance.measure(encoded.numpy())
    columns: dict[str, Any] = {"id": new_rows.ids}
    if fitted.classes is None:
        targets, std = round_targets(outputs, fitted.target_std), None
        if relative is not None:
            levels = (outputs - np.asarray(fitted.target_mean)) / np.asarray(fitted.target_std)
            std = get_error_scale(fitted).compute_stds(relative, levels)
        columns |= make_label_columns(fitted, targets, std, new_rows.sizes)
    else:
        columns |= _make_class_columns(fitted, outputs)
    if relative is not None and fitted.foreign_limit is not None:
        columns["foreign"] = relative > fitted.foreign_limit
    return pd.DataFrame(columns)


def get_error_scale(fitted: FitArtifact) -> ErrorScale:
    """Return how large the errors of a table's targets are."""
    return ErrorScale(
        std=fitted.error_std,
        slopes=fitted.std_slopes,
        by_distance=fitted.std_by_distance,
        factors=fitted.interval_factors,
    )


def _make_class_columns(fitted: FitArtifact, outputs: Floats) -> dict[str, Any]:
    """Return the class, its confidence and all probabilities."""
    assert fitted.classes is not None
    probability, labels = compute_probability(fitted, outputs), outputs.argmax(axis=1)
    columns = make_label_columns(fitted, labels, None, None)
    columns["confidence"] = probability[np.arange(len(labels)), labels].round(6)
    for i, name in enumerate(fitted.classes):
        columns[make_unique_name(f"p({name})", {**columns, "id": ()})] = probability[:, i].round(6)
    return columns
