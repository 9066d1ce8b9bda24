"""The metric of a table's models: the error, its mean over classes, or the RMSE."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.split import PreparedData
from l2i.tasks import Classification

BALANCED_NAME = "balanced error (%)"
BALANCED_DESCRIPTION = "percentage of misclassified samples, in the mean over the classes"


class TableMetric(NamedTuple):
    """A metric, and how it is called."""

    name: str
    description: str
    unit: NDArray[np.float64] | None
    """[D], by which errors of targets are divided; None for classes."""
    is_balanced: bool = False

    def compute(self, outputs: NDArray[Any], truth: NDArray[Any]) -> float:
        """Return the metric of logits [N, C] or targets [N, D]; lower is better."""
        if self.unit is not None:
            return float(np.sqrt(np.square((outputs - truth) / self.unit).mean()))
        # in float32, as outputs are saved: of nearly equal classes the same one is the largest
        errors = (outputs.astype(np.float32).argmax(axis=1) != truth).astype(np.float64)
        if self.is_balanced:
            errors *= weigh_classes(truth)
        return float(100 * errors.mean())


def weigh_classes(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights of mean 1 by which every class among the labels counts the same, [N]."""
    _, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray((len(labels) / (len(counts) * counts))[index])


def choose_metric(data: PreparedData, *, is_balanced: bool) -> TableMetric:
    """Return the metric for a table; errors of several targets are relative to their stds."""
    if data.splits.classes is not None:
        if is_balanced:
            return TableMetric(BALANCED_NAME, BALANCED_DESCRIPTION, None, is_balanced=True)
        return TableMetric(Classification.metric_name, Classification.metric_description, None)
    labels = data.source.given_labels[data.split_names == "labeled"]
    unit, text = np.ones(labels.shape[1]), "the target's units"
    if labels.shape[1] > 1:
        std = labels.std(axis=0)
        unit = np.where(std > 0, std, 1.0)
        text = "standard deviations of the labelled targets"
    return TableMetric("RMSE", f"root mean squared error, in {text}", unit)
