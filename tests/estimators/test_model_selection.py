"""Folds of labelled rows for scikit-learn's own cross-validation."""

import numpy as np
import pytest

from l2i import InputError, LabeledKFold
from l2i.estimators.model_selection import _make_kfold


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


def test_minus_one_is_a_number_among_measurements():
    y = np.array([-1.0, 0, 1, 2, 3, 4, 5, -1, np.nan, np.nan])
    tested = np.concatenate([test for _, test in LabeledKFold(4, random_state=0).split(y, y)])
    assert sorted(tested.tolist()) == list(range(8))
    y = np.array([-1.0, 0, 1, 0, 1, 0, 1, -1, np.nan, np.nan])
    tested = np.concatenate([test for _, test in LabeledKFold(3, random_state=0).split(y, y)])
    assert sorted(tested.tolist()) == list(range(1, 7))


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
