"""Intervals cover as often as they say, and rows far from the labelled ones are told apart."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.neighbors import NearestNeighbors

from l2i.candidates import distance
from l2i.candidates.calibration import compute_interval_factors
from l2i.candidates.distance import find_foreign, find_foreign_limit, fit_distance
from l2i.candidates.error_scale import fit_error_scale


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


def test_rows_of_a_group_are_compared_with_other_groups() -> None:
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(130), 5)
    x = np.repeat(draw.normal(size=(130, 4)), 5, axis=0) + 0.1 * draw.normal(size=(650, 4))
    x, is_labeled = x.astype(np.float32), groups < 30
    labeled, own = x[is_labeled], groups[is_labeled]
    found, among = fit_distance(labeled, 0, own)
    others = labeled[own != own[7]]
    nearest = np.sort(np.linalg.norm(others - labeled[7], axis=1))[:3].mean()
    assert among[7] * float(found.usual) == pytest.approx(nearest, rel=1e-4)
    new, groups_of_new = x[~is_labeled], groups[~is_labeled]
    assert find_foreign(found, among, labeled, new, 0, groups_of_new).mean() < 0.15
    one_group = fit_distance(labeled, 0, np.zeros(len(labeled)))
    assert_allclose(one_group[1], fit_distance(labeled, 0)[1])


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


def test_a_cluster_without_labels_is_foreign_although_it_is_near() -> None:
    """A tenth of the unlabelled rows lies three stds off: nearer than some labelled rows do."""
    draw = np.random.default_rng(0)
    labeled = draw.normal(size=(60, 4)).astype(np.float32)
    unlabeled = draw.normal(size=(500, 4)).astype(np.float32)
    found, among = fit_distance(labeled, 0)
    assert find_foreign(found, among, labeled, unlabeled, 0).mean() < 0.02
    unlabeled[:50] = 0.1 * draw.normal(size=(50, 4)) + [3.0, 0, 0, 0]
    is_foreign = find_foreign(found, among, labeled, unlabeled, 0)
    assert is_foreign[:50].mean() > 0.9 and is_foreign[50:].mean() < 0.02
    assert not (found.measure(unlabeled[:50]) > find_foreign_limit(among)).any()
    assert not find_foreign(found, among[:9], labeled[:9], unlabeled, 0).any()


def test_stds_grow_with_the_distance_only_where_errors_do() -> None:
    draw = np.random.default_rng(0)
    relative, levels = draw.exponential(size=400), np.zeros((400, 1))
    flat = draw.normal(size=(400, 1))
    growing = flat * (0.5 + 0.5 * relative[:, None])
    unit = np.array([2.0])
    assert not fit_error_scale(flat, levels, relative, unit).by_distance
    found = fit_error_scale(growing, levels, relative, unit)
    assert found.by_distance and found.slopes == (0.0,)
    assert_allclose(found.std, 2.0 * np.std(flat), rtol=0.1)
    stds = found.compute_stds(np.array([0.0, 1, 99]), np.zeros((3, 1)))
    assert_allclose(stds[:, 0] / found.std, [0.5, 1, 3])


def test_stds_grow_with_the_prediction_only_where_errors_do() -> None:
    """Errors of large predictions are larger: intervals cover them as well as small ones."""
    draw = np.random.default_rng(0)
    levels, relative = draw.normal(size=(300, 2)), np.ones(300)
    errors = draw.normal(size=(300, 2)) * np.exp(
        np.column_stack([0.6 * levels[:, 0], np.zeros(300)])
    )
    found = fit_error_scale(errors, levels, relative, np.ones(2))
    assert found.slopes[0] == pytest.approx(0.6, abs=0.15) and found.slopes[1] == 0
    stds = found.compute_stds(relative, levels)
    is_within = np.abs(errors) <= stds * found.factors
    for rows in (levels[:, 0] > 0.7, levels[:, 0] < -0.7):
        assert is_within[rows, 0].mean() == pytest.approx(0.9, abs=0.06)


def test_no_intervals_are_given_by_eight_rows() -> None:
    errors = np.ones((9, 1))
    assert len(fit_error_scale(errors, errors, errors[:, 0], np.ones(1)).factors) == 1
    assert fit_error_scale(errors[:8], errors[:8], errors[:8, 0], np.ones(1)).factors == ()
