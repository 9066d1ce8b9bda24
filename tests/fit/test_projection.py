"""The projection of features: directions, whatever the scale of the features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from l2i.fit.projection import MAX_DIRECTIONS, fit_projection


def make_features(count: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, 8)) @ rng.normal(size=(8, width))
    return np.asarray(mixed + 0.1 * rng.normal(size=(count, width)) + 3, dtype=np.float32)


@pytest.mark.parametrize(("count", "width"), [(60, 20), (20, 60), (400, 300)])
def test_rows_are_the_directions_that_scikit_learns_pca_finds(count: int, width: int) -> None:
    features = make_features(count, width)
    projection = fit_projection(features, np.arange(count))
    rows = projection.project(features).double().numpy()
    size = min(MAX_DIRECTIONS, count - 1, width)
    assert rows.shape == (count, size)
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    theirs = PCA(size, svd_solver="full").fit_transform(unit.astype(np.float64))
    theirs *= np.sqrt(size) / np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(rows @ rows.T, theirs @ theirs.T, atol=1e-3 * size)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), np.sqrt(size), rtol=1e-5)


def test_the_scale_of_features_does_not_matter() -> None:
    features, rows = make_features(50, 30), np.arange(50)
    scale = np.random.default_rng(1).uniform(0.5, 2, 30).astype(np.float32)
    before = fit_projection(features, rows).project(features)
    after = fit_projection(features * scale, rows).project(features * scale)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)


def test_a_feature_that_never_varies_does_not_matter() -> None:
    features, rows = make_features(50, 30), np.arange(50)
    features[:, 3] = 7
    features[:, 4] = 1 + 1e-7 * np.arange(50)  # noise of rounding
    projection = fit_projection(features, rows)
    assert projection.project(features).isfinite().all()
    noisy = features.copy()
    noisy[:, 4] += 1e-6
    torch.testing.assert_close(
        projection.project(noisy), projection.project(features), rtol=1e-2, atol=1e-2
    )


def test_test_rows_decide_nothing() -> None:
    features = make_features(50, 30)
    others = np.concatenate([features, 100 * make_features(9, 30, seed=2)])
    alone, beside = fit_projection(features, np.arange(50)), fit_projection(others, np.arange(50))
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, beside.state_dict()[name])
