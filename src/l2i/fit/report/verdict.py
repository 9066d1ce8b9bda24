"""The verdict: on the networks of a fit, or on the model chosen for a table."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import softmax

from l2i.fit.artifact import FINAL, Candidate, FitArtifact, FitRows, Floats, Mask
from l2i.fit.formatting import format_metric, format_percent, pluralize
from l2i.fit.report.comparison import (
    MIN_ROWS_FOR_CLASSES,
    MIN_STANDARD_ERRORS,
    Estimate,
    Sentence,
    Verdict,
    build_network_verdict,
    compute_row_errors,
    compute_standard_error,
    estimate_metric,
    get_groups,
    mask_known_labels,
)
from l2i.fit.table_metric import weigh_classes

MAX_CHANCE = 0.05  # of a limit on the error that is exceeded
CONSTANT_NAMES = ("majority", "mean")
MAX_SHIFT_AUC = 0.7  # ROC AUC, beyond which unlabelled rows differ from labelled ones
MAX_CLASS_RATIO = 3.0  # largest class / smallest, beyond which classes are imbalanced


def build_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """Return what to tell of the models that were compared."""
    if fitted.model is None:
        return build_network_verdict(fitted, rows)
    return build_table_verdict(fitted, rows)


def build_table_verdict(fitted: FitArtifact, rows: FitRows) -> Verdict:
    """Say how good the chosen model is, what the unlabelled rows did, and how that was measured."""
    best = fitted.selected
    title = _capitalize(best.title)
    if not fitted.num_folds:
        return Verdict([_describe_untested(title)], "", [])
    sentences = [_judge_chosen(title, fitted, rows), _judge_unlabeled(fitted, rows)]
    expected = estimate_final(fitted, rows)
    how = "measured by cross-validation, with the model chosen by the other rows each time"
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


def _describe_untested(title: str) -> Sentence:
    return Sentence(f"{title} was fitted, untested", "there are too few labels to test it", "bad")


def _describe_expected(expected: Estimate, fitted: FitArtifact, rows: FitRows) -> str:
    """Describe the metric on new rows; of imbalanced classes, their mean error too."""
    article = "a" if fitted.is_balanced else "an"
    text = f"{article} {_name(fitted)} of {_format(expected.value, fitted)}"
    if fitted.classes is not None and expected.value == 0:
        mask = mask_known_labels(fitted, rows, "validation")
        most = 1 - MAX_CHANCE ** (1 / _count_units(rows, mask))
        limit = f"with 95 % confidence at most {format_percent(most)}"
        return f"{text} (none of {pluralize(expected.num_rows, 'row')} was wrong; {limit})"
    text = f"{text} ± {_format(expected.standard_error, fitted)}"
    if fitted.classes is None or fitted.is_balanced:
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
    is_wrong = rows.outputs[name][mask].argmax(axis=1) != rows.given_labels[mask]
    return float(100 * (is_wrong * weigh_classes(rows.given_labels[mask])).mean())


def estimate_final(fitted: FitArtifact, rows: FitRows) -> Estimate:
    """Estimate the metric of the whole procedure, choice included, on rows it had not seen."""
    mask = mask_known_labels(fitted, rows, "validation")
    errors, groups = compute_row_errors(fitted, rows, FINAL, mask), get_groups(rows, mask)
    return estimate_metric(errors, is_classification=fitted.classes is not None, groups=groups)


def find_doubt(fitted: FitArtifact, rows: FitRows) -> str | None:
    """Return why the labels of a table's model should not be used, if there is a reason."""
    if fitted.model is None:
        return None
    title = _capitalize(fitted.selected.title)
    sentence = _judge_chosen(title, fitted, rows) if fitted.num_folds else _describe_untested(title)
    return f"{sentence.claim}: {sentence.facts}" if sentence.tone == "bad" else None


def _capitalize(title: str) -> str:
    return title[0].upper() + title[1:]


def _judge_chosen(title: str, fitted: FitArtifact, rows: FitRows) -> Sentence:
    """Compare the chosen model with one that ignores the inputs."""
    best = fitted.selected
    metric = f"{_name(fitted)} {_format(best.validation_metric, fitted)}"
    constants = (fitted.get_candidate(name) for name in CONSTANT_NAMES)
    constant = next((c for c in constants if c is not None), None)
    if constant is None:
        return Sentence(f"{title} was chosen", metric)
    if constant.name == best.name:
        reason = "no other model was clearly better, so the inputs seem to tell nothing"
        return Sentence(f"{title} was chosen", f"{metric}; {reason}", "bad")
    guess = _format(constant.validation_metric, fitted)
    facts = f"{metric}, against {guess} for the {constant.title}{_name_rival(fitted)}"
    if _is_clearly_better(FINAL, constant.name, fitted, rows):
        return Sentence(f"{title} was chosen", facts, "good")
    return Sentence(f"{title} was chosen, but it may be no better than guessing", facts, "bad")


def _is_clearly_better(ours: str, theirs: str, fitted: FitArtifact, rows: FitRows) -> bool:
    """Return whether the mean loss is lower by two standard errors, paired by row or group."""
    mask = mask_known_labels(fitted, rows, "validation")
    gaps = _compute_losses(theirs, fitted, rows, mask) - _compute_losses(ours, fitted, rows, mask)
    error = compute_standard_error(gaps, get_groups(rows, mask))
    is_known = _count_units(rows, mask) >= MIN_ROWS_FOR_CLASSES
    return bool(is_known and gaps.mean() > MIN_STANDARD_ERRORS * error)


def _count_units(rows: FitRows, mask: Mask) -> int:
    """Return the number of rows, or of groups of them that err together."""
    groups = get_groups(rows, mask)
    return int(mask.sum()) if groups is None else len(np.unique(groups))


def _compute_losses(name: str, fitted: FitArtifact, rows: FitRows, mask: Mask) -> Floats:
    """Return each row's loss, by which candidates are compared: errors and Brier scores."""
    errors = compute_row_errors(fitted, rows, name, mask)
    if fitted.classes is None:
        return errors
    labels = rows.given_labels[mask]
    probability = softmax(rows.outputs[name][mask].astype(np.float64), axis=1)
    brier = np.square(probability - np.eye(len(fitted.classes))[labels]).sum(axis=1)
    return np.asarray(errors + brier * (weigh_classes(labels) if fitted.is_balanced else 1.0))


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
    if alone is None or together is None or fitted.selected_name in CONSTANT_NAMES:
        return None
    facts = ", ".join(_describe_candidate(c, fitted) for c in (together, alone))
    if fitted.selected.level > 0:
        return Sentence("The unlabelled rows seem to help", facts, "good")
    if together.validation_cost < alone.validation_cost:
        return Sentence("The unlabelled rows did not clearly help", facts)
    return Sentence("The unlabelled rows were not needed", facts)


def _describe_candidate(candidate: Candidate, fitted: FitArtifact) -> str:
    """Name a candidate with its metric, and for classes with the loss that decides."""
    text = f"{candidate.title} {_format(candidate.validation_metric, fitted)}"
    return text if fitted.classes is None else f"{text} (loss {candidate.validation_cost:.3f})"


def _find_best(candidates: list[Candidate], fitted: FitArtifact) -> Candidate | None:
    """Return the selected one if it is among them, else the one of the lowest loss."""
    known = [c for c in candidates if math.isfinite(c.validation_cost)]
    selected = [c for c in known if c.name == fitted.selected_name]
    return selected[0] if selected else min(known, key=lambda c: c.validation_cost, default=None)


def _name(fitted: FitArtifact) -> str:
    return fitted.metric_name.partition(" (")[0]


def _format(value: float, fitted: FitArtifact) -> str:
    unit = " %" if fitted.classes is not None else ""
    return format_metric(value, fitted.metric_name) + unit
