"""Labels, given and imputed, and as a table, against oracles."""

from __future__ import annotations

import numpy as np
import pytest
from fits import fitted_like, rows_of
from scipy.special import softmax

from l2i import InputError
from l2i.fit.impute import (
    impute,
    make_imputed_frame,
    make_label_columns,
    round_targets,
    to_class_array,
)
from l2i.fit.readers.images import points_to_square


def test_labels_that_were_given_stay_and_others_are_the_likeliest_class() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 3
    given = np.where(np.arange(50) % 2, -1, np.arange(50) % 3)
    rows = rows_of(given, logits)
    actual = impute(fitted_like(temperature=2.0), rows, threshold=0.6)
    blank = given < 0
    likely = softmax(logits.astype(np.float64) / 2.0, axis=1)
    assert (actual.labels == np.where(blank, logits.argmax(axis=1), given)).all()
    assert (actual.is_imputed == blank).all()
    np.testing.assert_allclose(actual.confidence, np.where(blank, likely.max(axis=1), 1.0))
    assert (actual.abstain == (blank & (likely.max(axis=1) < 0.6))).all()
    assert actual.abstain.any() and (blank & ~actual.abstain).any()


def test_targets_that_were_given_have_no_spread_and_vague_ones_are_abstained_from() -> None:
    draw = np.random.default_rng(0)
    values, spread = (
        draw.normal(size=(40, 2)) * [1, 1000],
        draw.uniform(0.1, 1, size=(40, 2)) * [1, 1000],
    )
    given = np.where(np.arange(40)[:, None] < 10, values + 5, np.nan)
    rows = rows_of(given, values.astype(np.float32), spread.astype(np.float32))
    fitted = fitted_like(classes=None, targets=("u", "v"), std_scale=2.0, target_std=(1.0, 1000.0))
    actual = impute(fitted, rows, threshold=1.5)
    assert (actual.labels[:10] == given[:10]).all()
    np.testing.assert_allclose(
        actual.labels[10:] / [1, 1000], values[10:] / [1, 1000], atol=1e-5
    )  # six digits of a spread
    assert actual.predictive_std is not None and (actual.predictive_std[:10] == 0).all()
    np.testing.assert_allclose(actual.predictive_std[10:], 2 * spread[10:], rtol=1e-6)
    vague = (2 * spread / [1, 1000]).max(axis=1) > 1.5
    assert (actual.abstain == (vague & (np.arange(40) >= 10))).all()
    assert actual.abstain.any()


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match="must be a probability"):
        impute(
            fitted_like(), rows_of(np.array([0, -1]), np.zeros((2, 3), dtype=np.float32)), threshold
        )


@pytest.mark.parametrize("threshold", [-0.1, float("nan")])
def test_a_threshold_that_is_no_spread_is_refused(threshold: float) -> None:
    nothing = np.zeros((2, 1), dtype=np.float32)
    fitted = fitted_like(classes=None, targets=("u",), target_std=(1.0,))
    with pytest.raises(InputError, match="must be a standard deviation"):
        impute(fitted, rows_of(nothing.astype(np.float64), nothing, nothing), threshold)


def test_numbers_are_rounded_to_the_digits_that_count() -> None:
    raw = np.array([[1234567.8912, -0.000123456789], [0.0, 1e300]])
    assert round_targets(raw, (2000.0, 5e-4)).tolist() == [[1234567.89, -0.000123457], [0.0, 1e300]]


def test_a_target_named_like_a_column_of_ours_keeps_its_labels() -> None:
    rows = rows_of(np.array([0, -1]), np.eye(2, 3, dtype=np.float32))
    for name in ("id", "source", "confidence", "abstain", "changes"):
        fitted = fitted_like(targets=(name,))
        frame = make_imputed_frame(fitted, rows, impute(fitted, rows))
        assert frame[f"{name}_label"].tolist() == ["a", "b"]
        assert list(frame.columns) == [
            "id",
            f"{name}_label",
            "source",
            "confidence",
            "abstain",
            "changes",
        ]
        assert frame["source"].tolist() == ["given", "imputed"]


def test_classes_that_are_whole_numbers_are_written_as_such() -> None:
    assert to_class_array(("-1", "0", "12")).tolist() == [-1, 0, 12]
    assert to_class_array(("1", "02")).tolist() == ["1", "02"]
    assert to_class_array(("1", "9" * 30)).tolist() == ["1", "9" * 30]
    assert to_class_array(("1", "x")).tolist() == ["1", "x"]


def test_points_come_back_to_the_pixels_that_were_given() -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(30, 400, size=(200, 2))
    points = (draw.random((200, 2, 2)) * sizes[:, None]).round(1).reshape(200, 4)
    fitted = fitted_like(
        classes=None, targets=("a", "b", "c", "d"), has_landmarks=True, shape=(1, 60, 60)
    )
    square = points_to_square(points, sizes, 60)
    actual = make_label_columns(fitted, square, np.full((200, 4), 6.0), sizes)
    assert (np.stack([actual[name] for name in "abcd"], axis=1) == points).all()
    np.testing.assert_allclose(actual["a_spread"], 6.0 * sizes[:, 0] / 60, atol=1e-6)
    np.testing.assert_allclose(actual["d_spread"], 6.0 * sizes[:, 1] / 60, atol=1e-6)
