"""Warnings to the reader of a report: each a finding and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.candidates.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE
from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.formatting import format_percent, pluralize
from l2i.fit.impute import Imputations
from l2i.fit.report.comparison import (
    compute_standard_error,
    describe_heldout,
    estimate_metrics,
    get_groups,
    mask_known_labels,
)
from l2i.fit.report.confidence import compute_confidence
from l2i.fit.report.verdict import CONSTANT_NAMES, MAX_CLASS_RATIO, MAX_SHIFT_AUC, find_doubt

MAX_LABEL_SHIFT = 0.2  # total variation between labelled and imputed shares
MAX_CLASS_SHARE = 0.95  # of imputed labels in one class
MIN_OTHERS_RATIO = 0.25  # of the other classes, relative to their share among labelled rows
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
        _check_usefulness(fitted, rows),
        _check_foreign(rows),
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
            _check_class_balance(fitted, given),
            _check_collapse(fitted, given, imputed) or _check_label_shift(names, given, imputed),
        ]
    return [caveat for caveat in caveats if caveat is not None]


def _check_usefulness(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    """Check that the model of a table is better than one that ignores the inputs."""
    doubt = find_doubt(fitted, rows)
    if doubt is None:
        return None
    return Caveat(f"{doubt}.", "Do not use these labels; label more rows.")


def _check_foreign(rows: FitRows) -> Caveat | None:
    if rows.is_foreign is None or not rows.is_foreign.any():
        return None
    count = int(rows.is_foreign.sum())
    text = pluralize(count, "unlabelled row is", "unlabelled rows are")
    what = "its label is a guess" if count == 1 else "their labels are guesses"
    return Caveat(
        f"{text} like none of the labelled ones; {what}.",
        "Look at column 'foreign' of the labels; label such rows, or remove them.",
    )


def _check_covariate_shift(fitted: FitArtifact) -> Caveat | None:
    if fitted.covariate_shift_auc is None or not fitted.covariate_shift_auc > MAX_SHIFT_AUC:
        return None
    return Caveat(
        "The unlabelled rows are distributed differently from the labelled ones: a classifier "
        f"separates them with a ROC AUC of {fitted.covariate_shift_auc:.2f} (0.5 is chance).",
        "Label a random sample of the unlabelled rows, or remove those from a different source.",
    )


def _check_class_balance(fitted: FitArtifact, given: Counts) -> Caveat | None:
    largest, smallest = int(given.argmax()), int(given.argmin())
    if given[largest] <= MAX_CLASS_RATIO * given[smallest] or fitted.is_balanced:
        return None
    names = fitted.classes or ()
    balance = "" if fitted.model is None else ", or let every class count the same (--balance)"
    return Caveat(
        f"The labelled rows are imbalanced: {pluralize(int(given[largest]), 'row')} of class "
        f"{names[largest]}, {given[smallest]:,} of class {names[smallest]}.",
        f"Label more rows of the rare classes{balance}; check the errors of each class in the "
        "confusion matrix, not only the total.",
    )


def _check_collapse(fitted: FitArtifact, given: Counts, imputed: Counts) -> Caveat | None:
    names, is_guess = fitted.classes or (), fitted.selected_name in CONSTANT_NAMES
    if is_guess or imputed.max() <= MAX_CLASS_SHARE * imputed.sum() or (given > 0).sum() < 2:
        return None
    top = int(imputed.argmax())
    others = 1 - given[top] / given.sum()  # a class as common as it should be has not collapsed
    if 1 - imputed[top] / imputed.sum() > MIN_OTHERS_RATIO * others:
        return None
    return Caveat(
        f"The imputed labels have collapsed: {format_percent(imputed[top] / imputed.sum())} of "
        f"them are class {names[top]}, although the labelled rows have other classes.",
        "Do not use these labels. Label more rows of the other classes"
        + (", or train longer with a lower learning rate." if fitted.model is None else "."),
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
        f"The class distribution of the imputed labels differs from that of the labelled rows: "
        f"class {names[i]} is {format_percent(imputed_shares[i])} of the imputed labels and "
        f"{format_percent(given_shares[i])} of the labelled rows.",
        "This is expected if rows were picked by class for labelling; otherwise check some rows "
        "imputed as this class.",
    )


def _check_mask_rate(fitted: FitArtifact) -> Caveat | None:
    if fitted.mask_rate is None or not fitted.mask_rate < MIN_MASK_RATE:
        return None
    return Caveat(
        f"Only {format_percent(fitted.mask_rate)} of the unlabelled rows passed the confidence "
        "threshold at the end of training.",
        "Lower the threshold (--method.threshold), train longer, or label more rows.",
    )


def _check_validation(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    if fitted.model is not None:
        return None
    metrics = estimate_metrics(fitted, rows, "validation")
    num_rows = int(mask_known_labels(fitted, rows, "validation").sum())
    count = pluralize(num_rows, "validation row")
    advice = "Use more labelled rows for validation (--validation), or label more."
    if num_rows < MIN_VALIDATION_ROWS:
        finding = f"Model selection rests on {count}, too few to separate the candidates."
        return Caveat(finding, advice)
    best = metrics.pop(fitted.selected_name, None)
    if best is None or not metrics:
        return None
    if best.standard_error <= min(other.value for other in metrics.values()) - best.value:
        return None
    return Caveat(
        f"The {count} do not separate the best candidates: they differ by less than the "
        "standard error of the selected one's metric.",
        advice,
    )


def _check_overconfidence(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    mask = mask_known_labels(fitted, rows, "validation", "test")
    count = int(mask.sum())
    if count < MIN_ROWS_FOR_CONFIDENCE:
        return None
    confidence, is_correct = compute_confidence(fitted, rows, mask, fitted.temperature)
    gap = confidence - is_correct
    noise = compute_standard_error(gap, get_groups(rows, mask))
    if gap.mean() <= max(MAX_OVERCONFIDENCE, MIN_GAP_STANDARD_ERRORS * noise):
        return None
    shares = [format_percent(float(values.mean())) for values in (is_correct, confidence)]
    rows_shown = describe_heldout(fitted)
    return Caveat(
        f"The labels are overconfident: on {count:,} {rows_shown}, {shares[0]} are "
        f"correct, at a mean confidence of {shares[1]}.",
        "Raise the confidence threshold ('l2i impute --threshold'), or label more rows.",
    )


def _check_scale(fitted: FitArtifact) -> Caveat | None:
    is_regression = fitted.classes is None
    scale = fitted.std_scale if is_regression else fitted.temperature
    if MIN_TEMPERATURE * SCALE_BOUND_MARGIN < scale < MAX_TEMPERATURE / SCALE_BOUND_MARGIN:
        return None
    scale_name = "scale of the standard deviations" if is_regression else "temperature"
    return Caveat(
        f"The calibrated {scale_name} is {scale:.3g}, at the limit of its range.",
        "Do not rely on the confidence; label more rows"
        + (" or use more of them for validation (--validation)." if not fitted.num_folds else "."),
    )
