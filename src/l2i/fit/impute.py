"""The label of every row, given or imputed, how sure it is, and where it is better to abstain.

MERGED:
Labels as a table: a row for each row of the input, written whole or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from l2i.errors import InputError
from l2i.files.atomic import write_atomic
from l2i.files.output import check_output_file, translate_write_errors
from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.readers.images import points_from_square

if TYPE_CHECKING:
    import pandas as pd

MIN_CONFIDENCE = 0.9  # the calibrated probability of a class under which to abstain
MAX_RELATIVE_STD = 1.0  # the calibrated spread above which to abstain, in spreads of the labelled targets: the mean does as well
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0  # between which a temperature is looked for
LOG_PRIOR_STD_BELOW, LOG_PRIOR_STD_ABOVE = 0.25, 1.0  # spreads of the prior of a temperature's logarithm, below and above 0: networks trained on
# their own labels are too sure of them, and few rows that are all right are no sign of the contrary
TARGET_DIGITS = 6  # of a target's spread, to which imputed targets are written: a network's outputs have no more


class Imputations(NamedTuple):
    """One entry a row of the input."""

    labels: NDArray[Any]  # [N] class numbers, or [N, D] targets; as given, where they were
    is_imputed: NDArray[np.bool_]  # [N], whether the label is imputed
    confidence: NDArray[np.float64]  # [N], classes: calibrated probability; regression: −spread in target spreads
    predictive_std: NDArray[np.float64] | None  # [N, D], regression: calibrated, in the targets' units
    abstain: NDArray[np.bool_]  # [N]


def impute(fitted: FitArtifact, rows: FitRows, threshold: float | None = None) -> Imputations:
    """Labels for all rows, at the threshold given or the usual one."""
    outputs = rows.outputs[fitted.selected_name].astype(np.float64)
    if fitted.classes is not None:
        return _impute_classes(outputs, rows, fitted.temperature, MIN_CONFIDENCE if threshold is None else threshold)
    assert rows.predictive_std is not None
    return _impute_targets(outputs, rows, fitted, MAX_RELATIVE_STD if threshold is None else threshold)


def _impute_classes(logits: NDArray[np.float64], rows: FitRows, temperature: float, threshold: float) -> Imputations:
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold={threshold} must be a probability, at least 0 and at most 1")
    probability = softmax(logits / temperature, axis=1)
    is_unlabeled = rows.given_labels < 0
    confidence = np.where(is_unlabeled, probability.max(axis=1), 1.0)
    labels = np.where(is_unlabeled, probability.argmax(axis=1), rows.given_labels)
    return Imputations(labels, is_unlabeled, confidence, None, is_unlabeled & (confidence < threshold))


def _impute_targets(values: NDArray[np.float64], rows: FitRows, fitted: FitArtifact, threshold: float) -> Imputations:
    if not threshold >= 0:  # not a number, too
        raise InputError(f"threshold={threshold} must be a spread, at least 0")
    assert rows.predictive_std is not None
    is_missing = np.isnan(rows.given_labels)
    is_unlabeled = is_missing.any(axis=1)
    predictive_std = np.where(is_missing, rows.predictive_std.astype(np.float64) * fitted.std_scale, 0.0)
    relative_std = (predictive_std / np.asarray(fitted.target_std)).max(axis=1)
    labels = np.where(is_missing, round_targets(values, fitted.target_std), rows.given_labels)
    return Imputations(labels, is_unlabeled, -relative_std, predictive_std, is_unlabeled & (relative_std > threshold))


def round_targets(values: NDArray[np.float64], std: Sequence[float]) -> NDArray[np.float64]:  # [N, D]
    """Targets to as many digits as count, seen from the spread of each."""
    decimals = [TARGET_DIGITS - 1 - math.floor(math.log10(target_std)) for target_std in std]
    columns = zip(values.T.tolist(), decimals, strict=True)
    return np.array([[round(value, ndigits) for value in column] for column, ndigits in columns]).T


def fit_temperature(logits: NDArray[Any], y: NDArray[np.int64]) -> float:
    """What to divide logits by such that probabilities are right on the validation rows; 1 where there are none.

    A prior around 1 keeps it from the extremes where few rows are all right or all wrong.
    """
    if not len(y):
        return 1.0

    def penalized_nll(log_t: float) -> float:
        log_probs = log_softmax(logits.astype(np.float64) / np.exp(log_t), axis=1)
        return float(-log_probs[np.arange(len(y)), y].sum() + 0.5 * (log_t / (LOG_PRIOR_STD_BELOW if log_t < 0 else LOG_PRIOR_STD_ABOVE)) ** 2)

    optimum = minimize_scalar(penalized_nll, bounds=(np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)), method="bounded")
    return float(np.exp(optimum.x))


def fit_std_scale(errors: NDArray[Any], predictive_std: NDArray[Any]) -> float:
    """What to multiply spreads by such that they are as large as errors on the validation rows; 1 without any.

    The root of the mean squared ratio, which is the most likely scale of Gaussian errors.
    """
    if not errors.size:
        return 1.0
    ratio = errors.astype(np.float64) / np.maximum(predictive_std.astype(np.float64), 1e-12 + 1e-3 * predictive_std.mean(axis=0))
    return float(max(np.sqrt(np.square(ratio).mean()), 1e-6))


TABLE_SUFFIXES = (".csv", ".parquet")
RESERVED_COLUMNS = ("id", "source", "confidence", "abstain", "changes")  # columns beside the labels
POINT_DECIMALS = 6  # of points in pixels, beyond which is rounding from one size of an image to another


def make_imputed_frame(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> pd.DataFrame:
    """The id of each row, its label, whether it was given or imputed, how sure it is, and how often it changed."""
    import pandas as pd

    columns: dict[str, Any] = {"id": rows.ids}
    columns |= make_label_columns(fitted, imputations.labels, imputations.predictive_std, rows.sizes)
    columns["source"] = np.where(imputations.is_imputed, "imputed", "given")
    if fitted.classes is not None:
        columns["confidence"] = imputations.confidence.round(6)
    columns["abstain"] = imputations.abstain
    columns["changes"] = np.where(imputations.is_imputed, rows.change_counts, 0)
    return pd.DataFrame(columns)


def make_label_columns(
    fitted: FitArtifact, labels: NDArray[Any], predictive_std: NDArray[Any] | None, sizes: NDArray[np.int64] | None
) -> dict[str, Any]:
    """Names of classes; or targets and their spreads, points in pixels of the images as they were given."""
    names = [f"{name}_label" if name in RESERVED_COLUMNS else name for name in fitted.targets]
    if fitted.classes is not None:
        return {names[0]: to_class_array(fitted.classes)[labels]}
    if fitted.has_landmarks and sizes is not None:
        side = fitted.shape[-1]
        labels = points_from_square(labels, sizes, side).round(POINT_DECIMALS)
        predictive_std = None if predictive_std is None else points_from_square(predictive_std, sizes, side).round(POINT_DECIMALS)
    elif predictive_std is not None:
        predictive_std = round_targets(predictive_std, fitted.target_std)
    columns: dict[str, Any] = dict(zip(names, labels.T, strict=True))
    if predictive_std is not None:
        for name, column in zip(names, predictive_std.T, strict=True):
            columns[make_unique_name(f"{name}_spread", columns)] = column
    return columns


def make_unique_name(name: str, existing_names: Iterable[str]) -> str:
    """A column's name; with an underscore more where another column, or a target, has it."""
    while name in existing_names or name in RESERVED_COLUMNS:
        name += "_"
    return name


def to_class_array(classes: tuple[str, ...]) -> NDArray[Any]:
    """Names of classes: whole numbers where all of them are."""
    all_integers = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in classes)
    all_integers = all_integers and all(abs(int(name)) < 2**63 for name in classes)
    return np.array([int(name) for name in classes] if all_integers else classes, dtype=np.int64 if all_integers else object)


def to_csv(frame: pd.DataFrame) -> str:
    """A header line, and a line a row."""
    return str(frame.to_csv(index=False))


def write_table(out: str, frame: pd.DataFrame) -> None:
    """Write a table as its name says; a file that is there already is replaced only by a whole one."""
    path = check_output_file(out, TABLE_SUFFIXES)
    content = to_csv(frame).encode() if path.suffix.lower() == ".csv" else frame.to_parquet(index=False)
    with translate_write_errors(out):
        write_atomic(path, content)
