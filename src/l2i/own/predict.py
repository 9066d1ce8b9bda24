"""Labels of new rows, by the model that a fit chose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from l2i.own.fitted import read_fit
from l2i.own.imputed import rounded
from l2i.own.inputs import inputs_of
from l2i.own.labels import free, label_columns
from l2i.own.network import encoded, load_network, outputs
from l2i.own.prepare import ImageInputs
from l2i.own.read_new import read_new

if TYPE_CHECKING:
    import pandas as pd


def predicted(folder: str, path: str, say: Callable[[str], object]) -> pd.DataFrame:
    """The id and label of each new row; for classes also the probability of each."""
    import pandas as pd

    fitted, _ = read_fit(folder)
    network, inputs = load_network(Path(folder), fitted), inputs_of(fitted.inputs)
    new = read_new(path, fitted.source, None if isinstance(inputs, ImageInputs) else inputs, say)
    for note in new.notes:
        say(note)
    found = outputs(network, fitted, encoded(fitted, new.inputs, Path(folder))).astype(np.float64)
    columns: dict[str, Any] = {"id": new.ids}
    if fitted.classes is None:
        return pd.DataFrame(columns | label_columns(fitted, rounded(found, fitted.target_std), None, new.sizes))
    probability = softmax(found / fitted.temperature, axis=1)
    columns |= label_columns(fitted, probability.argmax(axis=1), None, None)
    columns["confidence"] = probability.max(axis=1).round(6)
    for i, name in enumerate(fitted.classes):
        columns[free(f"p({name})", columns)] = probability[:, i].round(6)
    return pd.DataFrame(columns)
