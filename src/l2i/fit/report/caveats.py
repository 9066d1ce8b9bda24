"""Warnings to the reader of a report: each a finding and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.formatting import format_percent, pluralize
from l2i.fit.impute import MAX_TEMPERATURE, MIN_TEMPERATURE, Imputations
from l2i.fit.report.comparison import estimate_metrics, mask_known_labels
from l2i.fit.report.confidence import compute_confidence

MAX_SHIFT_AUC = 0.7  # ROC AUC
MAX_CLASS_RATIO = 3.0  # largest class / smallest
MAX_LABEL_SHIFT = 0.2  # total variation between labelled and imputed shares
MAX_CLASS_SHARE = 0.95  # of imputed labels in one class
MIN_MASK_RATE = 0.1  # share of unlabelled rows that pass the mask
MIN_VALIDATION_ROWS = 30
SCALE_BOUND_MARGIN = 1.05  # factor from a bound
MIN_ROWS_FOR_CONFIDENCE = 20
MAX_OVERCONFIDENCE = 0.05  # mean confidence minus accuracy
MIN_GAP_STANDARD_ERRORS = 2.0  # of that difference
Counts = NDArray[np.int64]


class Caveat(NamedTuple):
    """A finding, and what to do about it."""

    finding: str
    advice: str


def find_caveats(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> list[Caveat]:
    """Return all caveats that apply."""
    caveats = [
        _check_covariate_shift(fitted),
        _check_validation(fitted, rows),
        _check_mask_rate(fitted),
        _check_scale(fitted),
    ]
    if fitted.classes is not None:
        names, is_labeled = fitted.classes, mask_known_labels(fitted, rows, "labeled")
        given, imputed = (
            np.bincount(labels.astype(np.int64), minlength=len(names))  # rows per class, [C]
            for labels in (
                rows.given_labels[is_labeled],
                imputations.labels[imputations.is_imputed],
            )
        )
        caveats += [
            _check_overconfidence(fitted, rows),
            _check_class_balance(names, given),
            _check_collapse(names, given, imputed) or _check_label_shift(names, given, imputed),
        ]
    return [caveat for caveat in caveats if caveat is not None]


def _check_covariate_shift(fitted: FitArtifact) -> Caveat | None:
    if fitted.covariate_shift_auc is None or not fitted.covariate_shift_auc > MAX_SHIFT_AUC:
        return None
    return Caveat(
        f"The unlabelled rows are unlike the labelled: the two can be told apart (area under the "
        f"ROC curve {fitted.covariate_shift_auc:.2f}, 0.5 for alike).",
        "Label some of the unlabelled rows, drawn at random, or leave out those that come from "
        "elsewhere.",
    )


def _check_class_balance(names: tuple[str, ...], given: Counts) -> Caveat | None:
    largest, smallest = int(given.argmax()), int(given.argmin())
    if given[largest] <= MAX_CLASS_RATIO * given[smallest]:
        return None
    return Caveat(
        f"The labelled rows are uneven: {pluralize(int(given[largest]), 'row')} of class "
        f"{names[largest]}, {given[smallest]:,} of class {names[smallest]}.",
        "Label more rows of the rare classes, and look at their rows of the confusion matrix "
        "rather than at the total.",
    )


def _check_collapse(names: tuple[str, ...], given: Counts, imputed: Counts) -> Caveat | None:
    if imputed.max() <= MAX_CLASS_SHARE * imputed.sum() or (given > 0).sum() < 2:
        return None
    top = int(imputed.argmax())
    return Caveat(
        f"The imputation has collapsed: {format_percent(imputed[top] / imputed.sum())} of the "
        f"imputed labels are class {names[top]}, though the labelled rows have others.",
        "Do not use these labels; label more rows of the other classes, or train longer at a lower "
        "learning rate.",
    )


def _check_label_shift(names: tuple[str, ...], given: Counts, imputed: Counts) -> Caveat | None:
    if not given.sum() or not imputed.sum():
        return None
    imputed_shares, given_shares = imputed / imputed.sum(), given / given.sum()
    # about what chance does with so few labels
    noise = np.sqrt(given_shares * (1 - given_shares) / given.sum()).sum() / 2
    gaps = np.abs(imputed_shares - given_shares)
    if gaps.sum() / 2 <= max(MAX_LABEL_SHIFT, 2 * noise):
        return None
    i = int(gaps.argmax())
    return Caveat(
        f"The imputed labels are spread unlike the labelled rows: class {names[i]} is "
        f"{format_percent(imputed_shares[i])} of them, and {format_percent(given_shares[i])} of "
        "the labelled rows.",
        "That is as it should be where rows were chosen by class for labelling; otherwise check "
        "some of its rows.",
    )


def _check_mask_rate(fitted: FitArtifact) -> Caveat | None:
    if fitted.mask_rate is None or not fitted.mask_rate < MIN_MASK_RATE:
        return None
    return Caveat(
        f"Only {format_percent(fitted.mask_rate)} of the unlabelled rows were confident enough to "
        "count at the end.",
        "Lower the method's threshold (method.threshold), train longer, or label more rows.",
    )


def _check_validation(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    metrics = estimate_metrics(fitted, rows, "validation")
    num_rows = int(mask_known_labels(fitted, rows, "validation").sum())
    count = pluralize(num_rows, "validation row")
    advice = "Keep more labelled rows for validation, or label more."
    if num_rows < MIN_VALIDATION_ROWS:
        return Caveat(f"The choice rests on {count}, too few to tell candidates apart.", advice)
    best = metrics.pop(fitted.selected_name, None)
    if best is None or not metrics:
        return None
    if best.standard_error <= min(other.value for other in metrics.values()) - best.value:
        return None
    return Caveat(
        f"The {count} cannot tell the best candidates apart: they differ by less than the "
        "standard error of the chosen one's metric.",
        advice,
    )


def _check_overconfidence(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    mask = mask_known_labels(fitted, rows, "validation", "test")
    count = int(mask.sum())
    if count < MIN_ROWS_FOR_CONFIDENCE:
        return None
    confidence, is_correct = compute_confidence(fitted, rows, mask, fitted.temperature)
    gap = confidence - is_correct
    noise = gap.std(ddof=1) / np.sqrt(count)
    if gap.mean() <= max(MAX_OVERCONFIDENCE, MIN_GAP_STANDARD_ERRORS * noise):
        return None
    shares = [format_percent(float(values.mean())) for values in (is_correct, confidence)]
    return Caveat(
        f"Labels are less often right than their confidence says: on {count:,} validation and test "
        f"rows, {shares[0]} are right, at a mean confidence of {shares[1]}.",
        "Raise the probability under which to abstain ('l2i impute --threshold'), or label more "
        "rows.",
    )


def _check_scale(fitted: FitArtifact) -> Caveat | None:
    is_regression = fitted.classes is None
    scale = fitted.std_scale if is_regression else fitted.temperature
    if MIN_TEMPERATURE * SCALE_BOUND_MARGIN < scale < MAX_TEMPERATURE / SCALE_BOUND_MARGIN:
        return None
    scale_name = "scale of the spreads" if is_regression else "temperature"
    return Caveat(
        f"The {scale_name} that calibrates the labels is {scale:.3g}, at the edge of what is "
        "looked for.",
        "Do not rely on the confidences; keep more labelled rows for validation.",
    )
