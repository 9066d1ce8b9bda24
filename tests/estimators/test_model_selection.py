"""Folds, and whether unlabelled rows help: which rows are trained on and judged."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from l2i import Augment, InputError, LabeledKFold
from l2i.config import Run, replace
from l2i.data.samples import Samples, Splits
from l2i.estimators import model_selection
from l2i.estimators.model_selection import _cross_validate, _evaluate_fold, _make_kfold

RUN = replace(
    Run(steps=2, device="cpu", threads=1),
    method="pseudo-label",
    model={"name": "mlp", "width": 8, "depth": 1},
    data={"weak": Augment(noise=0.1)},
    batch={"labeled": 8, "unlabeled": 8, "holdout": 8},
)


def splits_of(y, unlabeled=5, **changes):
    """Rows whose only feature is their number, up from 0, and unlabelled ones from 100."""
    y = torch.as_tensor(y)
    x = torch.arange(float(len(y)))[:, None]
    labeled = Samples(x, y, torch.arange(1.0, len(y) + 1).double())
    more = torch.arange(100.0, 100 + unlabeled)[:, None]
    plain = {
        "labeled": labeled,
        "unlabeled": Samples(more, y[:1].repeat(unlabeled, *[1] * (y.ndim - 1))),
        "holdout": labeled,
        "validation": Samples(x[:0], y[:0]),
        "test": Samples(x[:0], y[:0]),
        "classes": None if y.is_floating_point() else 2,
    }
    return Splits(**{**plain, **changes})


@pytest.fixture
def spied_trainers(monkeypatch):
    """The trainers of all folds; they are the real ones."""
    observed = []

    class Spy(model_selection.Trainer):
        def __init__(self, run, *, splits):
            super().__init__(run, splits=splits)
            observed.append(self)

    monkeypatch.setattr(model_selection, "Trainer", Spy)
    return observed


def rows_in(samples):
    return sorted(samples.x[:, 0].tolist())


def test_no_fold_trains_on_the_rows_that_it_is_judged_by(spied_trainers):
    y = np.arange(12) % 2
    _cross_validate(RUN, splits_of(y))
    assert len(spied_trainers) == 3
    judged = []
    for trainer in spied_trainers:
        splits = trainer.splits
        test = rows_in(splits.validation)
        assert rows_in(splits.labeled) == sorted(set(range(12)) - set(test))
        assert rows_in(splits.holdout) == rows_in(splits.labeled)
        assert rows_in(splits.unlabeled) == [100, 101, 102, 103, 104]
        assert_array_equal(splits.labeled.y, splits.labeled.x[:, 0].long() % 2)
        assert_array_equal(splits.labeled.weight, splits.labeled.x[:, 0] + 1)
        assert splits.validation.y.tolist().count(0) == 2  # stratified
        judged += test
    assert sorted(judged) == list(range(12))


def test_errors_of_a_fold_are_those_of_its_test_rows_in_their_order(spied_trainers):
    y = np.arange(30) * 7 % 3 % 2  # in no order that a network can tell
    train, test = torch.arange(15), torch.arange(15, 30).flip(0)
    errors = _evaluate_fold(RUN, splits_of(y), train, test)
    (trainer,) = spied_trainers
    predicted = trainer.predict(splits_of(y).labeled).argmax(dim=1).numpy()
    assert errors.tolist() == (predicted != y)[test].astype(float).tolist()
    assert 0 < errors.sum() < 15


def test_squared_errors_are_in_standard_deviations_of_the_fold(spied_trainers):
    y = np.arange(9.0)[:, None] * [1.0, 1000.0]
    train, test = torch.tensor([0, 1, 2, 6, 7, 8]), torch.tensor([3, 4, 5])
    run = replace(RUN, method="mean-teacher")
    errors = _evaluate_fold(run, splits_of(torch.as_tensor(y).float()), train, test)
    (trainer,) = spied_trainers
    outputs = trainer.predict(trainer.splits.validation).double().numpy()
    weights = train.numpy() + 1.0
    mean = np.average(y[train], axis=0, weights=weights)
    std = np.sqrt(np.average(np.square(y[train] - mean), axis=0, weights=weights))
    expected = np.square(outputs - (y[test] - mean) / std).mean(axis=1)
    assert_allclose(errors / errors.sum(), expected / expected.sum(), rtol=1e-3)


def test_every_error_belongs_to_its_own_row(monkeypatch):
    """A fold returns the numbers of its test rows."""

    def row_numbers(run, splits, train, test):
        assert not set(train.tolist()) & set(test.tolist())
        return splits.labeled.x[test, 0].double().numpy()

    monkeypatch.setattr(model_selection, "_evaluate_fold", row_numbers)
    errors = _cross_validate(RUN, splits_of(np.arange(15) % 2))
    assert errors.tolist() == list(range(15))


@pytest.mark.parametrize(
    ("alone", "together", "helped"), [(0.0, 1.0, False), (1.0, 0.0, True), (0.5, 0.5, True)]
)
def test_the_labels_alone_are_chosen_only_where_they_are_better(
    alone, together, helped, monkeypatch
):
    asked = {}

    def errors_of(run, splits):
        asked[run.method.name] = run
        return np.full(20, alone if run.method.name == "supervised" else together)

    monkeypatch.setattr(model_selection, "_cross_validate", errors_of)
    run = replace(RUN, steps=900)
    actual, means = model_selection.compare_with_supervised(run, splits_of(np.arange(20) % 2))
    assert actual is helped
    assert means == {"labels alone": alone, "with unlabelled rows": together}
    assert {r.steps for r in asked.values()} == {500}
    assert asked["supervised"].l2i.update == "off"
    assert asked["pseudo-label"].l2i.update == run.l2i.update != "off"
    model_selection.compare_with_supervised(replace(RUN, steps=30), splits_of(np.arange(20) % 2))
    assert {r.steps for r in asked.values()} == {30}


def test_folds_are_of_their_seed_and_unshuffled_ones_in_order():
    y = np.array([0, 1] * 6 + [-1] * 3)

    def folds(**options):
        return [test.tolist() for _, test in LabeledKFold(3, **options).split(y, y)]

    assert folds(random_state=0) == folds(random_state=0) != folds(random_state=1)
    assert folds(shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert LabeledKFold(3).get_n_splits() == 3 and LabeledKFold().n_splits == 5


def test_training_rows_of_a_fold_are_sorted_and_whole():
    y = np.array([-1, 0, 1, 0, -1, 1, 0, 1])
    for train, test in LabeledKFold(3, random_state=0).split(y, y):
        assert train.tolist() == sorted(set(range(8)) - set(test.tolist()))
        assert {0, 4} <= set(train.tolist()) and (y[test] >= 0).all()


def test_whole_numbers_with_few_repetitions_are_measurements():
    name = type(_make_kfold(np.arange(20) // 2, 3, shuffle=False, random_state=None)).__name__
    assert name == "StratifiedKFold"  # ten values, each twice
    name = type(_make_kfold(np.arange(19) // 2, 3, shuffle=False, random_state=None)).__name__
    assert name == "KFold"
    words = np.array(["a", "b"] * 5, dtype=object)
    assert type(_make_kfold(words, 3, shuffle=False, random_state=None)).__name__ == (
        "StratifiedKFold"
    )
    measured = np.linspace(0, 1, 20)
    assert type(_make_kfold(measured, 3, shuffle=False, random_state=None)).__name__ == "KFold"


def test_as_many_folds_as_labelled_rows_are_possible_and_more_are_not():
    y = np.array([0, 1, 0, 1, -1])
    assert len(list(LabeledKFold(2, random_state=0).split(y, y))) == 2
    targets = np.array([0.5, 1.5, 2.5, np.nan])
    assert len(list(LabeledKFold(3, random_state=0).split(targets, targets))) == 3
    with pytest.raises(InputError, match="3 labelled rows are too few for 4 folds"):
        next(LabeledKFold(4).split(targets, targets))
    with pytest.raises(InputError, match="needs y"):
        next(LabeledKFold(2).split(y))
