"""What a reader should be warned of: each a sentence on what was found and one on what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.impute import MAX_TEMPERATURE, MIN_TEMPERATURE, Imputations
from l2i.fit.options import pluralize
from l2i.fit.report.comparison import estimate_metrics, mask_known_labels
from l2i.fit.report.formatting import format_percent

MAX_SHIFT_AUC = 0.7  # the area under the ROC curve
MAX_CLASS_RATIO = 3.0  # largest class / smallest
MAX_LABEL_SHIFT = 0.2  # total variation between labelled and imputed shares
MAX_CLASS_SHARE = 0.95  # of imputed labels in one class
MIN_MASK_RATE = 0.1  # of unlabelled rows that count
MIN_VALIDATION_ROWS = 30  # validation rows
SCALE_BOUND_MARGIN = 1.05  # of a bound
MIN_ROWS_FOR_CONFIDENCE = 20  # rows that show whether confidences hold
MAX_OVERCONFIDENCE, MIN_GAP_STANDARD_ERRORS = 0.05, 2.0  # confidence above the share that is right, and standard errors that this must have


class Caveat(NamedTuple):
    """What was found, and what to do."""

    finding: str
    advice: str


def find_caveats(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> list[Caveat]:
    """All that hold."""
    caveats = [_check_covariate_shift(fitted), _check_validation(fitted, rows), _check_mask_rate(fitted), _check_scale(fitted)]
    if fitted.classes is not None:
        caveats += [_check_overconfidence(fitted, rows), _check_class_balance(fitted, rows)]
        caveats += [_check_collapse(fitted, rows, imputations) or _check_label_shift(fitted, rows, imputations)]
    return [caveat for caveat in caveats if caveat is not None]


def _check_covariate_shift(fitted: FitArtifact) -> Caveat | None:
    if fitted.covariate_shift_auc is None or not fitted.covariate_shift_auc > MAX_SHIFT_AUC:
        return None
    return Caveat(
        f"The unlabelled rows are unlike the labelled: the two can be told apart (area under the ROC curve "
        f"{fitted.covariate_shift_auc:.2f}, 0.5 for alike).",
        "Label some of the unlabelled rows, drawn at random, or leave out those that come from elsewhere.",
    )


def count_labeled(fitted: FitArtifact, rows: FitRows) -> NDArray[np.int64]:
    """Labelled rows of each class, [C]."""
    assert fitted.classes is not None
    return np.bincount(rows.given_labels[mask_known_labels(fitted, rows, "labeled")], minlength=len(fitted.classes))


def count_imputed(fitted: FitArtifact, imputations: Imputations) -> NDArray[np.int64]:
    """Imputed labels of each class, [C]."""
    assert fitted.classes is not None
    return np.bincount(imputations.labels[imputations.is_imputed].astype(np.int64), minlength=len(fitted.classes))


def _check_class_balance(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    assert fitted.classes is not None
    counts = count_labeled(fitted, rows)
    largest, smallest = int(counts.argmax()), int(counts.argmin())
    if counts[largest] <= MAX_CLASS_RATIO * counts[smallest]:
        return None
    return Caveat(
        f"The labelled rows are uneven: {pluralize(int(counts[largest]), 'row')} of class {fitted.classes[largest]}, "
        f"{counts[smallest]:,} of class {fitted.classes[smallest]}.",
        "Label more rows of the rare classes, and look at their rows of the confusion matrix rather than at the total.",
    )


def _check_collapse(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> Caveat | None:
    assert fitted.classes is not None
    label_counts, pseudo_counts = count_labeled(fitted, rows), count_imputed(fitted, imputations)
    if pseudo_counts.max() <= MAX_CLASS_SHARE * pseudo_counts.sum() or (label_counts > 0).sum() < 2:
        return None
    top = int(pseudo_counts.argmax())
    return Caveat(
        f"The imputation has collapsed: {format_percent(pseudo_counts[top] / pseudo_counts.sum())} of the imputed labels are class "
        f"{fitted.classes[top]}, though the labelled rows have others.",
        "Do not use these labels; label more rows of the other classes, or train longer at a lower learning rate.",
    )


def _check_label_shift(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> Caveat | None:
    assert fitted.classes is not None
    label_counts, pseudo_counts = count_labeled(fitted, rows), count_imputed(fitted, imputations)
    if not label_counts.sum() or not pseudo_counts.sum():
        return None
    pseudo_shares, label_shares = pseudo_counts / pseudo_counts.sum(), label_counts / label_counts.sum()
    noise = np.sqrt(label_shares * (1 - label_shares) / label_counts.sum()).sum() / 2  # about what chance makes of so few labels
    if np.abs(pseudo_shares - label_shares).sum() / 2 <= max(MAX_LABEL_SHIFT, 2 * noise):
        return None
    i = int(np.abs(pseudo_shares - label_shares).argmax())
    return Caveat(
        f"The imputed labels are spread unlike the labelled rows: class {fitted.classes[i]} is {format_percent(pseudo_shares[i])} of "
        f"them, and {format_percent(label_shares[i])} of the labelled rows.",
        "That is as it should be where rows were chosen by class for labelling; otherwise check some of its rows.",
    )


def _check_mask_rate(fitted: FitArtifact) -> Caveat | None:
    if fitted.mask_rate is None or not fitted.mask_rate < MIN_MASK_RATE:
        return None
    return Caveat(
        f"Only {format_percent(fitted.mask_rate)} of the unlabelled rows were confident enough to count at the end.",
        "Lower the method's threshold (method.threshold), train longer, or label more rows.",
    )


def _check_validation(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    metrics: dict[str, Any] = estimate_metrics(fitted, rows, "validation")
    count = int(mask_known_labels(fitted, rows, "validation").sum())
    advice = "Keep more labelled rows for validation, or label more."
    if count < MIN_VALIDATION_ROWS:
        return Caveat(
            f"The choice rests on {pluralize(count, 'validation row')}, too few to tell candidates apart.", advice
        )
    other_values = [estimate.value for name, estimate in metrics.items() if name != fitted.selected_name]
    if fitted.selected_name not in metrics or not other_values:
        return None
    best = metrics[fitted.selected_name]
    if best.standard_error <= min(other_values) - best.value:
        return None
    return Caveat(
        f"The {pluralize(count, 'validation row')} cannot tell the best candidates apart: they differ by less than the "
        "standard error of the chosen one's figure.",
        advice,
    )


def _check_overconfidence(fitted: FitArtifact, rows: FitRows) -> Caveat | None:
    from scipy.special import softmax

    mask = mask_known_labels(fitted, rows, "validation", "test")
    count = int(mask.sum())
    if count < MIN_ROWS_FOR_CONFIDENCE:
        return None
    probability = softmax(rows.outputs[fitted.selected_name][mask].astype(np.float64) / fitted.temperature, axis=1)
    confidence, is_correct = probability.max(axis=1), probability.argmax(axis=1) == rows.given_labels[mask]
    gap = confidence - is_correct
    if gap.mean() <= max(MAX_OVERCONFIDENCE, MIN_GAP_STANDARD_ERRORS * gap.std(ddof=1) / np.sqrt(count)):
        return None
    return Caveat(
        f"Labels are less often right than their confidence says: on {count:,} validation and test rows, "
        f"{format_percent(float(is_correct.mean()))} are right, at a mean confidence of {format_percent(float(confidence.mean()))}.",
        "Raise the probability under which to abstain ('l2i impute --threshold'), or label more rows.",
    )


def _check_scale(fitted: FitArtifact) -> Caveat | None:
    scale = fitted.temperature if fitted.classes is not None else fitted.std_scale
    if MIN_TEMPERATURE * SCALE_BOUND_MARGIN < scale < MAX_TEMPERATURE / SCALE_BOUND_MARGIN:
        return None
    scale_name = "temperature" if fitted.classes is not None else "scale of the spreads"
    return Caveat(
        f"The {scale_name} that calibrates the labels is {scale:.3g}, at the edge of what is looked for.",
        "Do not rely on the confidences; keep more labelled rows for validation.",
    )
