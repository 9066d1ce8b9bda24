"""Compare candidates row by row: metrics with standard errors, paired differences, the verdict."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import Candidate, FitArtifact, FitRows, Floats, Mask
from l2i.fit.formatting import format_metric, format_significant, pluralize
from l2i.fit.table_metric import weigh_classes

Tone = Literal["good", "bad", "open"]
# No difference is significant with fewer rows: one large error decides an RMSE.
MIN_ROWS_FOR_CLASSES, MIN_ROWS_FOR_TARGETS = 10, 30
MIN_STANDARD_ERRORS = 2.0  # of a significant difference
SIGN_TEST_LEVEL = 0.05
TIE_RULE = "ties go to L2I first, supervised last"


class Estimate(NamedTuple):
    """A metric or a difference, with its standard error."""

    value: float
    standard_error: float
    num_rows: int
    is_significant: bool = False
    """Whether a difference is unlikely to be chance."""


class Sentence(NamedTuple):
    """A claim and the facts that support it."""

    claim: str
    facts: str
    tone: Tone = "open"

    def __str__(self) -> str:
        return f"{self.claim}: {self.facts}."


class Verdict(NamedTuple):
    """Sentences in reading order."""

    sentences: list[Sentence]
    selection: str
    footnotes: list[str]


def build_network_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """Compare networks on the test rows or, without any, on the validation rows."""
    splits = ("test", "validation")
    split = next((s for s in splits if mask_known_labels(fitted, rows, s).any()), None)
    selection = _explain_selection(fitted)
    if split is None:
        reason = "there are no validation or test rows"
        return Verdict([Sentence("The candidates cannot be compared", reason)], selection, [])
    trained = {c.name: c for c in fitted.candidates if c.name in rows.outputs}
    supervised, baseline, l2i = map(trained.get, ("supervised", "baseline", "l2i"))
    semi_supervised = min((c for c in (baseline, l2i) if c), key=lambda c: c.sort_key, default=None)
    questions = [
        ("the unlabelled rows", "help", semi_supervised, supervised),
        ("learning to impute", "helps", l2i, baseline),
    ]
    sentences = [_compare_candidates(*question, fitted, rows, split) for question in questions]
    has_both = baseline is not None and l2i is not None
    return Verdict(sentences, selection, _make_footnotes(fitted, split, has_both=has_both))


def _compare_candidates(
    treatment: str,
    verb: str,
    ours: Candidate | None,
    theirs: Candidate | None,
    fitted: FitArtifact,
    rows: FitRows,
    split: str,
) -> Sentence:
    if ours is None or theirs is None:
        if treatment == "the unlabelled rows":
            missing = "the labelled rows alone" if theirs is None else "the unlabelled rows"
            reason = f"no model was trained on {missing}"
        else:
            is_theirs = theirs is None and ours is not None
            reason = f"no model was trained {'without' if is_theirs else 'with'} it"
        return Sentence(f"The effect of {treatment} was not measured", reason)
    mask, is_classification = mask_known_labels(fitted, rows, split), fitted.classes is not None
    errors = [compute_row_errors(fitted, rows, c.name, mask) for c in (ours, theirs)]
    metrics = [estimate_metric(e, is_classification=is_classification) for e in errors]
    gap = estimate_difference(errors[0], errors[1], is_classification=is_classification)
    row_count = pluralize(len(errors[0]), "row")
    if is_classification:
        name, values = "error", [f"{metric.value:.1f} %" for metric in metrics]
    else:
        name, values = "RMSE", [format_significant(metric.value) for metric in metrics]
    pair = f"{split} {name} {values[0]} for {ours.title}, {values[1]} for {theirs.title}"
    facts = f"{pair} ({row_count}; {_format_gap(gap, is_classification=is_classification)})"
    if not gap.is_significant:
        return Sentence(f"It is not clear whether {treatment} {verb}", facts)
    subject = treatment[0].upper() + treatment[1:]
    if gap.value < 0:
        return Sentence(f"{subject} {verb}", facts, "good")
    return Sentence(f"{subject} {'hurts' if verb == 'helps' else 'hurt'}", facts, "bad")


def _format_gap(gap: Estimate, *, is_classification: bool) -> str:
    if gap.value == gap.standard_error == 0:
        return "no difference on any row"
    if is_classification:
        amount, error = f"{abs(gap.value):.1f}", f"± {gap.standard_error:.1f} points"
    else:
        amount = format_significant(abs(gap.value), 2)
        error = f"± {format_significant(gap.standard_error, 2)}"
    if gap.value == 0:
        return f"difference 0 {error}"
    text = f"{amount} {error} {'lower' if gap.value < 0 else 'higher'}"
    if gap.is_significant:
        return text
    if not is_classification and gap.num_rows < MIN_ROWS_FOR_TARGETS:
        return f"{text}, too few rows to test"
    return f"{text}, not significant"


def _explain_selection(fitted: FitArtifact) -> str:
    """Explain why the selected candidate was selected."""
    best, others = fitted.selected, [c for c in fitted.candidates if c.name != fitted.selected_name]
    name, _, unit = fitted.metric_name.partition(" (")  # as in "error (%)"
    metric, suffix = f"validation {name}", f" {unit.rstrip(')')}" if unit else ""
    value = format_metric(best.validation_metric, fitted.metric_name) + suffix
    if not others:
        return f"Selected: {best.title} ({metric} {value}, the only candidate)."
    runner_up = min(others, key=lambda c: c.sort_key)
    if runner_up.validation_metric < best.validation_metric:
        best_value = format_metric(runner_up.validation_metric, fitted.metric_name) + suffix
        reason = f"within one standard error of {runner_up.title} at {best_value}; {TIE_RULE}"
    elif runner_up.validation_metric == best.validation_metric:
        tied = [c.title for c in others if c.validation_metric == best.validation_metric]
        reason = f"tied with {' and '.join(tied)}; {TIE_RULE}"
    else:
        reason = f"the lowest of {1 + len(others)}"
    return f"Selected: {best.title} ({metric} {value}, {reason})."


def _make_footnotes(fitted: FitArtifact, split: str, *, has_both: bool) -> list[str]:
    condition = f"and p < {SIGN_TEST_LEVEL} in a sign test"
    if fitted.classes is None:
        condition = f"on {MIN_ROWS_FOR_TARGETS} rows or more"
    notes = [
        "± is one standard error of the paired difference. A difference is significant if it is "
        f"at least {MIN_STANDARD_ERRORS:g} standard errors {condition}."
    ]
    if has_both:
        notes.append(
            "The effect of the unlabelled rows is that of the semi-supervised candidate with the "
            "lower validation error."
        )
    if split == "validation":
        notes.append(
            "There are no test rows. These are errors on the validation rows, which were also used "
            "for model selection: expect somewhat larger errors on new data."
        )
    if fitted.classes is None and fitted.metric_name != "RMSE":
        metric = f"the {fitted.metric_name} is reported below"
        notes.append(f"The difference is in RMSE, in the units of the targets; {metric}.")
    return notes


def mask_known_labels(fitted: FitArtifact, rows: FitRows, *splits: str) -> Mask:
    """Return which rows of these splits have a known label, [N].

    Where candidates were compared in folds, all labelled rows were validated on, out of fold.
    """
    labels = rows.given_labels
    if fitted.num_folds and "validation" in splits:
        splits = (*splits, "labeled")
    is_known = labels >= 0 if fitted.classes is not None else ~np.isnan(labels).any(axis=1)
    return np.asarray(is_known & np.isin(rows.split_names, splits))


def describe_heldout(fitted: FitArtifact) -> str:
    """Name the rows that confidences are measured on."""
    return "labelled rows, out of fold" if fitted.num_folds else "validation and test rows"


def estimate_metrics(fitted: FitArtifact, rows: FitRows, split: str) -> dict[str, Estimate]:
    """Estimate the metric of each candidate on the rows of a split, if there are any."""
    mask, is_classification = mask_known_labels(fitted, rows, split), fitted.classes is not None
    names = [c.name for c in fitted.candidates if c.name in rows.outputs] if mask.any() else []
    errors = {name: compute_row_errors(fitted, rows, name, mask) for name in names}
    groups = get_groups(rows, mask)
    return {
        name: estimate_metric(values, is_classification=is_classification, groups=groups)
        for name, values in errors.items()
    }


def get_groups(rows: FitRows, mask: Mask) -> NDArray[Any] | None:
    """Return the groups of some rows, if rows are grouped."""
    return None if rows.groups is None else rows.groups[mask]


def compute_row_errors(fitted: FitArtifact, rows: FitRows, name: str, mask: Mask) -> Floats:
    """Return each row's error: whether the class is wrong, or the mean squared error of targets.

    Where classes count the same, errors of rare ones are more than 1.
    """
    outputs, labels = rows.outputs[name][mask], rows.given_labels[mask]
    if fitted.classes is not None:
        is_wrong = np.asarray(outputs.argmax(axis=1) != labels, dtype=np.float64)
        return is_wrong * weigh_classes(labels) if fitted.is_balanced else is_wrong
    # several targets need not share a unit, so their errors are divided by their stds
    uses_std = not fitted.has_landmarks and len(fitted.targets) > 1
    scale = np.asarray(fitted.target_std) if uses_std else 1.0
    return np.asarray(np.square((outputs.astype(np.float64) - labels) / scale).mean(axis=1))


def is_metric_comparable(fitted: FitArtifact) -> bool:
    """Return whether stored metrics are of the kind estimated here; landmarks may have another."""
    return fitted.classes is not None or fitted.metric_name == "RMSE"


def estimate_metric(
    errors: Floats, *, is_classification: bool, groups: NDArray[Any] | None = None
) -> Estimate:
    """Estimate the error rate in per cent, or the root mean squared error.

    Rows of one of the `groups` [N] err together.
    """
    influence = _compute_influence(errors, is_classification=is_classification)
    value = 100 * errors.mean() if is_classification else np.sqrt(errors.mean())
    return Estimate(float(value), compute_standard_error(influence, groups), len(errors))


def estimate_difference(ours: Floats, theirs: Floats, *, is_classification: bool) -> Estimate:
    """Estimate our metric minus theirs, by the delta method for a root; below 0, ours is better."""
    ours_metric, theirs_metric = (
        estimate_metric(errors, is_classification=is_classification) for errors in (ours, theirs)
    )
    ours_influence, theirs_influence = (
        _compute_influence(errors, is_classification=is_classification) for errors in (ours, theirs)
    )
    value = ours_metric.value - theirs_metric.value
    error = compute_standard_error(ours_influence - theirs_influence)
    min_rows = MIN_ROWS_FOR_CLASSES if is_classification else MIN_ROWS_FOR_TARGETS
    is_large = value != 0 and abs(value) >= MIN_STANDARD_ERRORS * error and len(ours) >= min_rows
    is_significant = is_large and (not is_classification or _passes_sign_test(ours, theirs))
    return Estimate(value, error, len(ours), bool(is_significant))


def _compute_influence(errors: Floats, *, is_classification: bool) -> Floats:
    """Return how much each row moves the metric, around 0."""
    slope = 100.0 if is_classification else 0.5 / max(float(np.sqrt(errors.mean())), 1e-300)
    return np.asarray(slope * (errors - errors.mean()))


def compute_standard_error(influence: Floats, groups: NDArray[Any] | None = None) -> float:
    """Return the standard error of the mean of what rows, or whole groups, move it by."""
    shares = (influence - influence.mean()) / len(influence)
    if groups is not None:
        shares = np.bincount(np.unique(groups, return_inverse=True)[1], weights=shares)
    count = len(shares)
    return float(np.sqrt(np.square(shares).sum() * count / (count - 1))) if count > 1 else math.inf


def _passes_sign_test(ours: Floats, theirs: Floats) -> bool:
    """Run the exact sign test: if only a few rows differ, two standard errors claim too much."""
    from scipy.stats import binomtest

    num_better, num_worse = int((ours < theirs).sum()), int((ours > theirs).sum())
    if num_better + num_worse == 0:
        return False
    return bool(binomtest(num_better, num_better + num_worse).pvalue < SIGN_TEST_LEVEL)
