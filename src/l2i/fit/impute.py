"""Impute labels: the label of every row, given or imputed, its confidence, and when to abstain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from l2i.errors import InputError
from l2i.fit.artifact import FitArtifact, FitRows, Floats
from l2i.fit.readers.images import points_from_square

if TYPE_CHECKING:
    import pandas as pd

MIN_CONFIDENCE = 0.9  # abstain below this calibrated probability of a class
MAX_RELATIVE_STD = 1.0  # abstain above this std, in stds of the labelled targets
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
# Std of the prior on the log temperature, below and above 0: networks trained on their own
# labels are overconfident, and a few rows that are all correct are no evidence to the contrary.
LOG_PRIOR_STD_BELOW, LOG_PRIOR_STD_ABOVE = 0.25, 1.0
TARGET_DIGITS = 6  # significant digits of imputed targets relative to their std, as in float32
POINT_DECIMALS = 6  # of points in pixels; more would be rounding errors of resizing
RESERVED_COLUMNS = ("id", "source", "confidence", "abstain", "changes")


class Imputations(NamedTuple):
    """One entry per input row."""

    labels: NDArray[Any]  # [N] class numbers, or [N, D] targets; given labels are kept
    is_imputed: NDArray[np.bool_]  # [N]
    confidence: Floats  # [N], classes: calibrated probability; regression: −std / target std
    predictive_std: Floats | None  # [N, D], regression: calibrated, in the targets' units
    abstain: NDArray[np.bool_]  # [N]


def impute(fitted: FitArtifact, rows: FitRows, threshold: float | None = None) -> Imputations:
    """Return labels for all rows, abstaining by `threshold` or the default one."""
    outputs = rows.outputs[fitted.selected_name].astype(np.float64)
    if fitted.classes is None:
        threshold = MAX_RELATIVE_STD if threshold is None else threshold
        return _impute_targets(outputs, rows, fitted, threshold)
    threshold = MIN_CONFIDENCE if threshold is None else threshold
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold={threshold} must be a probability from 0 to 1")
    probability = softmax(outputs / fitted.temperature, axis=1)
    is_unlabeled = rows.given_labels < 0
    confidence = np.where(is_unlabeled, probability.max(axis=1), 1.0)
    labels = np.where(is_unlabeled, probability.argmax(axis=1), rows.given_labels)
    abstain = is_unlabeled & (confidence < threshold)
    return Imputations(labels, is_unlabeled, confidence, None, abstain)


def _impute_targets(
    values: Floats, rows: FitRows, fitted: FitArtifact, threshold: float
) -> Imputations:
    if not threshold >= 0:  # also NaN
        raise InputError(f"threshold={threshold} must be a standard deviation of 0 or more")
    assert rows.predictive_std is not None
    is_missing = np.isnan(rows.given_labels)
    is_unlabeled = is_missing.any(axis=1)
    calibrated_std = rows.predictive_std.astype(np.float64) * fitted.std_scale
    predictive_std = np.where(is_missing, calibrated_std, 0.0)
    relative_std = (predictive_std / np.asarray(fitted.target_std)).max(axis=1)
    labels = np.where(is_missing, round_targets(values, fitted.target_std), rows.given_labels)
    abstain = is_unlabeled & (relative_std > threshold)
    return Imputations(labels, is_unlabeled, -relative_std, predictive_std, abstain)


def round_targets(values: Floats, std: Sequence[float]) -> Floats:  # [N, D]
    """Round targets to the digits that are significant relative to their std."""
    decimals = [TARGET_DIGITS - 1 - math.floor(math.log10(target_std)) for target_std in std]
    columns = zip(values.T.tolist(), decimals, strict=True)
    return np.array([[round(value, ndigits) for value in column] for column, ndigits in columns]).T


def fit_temperature(logits: NDArray[Any], y: NDArray[np.int64]) -> float:
    """Fit the divisor of the logits that calibrates them on validation rows; 1 without any.

    A prior around 1 avoids extremes if there are few rows, all of them correct or all wrong.
    """
    if not len(y):
        return 1.0

    def penalized_nll(log_t: float) -> float:
        log_probs = log_softmax(logits.astype(np.float64) / np.exp(log_t), axis=1)
        prior_std = LOG_PRIOR_STD_BELOW if log_t < 0 else LOG_PRIOR_STD_ABOVE
        return float(-log_probs[np.arange(len(y)), y].sum() + 0.5 * (log_t / prior_std) ** 2)

    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    return float(np.exp(minimize_scalar(penalized_nll, bounds=bounds, method="bounded").x))


def fit_std_scale(errors: NDArray[Any], predictive_std: NDArray[Any]) -> float:
    """Fit the factor that makes stds as large as errors on validation rows; 1 without any.

    The root mean squared ratio is the most likely scale of Gaussian errors.
    """
    if not errors.size:
        return 1.0
    errors, predictive_std = errors.astype(np.float64), predictive_std.astype(np.float64)
    floor = 1e-3 * predictive_std.mean(axis=0) + 1e-12 * np.abs(errors).max(axis=0)
    bounded_std = np.maximum(predictive_std, floor)
    ratio = errors / np.where(bounded_std > 0, bounded_std, 1.0)
    return float(max(np.sqrt(np.square(ratio).mean()), 1e-6))


def make_imputed_frame(
    fitted: FitArtifact, rows: FitRows, imputations: Imputations
) -> pd.DataFrame:
    """Return the table that `l2i impute` writes, one row per input row."""
    import pandas as pd

    labels, is_imputed, confidence, predictive_std, abstain = imputations
    columns = {"id": rows.ids} | make_label_columns(fitted, labels, predictive_std, rows.sizes)
    columns["source"] = np.where(is_imputed, "imputed", "given")
    if fitted.classes is not None:
        columns["confidence"] = confidence.round(6)
    columns["abstain"] = abstain
    columns["changes"] = np.where(is_imputed, rows.change_counts, 0)
    return pd.DataFrame(columns)


def make_label_columns(
    fitted: FitArtifact,
    labels: NDArray[Any],
    predictive_std: NDArray[Any] | None,
    sizes: NDArray[np.int64] | None,
) -> dict[str, Any]:
    """Return class names; or targets and their stds, with points in pixels of the originals."""
    names = [f"{name}_label" if name in RESERVED_COLUMNS else name for name in fitted.targets]
    if fitted.classes is not None:
        return {names[0]: to_class_array(fitted.classes)[labels]}
    if fitted.has_landmarks and sizes is not None:
        side = fitted.shape[-1]
        labels = points_from_square(labels, sizes, side).round(POINT_DECIMALS)
        if predictive_std is not None:
            predictive_std = points_from_square(predictive_std, sizes, side).round(POINT_DECIMALS)
    elif predictive_std is not None:
        predictive_std = round_targets(predictive_std, fitted.target_std)
    columns: dict[str, Any] = dict(zip(names, labels.T, strict=True))
    if predictive_std is not None:
        for name, column in zip(names, predictive_std.T, strict=True):
            columns[make_unique_name(f"{name}_spread", columns)] = column
    return columns


def make_unique_name(name: str, existing_names: Iterable[str]) -> str:
    """Append underscores to a column's name until no other column or target has it."""
    while name in existing_names or name in RESERVED_COLUMNS:
        name += "_"
    return name


def to_class_array(classes: tuple[str, ...]) -> NDArray[Any]:
    """Return the names of the classes, as integers if all of them are."""
    is_integer = [name.removeprefix("-").isdecimal() and str(int(name)) == name for name in classes]
    if all(is_integer) and all(abs(int(name)) < 2**63 for name in classes):
        return np.array([int(name) for name in classes], dtype=np.int64)
    return np.array(classes, dtype=object)
