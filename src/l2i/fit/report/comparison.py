"""Errors row by row, their figure, and the difference between two candidates on the same rows.

MERGED:
The verdict in words: do the unlabelled rows help, does learning to impute help, and how sure is that.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import Candidate, FitArtifact, FitRows
from l2i.fit.options import pluralize
from l2i.fit.report.formatting import format_metric, format_significant

Floats = NDArray[np.float64]
MIN_ROWS_FOR_CLASSES, MIN_ROWS_FOR_TARGETS = 10, 30  # rows under which no difference counts as established: one large error decides an RMSE
MIN_STANDARD_ERRORS = 2.0  # standard errors that a difference must have
SIGN_TEST_LEVEL = 0.05  # of rows that differ to fall as unevenly as they do


class Estimate(NamedTuple):
    """A figure or a difference, with its standard error."""

    value: float
    standard_error: float
    num_rows: int
    is_significant: bool = False
    """Differences: whether it is hardly chance."""


def mask_known_labels(fitted: FitArtifact, rows: FitRows, *splits: str) -> NDArray[np.bool_]:
    """Which rows of these parts have a label that is known, [N]."""
    is_known = rows.given_labels >= 0 if fitted.classes is not None else ~np.isnan(rows.given_labels).any(axis=1)
    return np.asarray(is_known & np.isin(rows.split_names, splits))


def compute_row_errors(fitted: FitArtifact, rows: FitRows, name: str, mask: NDArray[np.bool_]) -> Floats:
    """Each row's error: whether the class is wrong, or the mean squared error of its targets."""
    outputs, labels = rows.outputs[name][mask], rows.given_labels[mask]
    if fitted.classes is not None:
        return np.asarray(outputs.argmax(axis=1) != labels, dtype=np.float64)
    scale = np.asarray(fitted.target_std) if uses_target_std(fitted) else 1.0
    return np.asarray(np.square((outputs.astype(np.float64) - labels) / scale).mean(axis=1))


def uses_target_std(fitted: FitArtifact) -> bool:
    """Whether errors are measured in the targets' spreads: several targets need not have one unit."""
    return fitted.classes is None and not fitted.has_landmarks and len(fitted.targets) > 1


def estimate_metric(errors: Floats, *, is_classification: bool) -> Estimate:
    """Per cent wrong, or the root of the mean squared error."""
    influence = _compute_influence(errors, is_classification=is_classification)
    value = 100 * errors.mean() if is_classification else np.sqrt(errors.mean())
    return Estimate(float(value), _compute_standard_error(influence), len(errors))


def estimate_difference(ours: Floats, theirs: Floats, *, is_classification: bool) -> Estimate:
    """Our figure minus theirs, by the delta method where it is a root; below 0, ours is better."""
    value = estimate_metric(ours, is_classification=is_classification).value - estimate_metric(theirs, is_classification=is_classification).value
    error = _compute_standard_error(_compute_influence(ours, is_classification=is_classification) - _compute_influence(theirs, is_classification=is_classification))
    is_large = value != 0 and abs(value) >= MIN_STANDARD_ERRORS * error and len(ours) >= (MIN_ROWS_FOR_CLASSES if is_classification else MIN_ROWS_FOR_TARGETS)
    return Estimate(value, error, len(ours), bool(is_large and (not is_classification or _passes_sign_test(ours, theirs))))


def _compute_influence(errors: Floats, *, is_classification: bool) -> Floats:
    """How much each row moves the figure, around 0."""
    slope = 100.0 if is_classification else 0.5 / max(float(np.sqrt(errors.mean())), 1e-300)
    return np.asarray(slope * (errors - errors.mean()))


def _compute_standard_error(influence: Floats) -> float:
    return float(influence.std(ddof=1) / np.sqrt(len(influence))) if len(influence) > 1 else float("inf")


def _passes_sign_test(ours: Floats, theirs: Floats) -> bool:
    """The exact sign test: two standard errors say too much where only a handful of rows differ."""
    from scipy.stats import binomtest

    num_better, num_worse = int((ours < theirs).sum()), int((ours > theirs).sum())
    return num_better + num_worse > 0 and bool(binomtest(num_better, num_better + num_worse).pvalue < SIGN_TEST_LEVEL)


def is_metric_comparable(fitted: FitArtifact) -> bool:
    """Whether the stored figures are of the kind that `figure` finds from rows; those of landmarks may not be."""
    return fitted.classes is not None or fitted.metric_name == "RMSE"


def estimate_metrics(fitted: FitArtifact, rows: FitRows, split: str) -> dict[str, Estimate]:
    """The figure of each candidate on the rows of a part, none where there are no such rows."""
    mask: NDArray[Any] = mask_known_labels(fitted, rows, split)
    names = [c.name for c in fitted.candidates if c.name in rows.outputs] if mask.any() else []
    is_classification = fitted.classes is not None
    return {name: estimate_metric(compute_row_errors(fitted, rows, name, mask), is_classification=is_classification) for name in names}


Tone = Literal["good", "bad", "open"]


class Sentence(NamedTuple):
    """What is claimed, and the facts that it rests on."""

    claim: str
    facts: str
    tone: Tone = "open"

    def __str__(self) -> str:
        return f"{self.claim}: {self.facts}."


class Verdict(NamedTuple):
    """Sentences in the order in which they are read."""

    sentences: list[Sentence]
    selection: str
    footnotes: list[str]


def build_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """What the comparison came to, on the test rows or, where there are none, on the validation rows."""
    split = next((p for p in ("test", "validation") if mask_known_labels(fitted, rows, p).any()), None)
    if split is None:
        no_comparison = Sentence("Nothing can be compared", "no rows with known labels were held out")
        return Verdict([no_comparison], _explain_selection(fitted), [])
    supervised, baseline, l2i = (_find_trained(fitted, rows, name) for name in ("supervised", "baseline", "l2i"))
    semi_supervised = sorted((c for c in (baseline, l2i) if c), key=lambda c: c.sort_key)
    sentences = [
        _compare_candidates("the unlabelled rows", "help", semi_supervised[0] if semi_supervised else None, supervised, fitted, rows, split),
        _compare_candidates("learning to impute", "helps", l2i, baseline, fitted, rows, split),
    ]
    return Verdict(sentences, _explain_selection(fitted), _make_footnotes(fitted, split, has_both=baseline is not None and l2i is not None))


def _find_trained(fitted: FitArtifact, rows: FitRows, name: str) -> Candidate | None:
    return fitted.get_candidate(name) if name in rows.outputs else None


def _compare_candidates(
    treatment: str, verb: str, ours: Candidate | None, theirs: Candidate | None, fitted: FitArtifact, rows: FitRows, split: str
) -> Sentence:
    """A sentence on one question."""
    if ours is None or theirs is None:
        return Sentence(f"Whether {treatment} {verb} was not compared", _explain_missing(treatment, ours, theirs))
    mask, is_classification = mask_known_labels(fitted, rows, split), fitted.classes is not None
    ours_errors, theirs_errors = (compute_row_errors(fitted, rows, c.name, mask) for c in (ours, theirs))
    gap = estimate_difference(ours_errors, theirs_errors, is_classification=is_classification)
    metrics = estimate_metrics(fitted, rows, split)
    facts = _format_facts(ours.title, theirs.title, metrics[ours.name], metrics[theirs.name], gap, split, is_classification=is_classification)
    claim, tone = _make_claim(treatment, verb, gap)
    return Sentence(claim, facts, tone)


def _explain_missing(treatment: str, ours: Candidate | None, theirs: Candidate | None) -> str:
    if treatment == "the unlabelled rows":
        return "no network was trained on " + ("the labelled rows alone" if theirs is None else "the unlabelled rows")
    return "no network was trained " + ("without it" if theirs is None and ours is not None else "with it")


def _make_claim(treatment: str, verb: str, gap: Estimate) -> tuple[str, Tone]:
    """What is established, and no more."""
    if not gap.is_significant:
        return f"Whether {treatment} {verb} cannot be told", "open"
    subject, is_better = treatment[0].upper() + treatment[1:], gap.value < 0
    opposite_verb = "hurts" if verb == "helps" else "hurt"
    return f"{subject} {verb if is_better else opposite_verb}", "good" if is_better else "bad"


def _format_facts(ours: str, theirs: str, ours_metric: Estimate, theirs_metric: Estimate, gap: Estimate, split: str, *, is_classification: bool) -> str:
    """Both figures and their difference."""
    row_count = pluralize(ours_metric.num_rows, f"{split} row")
    if is_classification:
        pair = f"{ours} is wrong on {ours_metric.value:.1f} % of {row_count}, {theirs} on {theirs_metric.value:.1f} %"
        amount, direction = f"{abs(gap.value):.1f} points", "fewer" if gap.value < 0 else "more"
    else:
        pair = f"{ours} has an RMSE of {format_significant(ours_metric.value)} on {row_count}, {theirs} of {format_significant(theirs_metric.value)}"
        amount, direction = format_significant(abs(gap.value), 2), "lower" if gap.value < 0 else "higher"
    error = f"± {gap.standard_error:.1f}" if is_classification else f"± {format_significant(gap.standard_error, 2)}"
    if gap.value == gap.standard_error == 0:
        return f"{pair} (no difference on any row)"
    gap_text = "no difference" if gap.value == 0 else f"{amount} {direction}"
    is_too_small = not is_classification and gap.num_rows < MIN_ROWS_FOR_TARGETS
    doubt_reason = f"under {MIN_ROWS_FOR_TARGETS} rows nothing is claimed" if is_too_small else "the rows are too few to tell it from chance"
    doubt = "" if gap.is_significant or gap.value == 0 else f"; {doubt_reason}"
    return f"{pair} ({gap_text}, {error}{doubt})"


def _explain_selection(fitted: FitArtifact) -> str:
    """Which candidate was chosen, and why."""
    best, others = fitted.selected, [c for c in fitted.candidates if c.name != fitted.selected_name]
    value = f"{fitted.metric_name} {format_metric(best.validation_metric, fitted.metric_name)}"
    if not others:
        return f"{best.title} was the only one trained ({value} on the validation rows)."
    runner_up = min(others, key=lambda c: c.sort_key)
    if runner_up.validation_metric < best.validation_metric:
        return (
            f"{best.title} was chosen: its figure on the validation rows ({value}) is within a standard error of the "
            f"best, {runner_up.title}'s {format_metric(runner_up.validation_metric, fitted.metric_name)}, and it has learned from more."
        )
    if runner_up.validation_metric == best.validation_metric:
        return f"{best.title} was chosen: of equal figures on the validation rows ({value}), it has learned from more."
    return f"{best.title} was chosen: its figure on the validation rows ({value}) is the best of {1 + len(others)}."


def _make_footnotes(fitted: FitArtifact, split: str, *, has_both: bool) -> list[str]:
    notes = ["± is one standard error of the difference, paired row by row; it counts from two of them on."]
    if has_both:
        notes.append("The unlabelled rows are judged by the better of the two networks on the validation rows.")
    if split == "validation":
        notes.append(
            "There are no test rows. These are the validation rows, on which the choice was made: expect somewhat "
            "larger errors on new ones."
        )
    if fitted.classes is None and fitted.metric_name != "RMSE":
        notes.append(f"The difference is one of RMSE, in the targets' units; the {fitted.metric_name} is below.")
    return notes
