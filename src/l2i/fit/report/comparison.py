"""Compare candidates row by row: metrics with standard errors, paired differences, the verdict."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from l2i.fit.artifact import Candidate, FitArtifact, FitRows, Floats, Mask
from l2i.fit.formatting import format_metric, format_significant, pluralize

Tone = Literal["good", "bad", "open"]
# No difference is significant with fewer rows: one large error decides an RMSE.
MIN_ROWS_FOR_CLASSES, MIN_ROWS_FOR_TARGETS = 10, 30
MIN_STANDARD_ERRORS = 2.0  # of a significant difference
SIGN_TEST_LEVEL = 0.05


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


def build_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """Compare the candidates on the test rows or, without any, on the validation rows."""
    splits = ("test", "validation")
    split = next((s for s in splits if mask_known_labels(fitted, rows, s).any()), None)
    selection = _explain_selection(fitted)
    if split is None:
        reason = "no rows with known labels were held out"
        return Verdict([Sentence("Nothing can be compared", reason)], selection, [])
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
            missing = "on the labelled rows alone" if theirs is None else "on the unlabelled rows"
        else:
            missing = "without it" if theirs is None and ours is not None else "with it"
        claim = f"Whether {treatment} {verb} was not compared"
        return Sentence(claim, f"no network was trained {missing}")
    mask, is_classification = mask_known_labels(fitted, rows, split), fitted.classes is not None
    errors = [compute_row_errors(fitted, rows, c.name, mask) for c in (ours, theirs)]
    metrics = [estimate_metric(e, is_classification=is_classification) for e in errors]
    gap = estimate_difference(errors[0], errors[1], is_classification=is_classification)
    row_count = pluralize(len(errors[0]), f"{split} row")
    if is_classification:
        values = [f"{metric.value:.1f} %" for metric in metrics]
        pair = f"{ours.title} is wrong on {values[0]} of {row_count}, {theirs.title} on {values[1]}"
    else:
        values = [format_significant(metric.value) for metric in metrics]
        pair = (
            f"{ours.title} has an RMSE of {values[0]} on {row_count}, {theirs.title} of {values[1]}"
        )
    facts = f"{pair} ({_format_gap(gap, is_classification=is_classification)})"
    if not gap.is_significant:
        return Sentence(f"Whether {treatment} {verb} cannot be told", facts)
    subject = treatment[0].upper() + treatment[1:]
    if gap.value < 0:
        return Sentence(f"{subject} {verb}", facts, "good")
    return Sentence(f"{subject} {'hurts' if verb == 'helps' else 'hurt'}", facts, "bad")


def _format_gap(gap: Estimate, *, is_classification: bool) -> str:
    if gap.value == gap.standard_error == 0:
        return "no difference on any row"
    if is_classification:
        amount, error = f"{abs(gap.value):.1f} points", f"± {gap.standard_error:.1f}"
        direction = "fewer" if gap.value < 0 else "more"
    else:
        amount = format_significant(abs(gap.value), 2)
        error = f"± {format_significant(gap.standard_error, 2)}"
        direction = "lower" if gap.value < 0 else "higher"
    if gap.value == 0:
        return f"no difference, {error}"
    text = f"{amount} {direction}, {error}"
    if gap.is_significant:
        return text
    if not is_classification and gap.num_rows < MIN_ROWS_FOR_TARGETS:
        return f"{text}; under {MIN_ROWS_FOR_TARGETS} rows nothing is claimed"
    return f"{text}; the rows are too few to tell it from chance"


def _explain_selection(fitted: FitArtifact) -> str:
    """Explain which candidate was chosen."""
    best, others = fitted.selected, [c for c in fitted.candidates if c.name != fitted.selected_name]
    value = f"{fitted.metric_name} {format_metric(best.validation_metric, fitted.metric_name)}"
    if not others:
        return f"{best.title} was the only one trained ({value} on the validation rows)."
    runner_up, chosen = min(others, key=lambda c: c.sort_key), f"{best.title} was chosen:"
    if runner_up.validation_metric < best.validation_metric:
        best_value = format_metric(runner_up.validation_metric, fitted.metric_name)
        return (
            f"{chosen} its metric on the validation rows ({value}) is within a standard error of "
            f"the best, {runner_up.title}'s {best_value}, and it has learned from more."
        )
    if runner_up.validation_metric == best.validation_metric:
        equal = f"of equal metrics on the validation rows ({value})"
        return f"{chosen} {equal}, it has learned from more."
    count = 1 + len(others)
    return f"{chosen} its metric on the validation rows ({value}) is the best of {count}."


def _make_footnotes(fitted: FitArtifact, split: str, *, has_both: bool) -> list[str]:
    paired = "± is one standard error of the difference, paired row by row"
    notes = [f"{paired}; it counts from two of them on."]
    if has_both:
        judge = "the better of the two networks on the validation rows"
        notes.append(f"The unlabelled rows are judged by {judge}.")
    if split == "validation":
        notes.append(
            "There are no test rows. These are the validation rows, on which the choice was made: "
            "expect somewhat larger errors on new ones."
        )
    if fitted.classes is None and fitted.metric_name != "RMSE":
        metric = f"the {fitted.metric_name} is below"
        notes.append(f"The difference is one of RMSE, in the targets' units; {metric}.")
    return notes


def mask_known_labels(fitted: FitArtifact, rows: FitRows, *splits: str) -> Mask:
    """Return which rows of these splits have a known label, [N]."""
    labels = rows.given_labels
    is_known = labels >= 0 if fitted.classes is not None else ~np.isnan(labels).any(axis=1)
    return np.asarray(is_known & np.isin(rows.split_names, splits))


def estimate_metrics(fitted: FitArtifact, rows: FitRows, split: str) -> dict[str, Estimate]:
    """Estimate the metric of each candidate on the rows of a split, if there are any."""
    mask, is_classification = mask_known_labels(fitted, rows, split), fitted.classes is not None
    names = [c.name for c in fitted.candidates if c.name in rows.outputs] if mask.any() else []
    errors = {name: compute_row_errors(fitted, rows, name, mask) for name in names}
    return {n: estimate_metric(e, is_classification=is_classification) for n, e in errors.items()}


def compute_row_errors(fitted: FitArtifact, rows: FitRows, name: str, mask: Mask) -> Floats:
    """Return each row's error: whether the class is wrong, or the mean squared error of targets."""
    outputs, labels = rows.outputs[name][mask], rows.given_labels[mask]
    if fitted.classes is not None:
        return np.asarray(outputs.argmax(axis=1) != labels, dtype=np.float64)
    # several targets need not share a unit, so their errors are measured in their spreads
    uses_std = not fitted.has_landmarks and len(fitted.targets) > 1
    scale = np.asarray(fitted.target_std) if uses_std else 1.0
    return np.asarray(np.square((outputs.astype(np.float64) - labels) / scale).mean(axis=1))


def is_metric_comparable(fitted: FitArtifact) -> bool:
    """Return whether stored metrics are of the kind estimated here; landmarks may have another."""
    return fitted.classes is not None or fitted.metric_name == "RMSE"


def estimate_metric(errors: Floats, *, is_classification: bool) -> Estimate:
    """Estimate the error rate in per cent, or the root mean squared error."""
    influence = _compute_influence(errors, is_classification=is_classification)
    value = 100 * errors.mean() if is_classification else np.sqrt(errors.mean())
    return Estimate(float(value), _compute_standard_error(influence), len(errors))


def estimate_difference(ours: Floats, theirs: Floats, *, is_classification: bool) -> Estimate:
    """Estimate our metric minus theirs, by the delta method for a root; below 0, ours is better."""
    ours_metric, theirs_metric = (
        estimate_metric(errors, is_classification=is_classification) for errors in (ours, theirs)
    )
    ours_influence, theirs_influence = (
        _compute_influence(errors, is_classification=is_classification) for errors in (ours, theirs)
    )
    value = ours_metric.value - theirs_metric.value
    error = _compute_standard_error(ours_influence - theirs_influence)
    min_rows = MIN_ROWS_FOR_CLASSES if is_classification else MIN_ROWS_FOR_TARGETS
    is_large = value != 0 and abs(value) >= MIN_STANDARD_ERRORS * error and len(ours) >= min_rows
    is_significant = is_large and (not is_classification or _passes_sign_test(ours, theirs))
    return Estimate(value, error, len(ours), bool(is_significant))


def _compute_influence(errors: Floats, *, is_classification: bool) -> Floats:
    """Return how much each row moves the metric, around 0."""
    slope = 100.0 if is_classification else 0.5 / max(float(np.sqrt(errors.mean())), 1e-300)
    return np.asarray(slope * (errors - errors.mean()))


def _compute_standard_error(influence: Floats) -> float:
    if len(influence) < 2:
        return float("inf")
    return float(influence.std(ddof=1) / np.sqrt(len(influence)))


def _passes_sign_test(ours: Floats, theirs: Floats) -> bool:
    """Run the exact sign test: if only a few rows differ, two standard errors claim too much."""
    from scipy.stats import binomtest

    num_better, num_worse = int((ours < theirs).sum()), int((ours > theirs).sum())
    if num_better + num_worse == 0:
        return False
    return bool(binomtest(num_better, num_better + num_worse).pvalue < SIGN_TEST_LEVEL)
