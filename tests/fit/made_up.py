"""Sources, prepared data and trained candidates, made up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from l2i.config import Run
from l2i.fit.artifact import Candidate
from l2i.fit.candidates import TrainedCandidate
from l2i.fit.preprocess import TablePreprocessor, fit_column
from l2i.fit.readers.source import Source
from l2i.fit.split import PreparedData, assemble_data


def source_of(inputs: pd.DataFrame | NDArray[Any], given: NDArray[Any], **changes: Any) -> Source:
    """Rows named r0, r1, …; labels are classes if they have one dimension."""
    is_frame = isinstance(inputs, pd.DataFrame)
    kinds = {str(name): "number" for name in inputs.columns} if is_frame else {}
    classes = ("no", "yes", "maybe")[: max(2, given.max() + 1)] if given.ndim == 1 else None
    num_targets = 1 if given.ndim == 1 else given.shape[1]
    plain: dict[str, Any] = {
        "ids": [f"r{i}" for i in range(len(given))],
        "inputs": inputs,
        "notes": (),
        "kinds": kinds,
        "given_labels": given,
        "classes": classes,
        "target_names": tuple(f"t{i}" for i in range(num_targets)),
        "points": False,
        "options": {"layout": "table"},
    }
    return Source(**{**plain, **changes})


def data_of(given: NDArray[Any], split_names: NDArray[np.str_], **changes: Any) -> PreparedData:
    """Rows of one number, which is the row's number, in these splits."""
    frame = pd.DataFrame({"n": np.arange(len(given), dtype=np.float64)})
    source = source_of(frame, given, **changes)
    table = TablePreprocessor(columns=(fit_column(frame["n"], "number"),))
    return assemble_data(source, table, split_names, torch.from_numpy(table(frame)), Run())


def trained_as(name: str, outputs: NDArray[Any], **changes: Any) -> TrainedCandidate:
    """A candidate that predicts these outputs for all rows."""
    candidate = Candidate(
        name=name,
        title=name,
        validation_metric=1.0,
        validation_cost=1.0,
        test_metric=1.0,
        steps=5,
        seconds=1.0,
    )
    plain: dict[str, Any] = {
        "candidate": candidate,
        "outputs": outputs,
        "snapshots": outputs.argmax(axis=1)[None],
        "predictive_std": None,
        "mean": (),
        "std": (),
        "threshold": None,
        "shape": (1,),
        "metric_name": "error (%)",
        "metric_description": "percentage of misclassified samples",
    }
    return TrainedCandidate(**{**plain, **changes})


def logits_of(classes: NDArray[np.int64], confidence: NDArray[Any] | float) -> NDArray[np.float32]:
    """Logits of two classes: these ones, with that probability."""
    confidence = np.broadcast_to(confidence, classes.shape)
    margin = np.log(confidence / (1 - confidence))
    return np.where(classes[:, None] == np.arange(2), margin[:, None], 0.0).astype(np.float32)
