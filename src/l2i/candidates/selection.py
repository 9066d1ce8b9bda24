"""Choose a candidate by cross-validation over all labelled rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn

from l2i.candidates.base import Candidate, Floats, Level, Progress, Score, Skipped, TableRows
from l2i.candidates.cross_validation import Fold, draw_folds, fit_average, predict_out_of_fold
from l2i.candidates.network import Network
from l2i.candidates.predictors import average_outputs
from l2i.candidates.semi_supervised import Imputing
from l2i.errors import DamagedFile, InputError, NonFiniteCost

NUM_AVERAGED = 3
DEFAULT_ERRORS = 2.0  # standard errors by which another candidate must be better than a default
NOT_IN_TIME = "it would take longer than the time left"
AVERAGE_NAME = "average"
CONSTANTS = ("majority", "mean")  # which ignore the inputs: never averaged with others
ROUNDING_SLACK = 1 + 1e-9  # a difference in one row is one standard error, up to rounding


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The candidates' scores and the chosen ones, whose outputs are averaged."""

    rows: TableRows
    folds: list[list[Fold]]
    scores: dict[str, Score]
    skipped: tuple[Skipped, ...]
    chosen: tuple[str, ...]
    seed: int = field(default=0)
    default: tuple[str, ...] = ()
    """Candidates whose average is chosen unless another one is clearly better."""

    @property
    def name(self) -> str:
        return self.chosen[0] if len(self.chosen) == 1 else AVERAGE_NAME

    @property
    def title(self) -> str:
        titles = [self.scores[name].candidate.title for name in self.chosen]
        return (
            titles[0]
            if len(titles) == 1
            else f"average of {', '.join(titles[:-1])} and {titles[-1]}"
        )

    @property
    def level(self) -> Level:
        return max(self.scores[name].candidate.level for name in self.chosen)

    @property
    def repeated_outputs(self) -> Floats:
        """Return the chosen outputs [R, N, C] of every labelled row, out of each repeat's folds."""
        return _average(self.rows, [self.scores[name].outputs for name in self.chosen])

    @property
    def outputs(self) -> Floats:
        """Return the chosen outputs [N, C] of every labelled row, out of fold."""
        first: Floats = self.repeated_outputs[0]
        return first

    @property
    def loss(self) -> float:
        """Return the mean loss of what was chosen, by which it was chosen; NaN without folds."""
        if not self.folds:
            return float("nan")
        repeats = self.repeated_outputs
        losses = np.mean([compute_losses(self.rows, values) for values in repeats], axis=0)
        return float(np.average(losses, weights=self.rows.weight))

    def compute_errors(self) -> dict[str, float]:
        """Return the share of wrong classes of each candidate, or its mean squared error."""
        scores = self.scores if self.folds else {}
        return {name: self._compute_error(score) for name, score in scores.items()}

    def _compute_error(self, score: Score) -> float:
        if self.rows.num_classes is None:
            return score.loss
        is_wrong = (score.outputs.argmax(axis=2) != self.rows.y).mean(axis=0)
        return float(np.average(is_wrong, weights=self.rows.weight))

    def fit(self) -> nn.Module:
        """Fit what was chosen to all labels."""
        candidates = [self.scores[name].candidate for name in self.chosen]
        return fit_average(candidates, self.rows, self.seed)

    def estimate_outputs(self) -> Floats:
        """Return outputs [N, C] by the choice that the other folds make, for each fold.

        The errors of the chosen candidate are too low, as it was chosen for them; these are not.
        Without folds nothing is known: zeros.
        """
        if not self.folds:
            return np.zeros((len(self.rows.x), self.rows.num_outputs))
        outputs = self.outputs.copy()
        for _, test in self.folds[0]:
            others = np.setdiff1d(np.arange(len(outputs)), test)
            names = choose(self.scores, self.rows, others, self.default)
            parts = [self.scores[name].outputs for name in names]
            outputs[test] = _average(self.rows, parts)[0][test]
        return outputs


def compute_losses(rows: TableRows, outputs: Floats) -> Floats:
    """Return each row's loss, [N]: 0/1 error plus Brier score, or squared error of targets."""
    if rows.num_classes is None:
        return np.asarray(np.square(outputs - rows.y).mean(axis=1))
    probability, truth = softmax(outputs, axis=1), np.eye(rows.num_classes)[rows.y]
    error = probability.argmax(axis=1) != rows.y
    return np.asarray(error + np.square(probability - truth).sum(axis=1))


class Recorded(NamedTuple):
    """The outputs of a candidate that was scored before, and how long that took."""

    outputs: Floats
    seconds: float


class Record(Protocol):
    """Keeps what was scored or skipped, so that an interrupted choice resumes where it was."""

    def load(self, name: str) -> Recorded | Skipped | None:
        """Return what was saved of a candidate, if anything."""

    def save(self, event: Score | Skipped) -> None:
        """Save a candidate's outputs and seconds, or why it was skipped."""


class NoRecord:
    """Keep nothing."""

    def load(self, name: str) -> Recorded | Skipped | None:
        return None

    def save(self, event: Score | Skipped) -> None:
        pass


def make_score(candidate: Candidate, rows: TableRows, recorded: Recorded) -> Score:
    """Return the losses of a candidate's outputs [R, N, C]."""
    outputs, seconds = recorded
    if not len(outputs):
        return Score(candidate, outputs, np.zeros(len(rows.x)), seconds, 0.0)
    losses = np.mean([compute_losses(rows, values) for values in outputs], axis=0)
    return Score(
        candidate, outputs, losses, seconds, float(np.average(losses, weights=rows.weight))
    )


def cross_validate(
    candidate: Candidate,
    rows: TableRows,
    folds: list[list[Fold]],
    seed: int,
    clock: Callable[[], float],
) -> Recorded:
    """Return a candidate's outputs out of fold; of a network, which is slow, without repeats."""
    start = clock()
    if not folds:
        return Recorded(np.zeros((0, len(rows.x), rows.num_outputs)), 0.0)
    repeats = folds[:1] if isinstance(candidate, Network) else folds
    outputs = [predict_out_of_fold(candidate, rows, repeat, seed) for repeat in repeats]
    return Recorded(np.stack(outputs), clock() - start)


def select_candidate(
    candidates: Sequence[Candidate],
    rows: TableRows,
    seed: int,
    *,
    minutes: float | None = None,
    notify: Callable[[Progress], None] = lambda progress: None,
    record: Record | None = None,
    clock: Callable[[], float] = time.monotonic,
    default: tuple[str, ...] = (),
) -> Selection:
    """Score the candidates, as many as are begun within `minutes`, and choose among them.

    The first is always scored. With too few labels for folds, the choice is the second, which
    is the plainest model that looks at the inputs.
    """
    folds, record = draw_folds(rows, seed), record or NoRecord()
    scores: dict[str, Score] = {}
    skipped: list[Skipped] = []
    seconds = 0.0
    for number, listed in enumerate(candidates, 1):
        candidate = _adapt(listed, scores)
        known = record.load(candidate.name)
        event: Score | Skipped
        if known is None:
            event = _score_or_skip(candidate, rows, folds, seed, scores, minutes, seconds, clock)
            record.save(event)
        else:
            event = _restore(known, candidate, rows, folds)
        if isinstance(event, Score):
            scores[candidate.name] = event
        else:
            skipped.append(event)
        seconds += event.seconds
        notify(Progress(event, candidate.title, number, len(candidates), seconds))
        if not folds and len(scores) == 2:
            break
    return _make_selection(rows, folds, scores, skipped, seed, default)


def _make_selection(
    rows: TableRows,
    folds: list[list[Fold]],
    scores: dict[str, Score],
    skipped: Sequence[Skipped],
    seed: int,
    default: tuple[str, ...],
) -> Selection:
    """Choose among what was scored; the last one if there are no folds."""
    all_rows = np.arange(len(rows.x))
    chosen = choose(scores, rows, all_rows, default) if folds else tuple(scores)[-1:]
    return Selection(
        rows=rows,
        folds=folds,
        scores=scores,
        skipped=tuple(skipped),
        chosen=chosen,
        seed=seed,
        default=default,
    )


def _restore(
    known: Recorded | Skipped, candidate: Candidate, rows: TableRows, folds: list[list[Fold]]
) -> Score | Skipped:
    """Return what was recorded of a candidate, if it is of these rows and folds."""
    if isinstance(known, Skipped):
        return known
    repeats = min(len(folds), 1) if isinstance(candidate, Network) else len(folds)
    if known.outputs.shape != (repeats, len(rows.x), rows.num_outputs):
        raise DamagedFile(f"the record of '{candidate.name}' is damaged; remove the folder")
    return make_score(candidate, rows, known)


def _adapt(candidate: Candidate, scores: dict[str, Score]) -> Candidate:
    """Let a candidate that depends on others' scores see them."""
    return candidate.adapt(scores) if isinstance(candidate, Network | Imputing) else candidate


def _score_or_skip(
    candidate: Candidate,
    rows: TableRows,
    folds: list[list[Fold]],
    seed: int,
    scores: dict[str, Score],
    minutes: float | None,
    seconds: float,
    clock: Callable[[], float],
) -> Score | Skipped:
    reason = _find_reason_to_skip(candidate, rows, folds, scores, minutes, seconds)
    if reason is not None:
        return Skipped(candidate.name, reason)
    start = clock()
    try:
        score = make_score(candidate, rows, cross_validate(candidate, rows, folds, seed, clock))
    except NonFiniteCost:
        return Skipped(candidate.name, "its weights did not stay finite", clock() - start)
    except InputError:  # of the user's settings
        raise
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        reason = f"it could not be fitted ({' '.join(str(error).split())[:80]})"
        return Skipped(candidate.name, reason, clock() - start)
    if not np.isfinite(score.loss):
        return Skipped(candidate.name, "its predictions are not finite", score.seconds)
    return score


def _find_reason_to_skip(
    candidate: Candidate,
    rows: TableRows,
    folds: list[list[Fold]],
    scores: dict[str, Score],
    minutes: float | None,
    seconds: float,
) -> str | None:
    obstacle = candidate.find_obstacle(rows)
    if obstacle is not None or minutes is None or not scores:
        return obstacle
    num_fits = sum(map(len, folds[:1] if isinstance(candidate, Network) else folds))
    expected = candidate.expect_seconds(rows, num_fits, scores)
    if seconds + expected <= 60 * minutes:
        return None
    return "no time was left" if seconds > 60 * minutes else NOT_IN_TIME


def choose(
    scores: dict[str, Score],
    rows: TableRows,
    subset: NDArray[np.intp],
    default: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the names to average, by the losses of a subset of rows.

    It is the `default`, if all of them were scored, unless another one is clearly better.
    """
    if not default or not all(name in scores for name in default):
        return _choose_plainest(scores, rows, subset)
    weight = rows.weight[subset]
    groups = None if rows.groups is None else rows.groups[subset]
    best = min(scores, key=lambda name: np.average(scores[name].losses[subset], weights=weight))
    ours = scores[best].losses[subset]
    theirs = _compute_average_losses(rows, [scores[name] for name in default])[subset]
    is_better = _is_clearly_lower(ours, theirs, weight, groups, num_errors=DEFAULT_ERRORS)
    return (best,) if is_better else default


def _compute_average_losses(rows: TableRows, scores: list[Score]) -> Floats:
    """Return the losses [N] of the average of candidates, the mean over repeats."""
    averaged = _average(rows, [score.outputs for score in scores])
    return np.asarray(np.mean([compute_losses(rows, values) for values in averaged], axis=0))


def _choose_plainest(
    scores: dict[str, Score], rows: TableRows, subset: NDArray[np.intp]
) -> tuple[str, ...]:
    """Return the names to average, by the losses of a subset of rows; usually one name.

    It is the best of the labels alone, or the mean of the best three if that is better. One that
    learns from unlabelled rows, or imputes their labels, is chosen only if it is better by more
    than a standard error of the paired difference.
    """
    by_level = {
        level: [name for name, score in scores.items() if score.candidate.level == level]
        for level in Level
    }
    weight = rows.weight[subset]
    groups = None if rows.groups is None else rows.groups[subset]

    def mean_loss(losses: Floats) -> float:
        return float(np.average(losses[subset], weights=weight))

    chosen: tuple[str, ...] = ()
    losses = np.zeros(len(rows.x))
    for names in by_level.values():
        ranked = sorted(names, key=lambda name: mean_loss(scores[name].losses))
        if not ranked:
            continue
        best = scores[ranked[0]].losses
        if not chosen or _is_clearly_lower(best[subset], losses[subset], weight, groups):
            chosen, losses = (ranked[0],), best
        informed = [name for name in ranked if name not in CONSTANTS]
        if len(informed) >= NUM_AVERAGED and chosen == (ranked[0],):
            members = tuple(informed[:NUM_AVERAGED])
            mean_losses = _compute_average_losses(rows, [scores[name] for name in members])
            if mean_loss(mean_losses) < mean_loss(losses):
                chosen, losses = members, mean_losses
    return chosen


def _is_clearly_lower(
    ours: Floats,
    theirs: Floats,
    weight: Floats,
    groups: NDArray[Any] | None,
    num_errors: float = 1.0,
) -> bool:
    """Return whether the mean is lower by some standard errors, paired by row or group."""
    gaps = theirs - ours
    gap = float(np.average(gaps, weights=weight))
    spread = (gaps - gap) * weight / weight.sum()
    if groups is not None:  # rows of a group err together
        spread = np.bincount(np.unique(groups, return_inverse=True)[1], weights=spread)
    count = len(spread)
    if count < 2:
        return False
    error = float(np.sqrt(np.square(spread).sum() * count / (count - 1)))
    return gap > ROUNDING_SLACK * num_errors * error


def _average(rows: TableRows, outputs: list[Floats]) -> Floats:
    """Average outputs [R, N, C] over models, for the repeats that all of them have."""
    if len(outputs) == 1:
        return outputs[0]
    repeats = min(len(values) for values in outputs)
    stacked = torch.from_numpy(np.stack([values[:repeats] for values in outputs]))
    is_classifier = rows.num_classes is not None
    averaged = [average_outputs(one, is_classifier=is_classifier) for one in stacked.unbind(1)]
    return np.asarray(torch.stack(averaged).numpy())
