"""Intervals cover as often as they say, and rows far from the labelled ones are told apart."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.neighbors import NearestNeighbors

from l2i.candidates import distance
from l2i.candidates.calibration import compute_interval_factors
from l2i.candidates.distance import (
    compute_stds,
    find_foreign_limit,
    fit_distance,
    scale_by_distance,
)


def test_intervals_cover_new_errors_whatever_their_distribution() -> None:
    draw = np.random.default_rng(0)
    for sample in (draw.normal, draw.standard_cauchy, draw.exponential):
        covered = []
        for _ in range(400):
            errors, new = sample(size=(29, 1)), sample(size=1000)
            factor = compute_interval_factors(errors, np.ones((29, 1)))[0]
            covered.append((np.abs(new) <= factor).mean())
        assert np.mean(covered) == pytest.approx(0.9, abs=0.015)


def test_factors_are_quantiles_of_each_target_in_its_stds() -> None:
    errors = np.arange(1.0, 20.0)[:, None] * [1.0, -10.0]
    stds = np.full((19, 2), [2.0, 5.0])
    assert_allclose(compute_interval_factors(errors, stds), [18 / 2, 180 / 5])
    few = compute_interval_factors(errors[:5], stds[:5])
    assert_allclose(few, [5 / 2, 50 / 5])  # the largest one seen


def test_distances_are_means_over_the_nearest_other_rows() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    new = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    found, among = fit_distance(x, 0)
    nearest = NearestNeighbors(n_neighbors=4).fit(x)
    own = nearest.kneighbors(x)[0][:, 1:].mean(axis=1)
    other = nearest.kneighbors(new)[0][:, :3].mean(axis=1)
    assert_allclose(among, own / np.median(own), rtol=1e-4)
    assert_allclose(found.measure(new), other / np.median(own), rtol=1e-4)
    assert float(torch.as_tensor(np.median(among))) == pytest.approx(1.0)


def test_many_rows_are_compared_with_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "MAX_REFERENCE_ROWS", 50)
    x = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    found, among = fit_distance(x, 0)
    assert len(found.rows) == 50 and len(among) == 500
    assert (among > 0).all()


def test_rows_beyond_all_labelled_ones_are_foreign() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 3)).astype(np.float32)
    found, among = fit_distance(x, 0)
    limit = find_foreign_limit(among)
    alike = draw.normal(size=(1000, 3)).astype(np.float32)
    assert (found.measure(alike) > limit).mean() < 0.01
    assert (found.measure(alike + 12) > limit).all()
    assert find_foreign_limit(among[:9]) == np.inf


def test_stds_grow_with_the_distance_only_where_errors_do() -> None:
    draw = np.random.default_rng(0)
    relative = draw.exponential(size=400)
    flat = draw.normal(size=(400, 1))
    growing = flat * (0.5 + 0.5 * relative[:, None])
    assert (scale_by_distance(flat, relative) == 1).all()
    assert_allclose(
        scale_by_distance(growing, relative)[relative < 5, 0], 0.5 + 0.5 * relative[relative < 5]
    )
    assert_allclose(
        compute_stds([2.0, 4.0], np.array([0.0, 1, 99]), by_distance=True),
        [[1, 2], [2, 4], [6, 12]],
    )
    assert_allclose(compute_stds([2.0], np.array([0.0, 99]), by_distance=False), [[2], [2]])
