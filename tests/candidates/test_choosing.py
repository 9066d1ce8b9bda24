"""How a table's model is chosen: folds, losses, the plainer one, time, and what is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tables_made_up import class_rows, target_rows
from torch import nn

from l2i.candidates.base import Candidate, Level, Progress, Score, Skipped, TableRows
from l2i.candidates.cross_validation import draw_folds, predict_unlabeled
from l2i.candidates.predictors import LinearPredictor
from l2i.candidates.selection import (
    NOT_IN_TIME,
    Recorded,
    Selection,
    choose,
    compute_losses,
    make_score,
    select_candidate,
)
from l2i.errors import NonFiniteCost


@dataclass(frozen=True, kw_only=True)
class Fixed(Candidate):
    """Predicts one class; notes which rows it was fitted to."""

    name: str
    label: int = 0
    rank: Level = Level.LABELS_ONLY
    expected: float = 0.0
    diverges: bool = False
    seen: list[TableRows] = field(default_factory=list)

    @property
    def title(self) -> str:  # type: ignore[override]
        return self.name

    @property
    def level(self) -> Level:
        return self.rank

    def expect_seconds(self, rows, num_fits, scores) -> float:  # type: ignore[no-untyped-def]
        return self.expected

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        self.seen.append(rows)
        if self.diverges:
            raise NonFiniteCost("diverged")
        bias = torch.zeros(rows.num_outputs)
        bias[self.label] = 5.0
        return LinearPredictor(weight=torch.zeros(rows.x.shape[1], len(bias)), bias=bias)


def score(rows: TableRows, name: str, right: np.ndarray, level: Level = Level.LABELS_ONLY) -> Score:
    """A candidate that is right, and certain, where told."""
    truth = np.eye(rows.num_classes or 0)[rows.y]
    wrong = np.eye(rows.num_classes or 0)[(rows.y + 1) % (rows.num_classes or 1)]
    outputs = 9 * np.where(right[:, None], truth, wrong)[None]
    return make_score(Fixed(name=name, rank=level), rows, Recorded(outputs, 1.0))


def test_folds_use_every_label_once_and_are_repeated_where_labels_are_few() -> None:
    for count, repeats in ((40, 3), (100, 2), (300, 1)):
        folds = draw_folds(class_rows(count), 0)
        assert len(folds) == repeats
        for repeat in folds:
            assert_array_equal(np.sort(np.concatenate([test for _, test in repeat])), range(count))
            assert all(not set(train) & set(test) for train, test in repeat)
    first, second = (np.concatenate([t for _, t in r]) for r in draw_folds(class_rows(40), 0)[:2])
    assert not np.array_equal(first, second)
    assert draw_folds(class_rows(5), 0) == []


def test_rows_of_a_group_are_never_on_both_sides() -> None:
    for rows in (class_rows(60), target_rows(60)):
        grouped = dataclasses.replace(rows, groups=np.arange(60) // 5)
        for train, test in draw_folds(grouped, 0)[0]:
            assert not set(grouped.groups[train]) & set(grouped.groups[test])  # type: ignore[index]


def test_losses_are_errors_and_brier_scores_or_squares() -> None:
    rows = class_rows(4, classes=2)
    logits = np.log(np.array([[0.9, 0.1], [0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]))
    p = np.array([0.9, 0.1, 0.5, 0.8])[:4]  # of the true classes 0, 1, 0, 1
    wrong = np.array([0, 1, 0, 0])
    assert_allclose(compute_losses(rows, logits), wrong + 2 * (1 - p) ** 2)
    numbers = target_rows(3, targets=2)
    assert_allclose(compute_losses(numbers, numbers.y + np.array([3.0, 1.0])), 5.0)


def test_the_best_of_the_labels_alone_is_chosen() -> None:
    rows, right = class_rows(60), np.arange(60) % 10 > 0
    scores = {"bad": score(rows, "bad", ~right), "good": score(rows, "good", right)}
    assert choose(scores, rows, np.arange(60)) == ("good",)


@pytest.mark.parametrize(("more", "chosen"), [(1, "plain"), (12, "together")])
def test_unlabelled_rows_have_to_win_by_more_than_a_standard_error(more: int, chosen: str) -> None:
    rows = class_rows(60)
    right = np.arange(60) >= 20
    better = np.arange(60) >= 20 - more
    scores = {
        "plain": score(rows, "plain", right),
        "together": score(rows, "together", better, Level.SEMI_SUPERVISED),
    }
    assert choose(scores, rows, np.arange(60)) == (chosen,)


def test_models_that_err_on_other_rows_are_averaged() -> None:
    rows, third = class_rows(60), np.arange(60) // 3 % 3
    scores = {f"m{i}": score(rows, f"m{i}", third != i) for i in range(3)}
    assert sorted(choose(scores, rows, np.arange(60))) == ["m0", "m1", "m2"]


def test_the_estimate_is_by_choices_that_have_not_seen_the_rows() -> None:
    """Each of two candidates is right in one half: the choice by one half is wrong in the other."""
    rows = class_rows(60)
    folds = [[(np.arange(30, 60), np.arange(30)), (np.arange(30), np.arange(30, 60))]]
    half = np.arange(60) < 30
    scores = {"first": score(rows, "first", half), "second": score(rows, "second", ~half)}
    chosen = choose(scores, rows, np.arange(60))
    made = Selection(rows=rows, folds=folds, scores=scores, skipped=(), chosen=chosen)
    assert (made.outputs.argmax(axis=1) == rows.y).mean() == 0.5
    assert not (made.estimate_outputs().argmax(axis=1) == rows.y).any()


def test_candidates_are_fitted_to_folds_and_the_chosen_one_to_all_labels() -> None:
    rows = class_rows(100, classes=2)
    zero, one = Fixed(name="zero"), Fixed(name="one", label=1)
    selection = select_candidate([zero, one], rows, 0)
    assert {len(seen.x) for seen in zero.seen} == {80}
    assert len(zero.seen) == len(one.seen) == 10  # five folds, twice
    fitted = next(c for c in (zero, one) if c.name == selection.name)
    selection.fit()
    assert len(fitted.seen[-1].x) == 100


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def test_no_candidate_is_begun_that_would_not_end_in_time() -> None:
    rows, told = class_rows(100, classes=2), []
    clock = ticking(20.0).__next__
    slow = Fixed(name="slow", expected=15.0)
    candidates = [Fixed(name="a"), Fixed(name="b"), slow, Fixed(name="c"), Fixed(name="d")]
    selection = select_candidate(candidates, rows, 0, minutes=0.8, notify=told.append, clock=clock)
    assert list(selection.scores) == ["a", "b", "c"]  # 20 s each, of 48 s
    assert selection.skipped == (Skipped("slow", NOT_IN_TIME), Skipped("d", "no time was left"))
    assert [p.number for p in told] == [1, 2, 3, 4, 5] and {p.total for p in told} == {5}
    assert [p.seconds for p in told] == [20, 40, 40, 60, 60]


def test_the_first_is_scored_even_without_time_and_a_diverged_one_is_skipped() -> None:
    rows = class_rows(60)
    candidates = [Fixed(name="a", diverges=True), Fixed(name="b"), Fixed(name="c")]
    selection = select_candidate(candidates, rows, 0, minutes=0.0)
    assert selection.chosen == ("b",)
    reasons = {s.name: s.reason for s in selection.skipped}
    assert reasons == {"a": "its weights did not stay finite", "c": "no time was left"}


class Memory:
    def __init__(self) -> None:
        self.events: dict[str, Recorded | Skipped] = {}

    def load(self, name: str) -> Recorded | Skipped | None:
        return self.events.get(name)

    def save(self, event: Score | Skipped) -> None:
        if isinstance(event, Skipped):
            self.events[event.name] = event
        else:
            self.events[event.candidate.name] = Recorded(event.outputs, event.seconds)


def test_a_choice_resumes_with_what_was_recorded() -> None:
    rows, memory = class_rows(100, classes=2), Memory()
    names = ["a", "b", "c", "d"]

    def choose_again(told: list[Progress]) -> tuple[Selection, list[Fixed]]:
        candidates = [Fixed(name=name, label=i % 2) for i, name in enumerate(names)]
        clock = ticking(20.0).__next__
        options = {"minutes": 0.5, "notify": told.append, "record": memory, "clock": clock}
        return select_candidate(candidates, rows, 0, **options), candidates

    told: list[Progress] = []
    first, _ = choose_again(told)
    del memory.events["b"]  # as if killed while b was scored
    again: list[Progress] = []
    second, candidates = choose_again(again)
    assert [len(c.seen) for c in candidates] == [0, 10, 0, 0]
    assert second.chosen == first.chosen and second.skipped == first.skipped
    assert [p.seconds for p in again] == [p.seconds for p in told]
    assert_array_equal(second.estimate_outputs(), first.estimate_outputs())


def test_an_unlabelled_row_is_imputed_by_models_that_did_not_train_on_it() -> None:
    rows, candidate = class_rows(60, 20), Fixed(name="a", rank=Level.SEMI_SUPERVISED)
    outputs = predict_unlabeled([candidate], rows, 0, 4)
    assert outputs.shape == (20, 3)
    left_out = [
        {tuple(row) for row in rows.unlabeled.tolist()}
        - {tuple(row) for row in seen.unlabeled.tolist()}
        for seen in candidate.seen
    ]
    assert [len(rows_left) for rows_left in left_out] == [5, 5, 5, 5]
    assert len(set.union(*left_out)) == 20
