"""What sample weights do, and that duplicates and zeros are weights too."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from l2i import InputError, L2IClassifier, L2IRegressor
from l2i.estimators import base
from l2i.estimators.base import _merge_duplicate_rows
from l2i.estimators.validation import fit_inputs

QUICK = {"method": "pseudo-label", "steps": 3, "random_state": 0}


@pytest.fixture
def spied_splits(monkeypatch):
    """The splits that each training is given; the training itself is the real one."""
    observed = []

    class Spy(base.Trainer):
        def __init__(self, run, *, splits, model):
            observed.append(splits)
            super().__init__(run, splits=splits, model=model)

    monkeypatch.setattr(base, "Trainer", Spy)
    return observed


def test_a_class_of_fifty_times_the_weight_is_what_is_predicted_where_nothing_tells():
    """The features say nothing, so probabilities become the shares that are drawn: 50 to 1."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(16, 2)), np.arange(16) % 2
    model = L2IClassifier(steps=60, random_state=0, learning_rate=0.01)
    grid = draw.normal(size=(200, 2))
    heavy = model.fit(x, y, sample_weight=np.where(y == 1, 50.0, 1.0)).predict_proba(grid)
    assert heavy[:, 1].mean() > 0.85
    light = model.fit(x, y, sample_weight=np.where(y == 0, 50.0, 1.0)).predict_proba(grid)
    assert light[:, 1].mean() < 0.15
    assert 0.3 < model.fit(x, y).predict_proba(grid)[:, 1].mean() < 0.7


def test_a_target_of_fifty_times_the_weight_is_what_is_predicted_where_nothing_tells():
    """The least squares are at the weighted mean, 9.8 of 10; unweighted it would be 5."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(16, 2)), np.arange(16) % 2 * 10.0
    model = L2IRegressor(steps=60, random_state=0, learning_rate=0.01)
    heavy = model.fit(x, y, sample_weight=np.where(y > 0, 49.0, 1.0))
    assert 8.5 < heavy.predict(draw.normal(size=(200, 2))).mean() < 11
    assert heavy.offset_ == pytest.approx(9.8)


def test_every_row_is_handed_on_with_its_weight(spied_splits):
    """Features name their rows; standardising keeps their order."""
    x = np.arange(10.0)[:, None]
    y = np.array([0, 1, 0, 1, -1, -1, -1, -1, 0, 1])
    weight = np.arange(10.0)  # the first row has none
    L2IClassifier(**QUICK).fit(x, y, sample_weight=weight)
    (splits,) = spied_splits
    for samples, rows in ((splits.labeled, [1, 2, 3, 8, 9]), (splits.unlabeled, [4, 5, 6, 7])):
        order = samples.x[:, 0].argsort()
        assert samples.weight[order].tolist() == rows  # each row weighs its own number
        if samples is splits.labeled:
            assert samples.y[order].tolist() == y[rows].tolist()
    assert torch.equal(splits.holdout.x, splits.labeled.x)
    assert torch.equal(splits.holdout.weight, splits.labeled.weight)
    assert len(splits.validation.x) == len(splits.test.x) == 0


def test_features_are_scaled_by_weighted_means_and_deviations():
    x = np.array([[0.0, 5.0], [1.0, 5.0], [4.0, 6.0], [10.0, 7.0]])
    weight = np.array([1.0, 2.0, 3.0, 4.0])
    y = [0, 1, -1, -1]  # unlabelled rows count
    columns = L2IClassifier(**QUICK).fit(x, y, sample_weight=weight).inputs_.columns
    mean = np.average(x, axis=0, weights=weight)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    assert_allclose([c.mean for c in columns], mean)
    assert_allclose([c.std for c in columns], std)
    frame = pd.DataFrame({"n": x[:, 0], "c": ["a", "b", "a", "c"]})
    number, category = L2IClassifier(**QUICK).fit(frame, y, sample_weight=weight).inputs_.columns
    assert (number.mean, number.std) == pytest.approx((mean[0], std[0]))
    assert category.values == ("a", "b", "c")


def test_the_most_frequent_categories_are_the_heaviest():
    """There are 102, each once, so two are left out: the lightest."""
    frame = pd.DataFrame({"c": [f"c{i:03d}" for i in range(102)]})
    weight = np.where(np.isin(np.arange(102), (7, 50)), 0.5, 1.0)
    (column,) = fit_inputs(frame, weight).columns
    assert set(frame["c"]) - set(column.values) == {"c007", "c050"}


def test_equal_rows_become_one_whose_weights_are_added():
    x = np.array([[1.0], [2.0], [1.0], [1.0], [3.0]])
    y = np.array([[0], [0], [0], [1], [0]])
    indices, places, weights = _merge_duplicate_rows(x, y, np.array([1.0, 2.0, 4.0, 8.0, 0.0]))
    assert dict(zip(indices.tolist(), weights.tolist(), strict=True)) == {0: 5.0, 1: 2.0, 3: 8.0}
    assert_array_equal(x[np.append(indices, 4)[places]], x)  # every row is found again
    assert_array_equal(y[np.append(indices, 4)[places]], y)
    turned = slice(None, None, -1)
    back, _, other = _merge_duplicate_rows(
        x[turned], y[turned], np.array([0.0, 8.0, 4.0, 2.0, 1.0])
    )
    assert_array_equal(x[turned][back], x[indices])  # sorted by what rows hold, not by place
    assert_array_equal(other, weights)


def test_rows_of_a_frame_are_equal_whatever_their_index():
    frame = pd.DataFrame({"n": [1.0, 2.0, 1.0], "c": ["a", "a", "a"]}, index=[7, 8, 9])
    indices, _, weights = _merge_duplicate_rows(frame, np.zeros((3, 1)), np.array([1.0, 2.0, 4.0]))
    assert dict(zip(indices.tolist(), weights.tolist(), strict=True)) == {0: 5.0, 1: 2.0}
    turned = frame[::-1].reset_index(drop=True)
    back, _, _ = _merge_duplicate_rows(turned, np.zeros((3, 1)), np.ones(3))
    assert turned["n"][back].tolist() == frame["n"].iloc[indices].tolist()


def test_a_labelled_and_an_unlabelled_row_of_equal_features_stay_two(spied_splits):
    x = np.array([[0.0], [0.0], [1.0], [1.0]])
    L2IRegressor("mean-teacher", steps=1, random_state=0).fit(x, [0.0, np.nan, 2.0, np.nan])
    (splits,) = spied_splits
    assert (len(splits.labeled.x), len(splits.unlabeled.x)) == (2, 2)


def test_labels_of_no_weight_teach_nothing():
    x, y = np.arange(6.0)[:, None], [0, 1, 0, 1, -1, -1]
    with pytest.raises(InputError, match="every labelled row has zero sample_weight"):
        L2IClassifier(**QUICK).fit(x, y, sample_weight=[0, 0, 0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        L2IClassifier(**QUICK).fit(x, y, sample_weight=[1, 1, -1, 1, 1, 1])


def test_a_batch_is_as_large_as_the_weight_of_the_labels_says():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(50, 2)), np.where(np.arange(50) < 45, np.arange(50) % 2, -1)
    plain = L2IClassifier(**QUICK).fit(x, y)
    assert (plain.run_.batch.labeled, plain.run_.batch.unlabeled) == (45, 64)
    weight = np.where(np.arange(50) < 45, 1.2, 100.0)
    assert L2IClassifier(**QUICK).fit(x, y, sample_weight=weight).run_.batch.labeled == 54
