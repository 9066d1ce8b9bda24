"""What a reader should be warned of: each a sentence on what was found and one on what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import Fitted, Rows
from l2i.own.imputed import NARROW, WIDE, Imputations
from l2i.own.reading import counted
from l2i.report.paired import figures, known
from l2i.report.words import share

UNLIKE = 0.7  # the area under the ROC curve
UNEVEN = 3.0  # largest class / smallest
SHIFTED = 0.2  # total variation between labelled and imputed shares
COLLAPSED = 0.95  # of imputed labels in one class
UNUSED = 0.1  # of unlabelled rows that count
FEW = 30  # validation rows
NEAR = 1.05  # of a bound
ENOUGH = 20  # rows that show whether confidences hold
BOLD, SURELY = 0.05, 2.0  # confidence above the share that is right, and standard errors that this must have


class Caution(NamedTuple):
    """What was found, and what to do."""

    found: str
    advice: str


def cautions(fitted: Fitted, rows: Rows, imputed: Imputations) -> list[Caution]:
    """All that hold."""
    found = [_unlike(fitted), _validation(fitted, rows), _mask(fitted), _scale(fitted)]
    if fitted.classes is not None:
        found += [_bold(fitted, rows), _uneven(fitted, rows)]
        found += [_collapsed(fitted, rows, imputed) or _shifted(fitted, rows, imputed)]
    return [caution for caution in found if caution is not None]


def _unlike(fitted: Fitted) -> Caution | None:
    if fitted.unlike is None or not fitted.unlike > UNLIKE:
        return None
    return Caution(
        f"The unlabelled rows are unlike the labelled: the two can be told apart (area under the ROC curve "
        f"{fitted.unlike:.2f}, 0.5 for alike).",
        "Label some of the unlabelled rows, drawn at random, or leave out those that come from elsewhere.",
    )


def labelled_counts(fitted: Fitted, rows: Rows) -> NDArray[np.int64]:
    """Labelled rows of each class, [C]."""
    assert fitted.classes is not None
    return np.bincount(rows.given[known(fitted, rows, "labeled")], minlength=len(fitted.classes))


def imputed_counts(fitted: Fitted, imputed: Imputations) -> NDArray[np.int64]:
    """Imputed labels of each class, [C]."""
    assert fitted.classes is not None
    return np.bincount(imputed.labels[imputed.imputed].astype(np.int64), minlength=len(fitted.classes))


def _uneven(fitted: Fitted, rows: Rows) -> Caution | None:
    assert fitted.classes is not None
    counts = labelled_counts(fitted, rows)
    most, least = int(counts.argmax()), int(counts.argmin())
    if counts[most] <= UNEVEN * counts[least]:
        return None
    return Caution(
        f"The labelled rows are uneven: {counted(int(counts[most]), 'row')} of class {fitted.classes[most]}, "
        f"{counts[least]:,} of class {fitted.classes[least]}.",
        "Label more rows of the rare classes, and look at their rows of the confusion matrix rather than at the total.",
    )


def _collapsed(fitted: Fitted, rows: Rows, imputed: Imputations) -> Caution | None:
    assert fitted.classes is not None
    given, found = labelled_counts(fitted, rows), imputed_counts(fitted, imputed)
    if found.max() <= COLLAPSED * found.sum() or (given > 0).sum() < 2:
        return None
    top = int(found.argmax())
    return Caution(
        f"The imputation has collapsed: {share(found[top] / found.sum())} of the imputed labels are class "
        f"{fitted.classes[top]}, though the labelled rows have others.",
        "Do not use these labels; label more rows of the other classes, or train longer at a lower learning rate.",
    )


def _shifted(fitted: Fitted, rows: Rows, imputed: Imputations) -> Caution | None:
    assert fitted.classes is not None
    given, found = labelled_counts(fitted, rows), imputed_counts(fitted, imputed)
    if not given.sum() or not found.sum():
        return None
    ours, theirs = found / found.sum(), given / given.sum()
    noise = np.sqrt(theirs * (1 - theirs) / given.sum()).sum() / 2  # about what chance makes of so few labels
    if np.abs(ours - theirs).sum() / 2 <= max(SHIFTED, 2 * noise):
        return None
    i = int(np.abs(ours - theirs).argmax())
    return Caution(
        f"The imputed labels are spread unlike the labelled rows: class {fitted.classes[i]} is {share(ours[i])} of "
        f"them, and {share(theirs[i])} of the labelled rows.",
        "That is as it should be where rows were chosen by class for labelling; otherwise check some of its rows.",
    )


def _mask(fitted: Fitted) -> Caution | None:
    if fitted.mask is None or not fitted.mask < UNUSED:
        return None
    return Caution(
        f"Only {share(fitted.mask)} of the unlabelled rows were confident enough to count at the end.",
        "Lower the method's threshold (method.threshold), train longer, or label more rows.",
    )


def _validation(fitted: Fitted, rows: Rows) -> Caution | None:
    found: dict[str, Any] = figures(fitted, rows, "validation")
    count = int(known(fitted, rows, "validation").sum())
    advice = "Keep more labelled rows for validation, or label more."
    if count < FEW:
        return Caution(
            f"The choice rests on {counted(count, 'validation row')}, too few to tell candidates apart.", advice
        )
    others = [e.value for name, e in found.items() if name != fitted.chosen]
    if fitted.chosen not in found or not others:
        return None
    best = found[fitted.chosen]
    if best.error <= min(others) - best.value:
        return None
    return Caution(
        f"The {counted(count, 'validation row')} cannot tell the best candidates apart: they differ by less than the "
        "standard error of the chosen one's figure.",
        advice,
    )


def _bold(fitted: Fitted, rows: Rows) -> Caution | None:
    from scipy.special import softmax

    mask = known(fitted, rows, "validation", "test")
    count = int(mask.sum())
    if count < ENOUGH:
        return None
    probability = softmax(rows.outputs[fitted.chosen][mask].astype(np.float64) / fitted.temperature, axis=1)
    said, right = probability.max(axis=1), probability.argmax(axis=1) == rows.given[mask]
    gap = said - right
    if gap.mean() <= max(BOLD, SURELY * gap.std(ddof=1) / np.sqrt(count)):
        return None
    return Caution(
        f"Labels are less often right than their confidence says: on {count:,} validation and test rows, "
        f"{share(float(right.mean()))} are right, at a mean confidence of {share(float(said.mean()))}.",
        "Raise the probability under which to abstain ('l2i impute --threshold'), or label more rows.",
    )


def _scale(fitted: Fitted) -> Caution | None:
    value = fitted.temperature if fitted.classes is not None else fitted.spread_scale
    if NARROW * NEAR < value < WIDE / NEAR:
        return None
    what = "temperature" if fitted.classes is not None else "scale of the spreads"
    return Caution(
        f"The {what} that calibrates the labels is {value:.3g}, at the edge of what is looked for.",
        "Do not rely on the confidences; keep more labelled rows for validation.",
    )
