"""The verdict: on the networks of a fit, or on the model chosen for a table."""

from __future__ import annotations

import math

import numpy as np

from l2i.fit.artifact import FINAL, Candidate, FitArtifact, FitRows
from l2i.fit.formatting import format_metric, pluralize
from l2i.fit.report.comparison import (
    Estimate,
    Sentence,
    Verdict,
    build_network_verdict,
    compute_row_errors,
    estimate_difference,
    estimate_metric,
    mask_known_labels,
)

CONSTANT_NAMES = ("majority", "mean")
MAX_CLASS_RATIO = 3.0  # largest class / smallest, beyond which classes are imbalanced


def build_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """Return what to tell of the models that were compared."""
    if fitted.model is None:
        return build_network_verdict(fitted, rows)
    return build_table_verdict(fitted, rows)


def build_table_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """Say how good the chosen model is, what the unlabelled rows did, and how that was measured."""
    best = fitted.selected
    title = best.title[0].upper() + best.title[1:]
    if not fitted.num_folds:
        reason = "there are too few labels to compare models; label more rows"
        return Verdict([Sentence(f"{title} was fitted, untested", reason)], "", [])
    sentences = [_judge_chosen(title, fitted, rows), _judge_unlabeled(fitted, rows)]
    expected = estimate_final(fitted, rows)
    how = "measured on labelled rows that neither the model nor the choice of it had seen"
    selection = f"On new rows expect {_describe_expected(expected, fitted, rows)}: {how}."
    criterion = " The model with the lowest loss is chosen: the share of wrong rows plus the Brier"
    criterion += " score, which counts how far the probabilities are off."
    note = (
        f"All metrics are from {fitted.num_folds}-fold cross-validation over the "
        f"{pluralize(expected.num_rows, 'labelled row')}; ± is one standard error."
        f"{criterion if fitted.classes is not None else ''} Where models are about equal, the one "
        "that needs no unlabelled rows is chosen."
    )
    return Verdict([s for s in sentences if s is not None], selection, [note])


def _describe_expected(expected: Estimate, fitted: FitArtifact, rows: FitRows) -> str:
    """Describe the metric on new rows; of imbalanced classes, their mean error too."""
    plus_minus = _format(expected.standard_error, fitted)
    text = f"an {_name(fitted)} of {_format(expected.value, fitted)} ± {plus_minus}"
    if fitted.classes is None:
        return text
    labels = rows.given_labels[mask_known_labels(fitted, rows, "validation")]
    counts = np.bincount(labels, minlength=len(fitted.classes))
    if counts.max() <= MAX_CLASS_RATIO * counts.min():
        return text
    balanced = compute_balanced_error(fitted, rows, FINAL)
    return f"{text}, and of {_format(balanced, fitted)} in the mean over the classes"


def compute_balanced_error(fitted: FitArtifact, rows: FitRows, name: str) -> float:
    """Return the mean error over classes in per cent, of the rows with labels."""
    mask = mask_known_labels(fitted, rows, "validation")
    errors, labels = compute_row_errors(fitted, rows, name, mask), rows.given_labels[mask]
    return float(100 * np.mean([errors[labels == label].mean() for label in np.unique(labels)]))


def estimate_final(fitted: FitArtifact, rows: FitRows) -> Estimate:
    """Estimate the metric of the whole procedure, choice included, on rows it had not seen."""
    mask = mask_known_labels(fitted, rows, "validation")
    errors = compute_row_errors(fitted, rows, FINAL, mask)
    return estimate_metric(errors, is_classification=fitted.classes is not None)


def _judge_chosen(title: str, fitted: FitArtifact, rows: FitRows) -> Sentence:
    """Compare the chosen model with one that ignores the inputs."""
    best = fitted.selected
    metric = f"{_name(fitted)} {_format(best.validation_metric, fitted)}"
    constants = (fitted.get_candidate(name) for name in CONSTANT_NAMES)
    constant = next((c for c in constants if c is not None), None)
    if constant is None or constant.name == best.name:
        if constant is None:
            return Sentence(f"{title} was chosen", metric)
        advice = "no other model was better, so the inputs tell nothing; do not use these labels"
        return Sentence(f"{title} was chosen", f"{metric}; {advice}", "bad")
    guess = _format(constant.validation_metric, fitted)
    facts = f"{metric}, against {guess} for the {constant.title}{_name_rival(fitted)}"
    gap = _estimate_gap(FINAL, constant.name, fitted, rows)
    if gap.value < 0 and gap.is_significant:
        return Sentence(f"{title} was chosen", facts, "good")
    return Sentence(f"{title} was chosen, but it may be no better than guessing", facts, "bad")


def _name_rival(fitted: FitArtifact) -> str:
    """Say why a candidate with a lower error was not chosen, if there is one."""
    rival = min(fitted.candidates, key=lambda c: c.sort_key)
    if fitted.classes is None or rival.validation_metric >= fitted.selected.validation_metric:
        return ""
    if rival.validation_cost < fitted.selected.validation_cost:
        return (
            f"; {rival.title} at {_format(rival.validation_metric, fitted)} is not clearly better"
        )
    losses = f"{rival.validation_cost:.3f} against {fitted.selected.validation_cost:.3f}"
    value = _format(rival.validation_metric, fitted)
    return f"; {rival.title} has {value}, but a higher loss ({losses})"


def _judge_unlabeled(fitted: FitArtifact, rows: FitRows) -> Sentence | None:
    """Compare the best model of the labels alone with the best one of the unlabelled rows too."""
    alone = _find_best([c for c in fitted.candidates if c.level == 0], fitted)
    together = _find_best([c for c in fitted.candidates if c.level > 0], fitted)
    if alone is None or together is None:
        return None
    facts = ", ".join(_describe_candidate(c, fitted) for c in (together, alone))
    if fitted.selected.level == 0:
        return Sentence("The unlabelled rows were not needed", facts)
    return Sentence("The unlabelled rows helped", facts, "good")


def _describe_candidate(candidate: Candidate, fitted: FitArtifact) -> str:
    """Name a candidate with its metric, and for classes with the loss that decides."""
    text = f"{candidate.title} {_format(candidate.validation_metric, fitted)}"
    return text if fitted.classes is None else f"{text} (loss {candidate.validation_cost:.3f})"


def _find_best(candidates: list[Candidate], fitted: FitArtifact) -> Candidate | None:
    """Return the selected one if it is among them, else the best by its metric."""
    known = [c for c in candidates if math.isfinite(c.validation_metric)]
    selected = [c for c in known if c.name == fitted.selected_name]
    return selected[0] if selected else min(known, key=lambda c: c.sort_key, default=None)


def _estimate_gap(ours: str, theirs: str, fitted: FitArtifact, rows: FitRows) -> Estimate:
    mask = mask_known_labels(fitted, rows, "validation")
    errors = [compute_row_errors(fitted, rows, name, mask) for name in (ours, theirs)]
    is_known = np.isfinite(errors[1])
    is_classification = fitted.classes is not None
    first, second = (values[is_known] for values in errors)
    return estimate_difference(first, second, is_classification=is_classification)


def _name(fitted: FitArtifact) -> str:
    return fitted.metric_name.partition(" (")[0]


def _format(value: float, fitted: FitArtifact) -> str:
    unit = " %" if fitted.classes is not None else ""
    return format_metric(value, fitted.metric_name) + unit
