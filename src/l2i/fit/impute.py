"""Impute labels: the label of every row, given or imputed, its confidence, and when to abstain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from l2i.errors import InputError
from l2i.fit.artifact import FitArtifact, FitRows, Floats, get_outputs
from l2i.fit.readers.images import points_from_square

if TYPE_CHECKING:
    import pandas as pd

MIN_CONFIDENCE = 0.9  # abstain below this calibrated probability of a class
MAX_RELATIVE_STD = 1.0  # abstain above this std, in stds of the labelled targets
TARGET_DIGITS = 6  # significant digits of imputed targets relative to their std, as in float32
POINT_DECIMALS = 6  # of points in pixels; more would be rounding errors of resizing
RESERVED_COLUMNS = ("id", "source", "confidence", "abstain", "changes", "foreign")


class Imputations(NamedTuple):
    """One entry per input row."""

    labels: NDArray[Any]  # [N] class numbers, or [N, D] targets; given labels are kept
    is_imputed: NDArray[np.bool_]  # [N]
    confidence: Floats  # [N], classes: calibrated probability; regression: −std / target std
    predictive_std: Floats | None  # [N, D], regression: calibrated, in the targets' units
    abstain: NDArray[np.bool_]  # [N]

    @property
    def num_usable(self) -> int:
        """Return how many imputed labels do not abstain."""
        return int((self.is_imputed & ~self.abstain).sum())

    @property
    def num_expected_wrong(self) -> float | None:
        """Return how many of those are wrong, if their confidences hold; None for targets."""
        if self.predictive_std is not None:
            return None
        return float((1 - self.confidence[self.is_imputed & ~self.abstain]).sum())


def impute(fitted: FitArtifact, rows: FitRows, threshold: float | None = None) -> Imputations:
    """Return labels for all rows, abstaining by `threshold` or the default one."""
    outputs = get_outputs(fitted, rows).astype(np.float64)
    if fitted.classes is None:
        threshold = MAX_RELATIVE_STD if threshold is None else threshold
        return _impute_targets(outputs, rows, fitted, threshold)
    threshold = MIN_CONFIDENCE if threshold is None else threshold
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold={threshold} must be a probability from 0 to 1")
    imputed = outputs.argmax(axis=1)
    probability = compute_probability(fitted, outputs)[np.arange(len(outputs)), imputed]
    is_unlabeled = rows.given_labels < 0
    confidence = np.where(is_unlabeled, probability, 1.0)
    labels = np.where(is_unlabeled, imputed, rows.given_labels)
    abstain = is_unlabeled & ((confidence < threshold) | _find_foreign(rows))
    return Imputations(labels, is_unlabeled, confidence, None, abstain)


def compute_probability(
    fitted: FitArtifact, outputs: Floats, temperature: float | None = None
) -> Floats:
    """Return the calibrated probability of each class, [N, C], by logits.

    Where classes counted the same in fitting, it is that at their shares among the labelled rows;
    the label is then the class of the largest logit, and not always the most probable one.
    """
    logits = outputs / (fitted.temperature if temperature is None else temperature)
    if fitted.class_shares:
        logits = logits + np.log(fitted.class_shares)
    return np.asarray(softmax(logits, axis=1))


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
    abstain = is_unlabeled & ((relative_std > threshold) | _find_foreign(rows))
    return Imputations(labels, is_unlabeled, -relative_std, predictive_std, abstain)


def _find_foreign(rows: FitRows) -> NDArray[np.bool_]:
    """Return which rows are like none of the labelled ones: no confidence holds for them."""
    return np.zeros(len(rows.ids), dtype=bool) if rows.is_foreign is None else rows.is_foreign


def round_targets(values: Floats, std: Sequence[float]) -> Floats:  # [N, D]
    """Round targets to the digits that are significant relative to their std."""
    decimals = [TARGET_DIGITS - 1 - math.floor(math.log10(target_std)) for target_std in std]
    columns = zip(values.T.tolist(), decimals, strict=True)
    return np.array([[round(value, ndigits) for value in column] for column, ndigits in columns]).T


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
    if fitted.num_snapshots:
        columns["changes"] = np.where(is_imputed, rows.change_counts, 0)
    if rows.is_foreign is not None:
        columns["foreign"] = rows.is_foreign
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
        side = fitted.inputs.get("side") or fitted.shape[-1]
        labels = points_from_square(labels, sizes, side).round(POINT_DECIMALS)
        if predictive_std is not None:
            predictive_std = points_from_square(predictive_std, sizes, side).round(POINT_DECIMALS)
    elif predictive_std is not None:
        predictive_std = round_targets(predictive_std, fitted.target_std)
    columns: dict[str, Any] = dict(zip(names, labels.T, strict=True))
    if predictive_std is not None:
        for name, column in zip(names, predictive_std.T, strict=True):
            columns[make_unique_name(f"{name}_spread", columns)] = column
        columns |= _make_interval_columns(fitted, names, labels, predictive_std, columns)
    return columns


def _make_interval_columns(
    fitted: FitArtifact,
    names: list[str],
    labels: NDArray[Any],
    predictive_std: NDArray[Any],
    columns: dict[str, Any],
) -> dict[str, Any]:
    """Return the ends of the intervals that cover 90 % of new targets, if they are known."""
    added: dict[str, Any] = {}
    for d, factor in enumerate(fitted.interval_factors):
        for sign, end in ((-1, "low"), (1, "high")):
            name = make_unique_name(f"{names[d]}_{end}", {**columns, **added})
            values = (labels[:, d] + sign * factor * predictive_std[:, d])[:, None]
            added[name] = round_targets(values, [fitted.target_std[d]])[:, 0]
    return added


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
