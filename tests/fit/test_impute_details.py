"""Borders, columns and roundings of imputed labels, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fits import fitted_like, rows_of

from l2i.candidates.calibration import fit_std_scale, fit_temperature
from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.impute import (
    impute,
    make_imputed_frame,
    make_label_columns,
    make_unique_name,
    round_targets,
    to_class_array,
)

TWO = ("no", "yes")


def even(count: int = 2) -> FitRows:
    """Unlabelled rows of two classes that are equally likely."""
    return rows_of(np.full(count, -1), np.zeros((count, 2), dtype=np.float32))


def regressor(**changes: object) -> FitArtifact:
    return fitted_like(
        **{"classes": None, "targets": ("u", "v"), "target_std": (1.0, 100.0), **changes}
    )


def targets_of(spread: list[list[float]]) -> FitRows:
    blank = np.full((len(spread), 2), np.nan)
    return rows_of(blank, np.zeros((len(spread), 2), dtype=np.float32), np.float32(spread))


def test_a_label_just_as_likely_as_the_threshold_is_kept() -> None:
    fitted = fitted_like(classes=TWO)
    assert not impute(fitted, even(), threshold=0.5).abstain.any()
    assert impute(fitted, even(), threshold=0.5 + 1e-9).abstain.all()


def test_a_target_just_as_vague_as_the_threshold_is_kept() -> None:
    rows = targets_of([[0.5, 10.0], [0.25, 50.0], [0.25, 50.5]])
    assert impute(regressor(), rows, threshold=0.5).abstain.tolist() == [False, False, True]


def test_a_threshold_of_one_or_of_nothing_is_a_threshold() -> None:
    fitted = fitted_like(classes=TWO)
    assert impute(fitted, even(), threshold=1.0).abstain.all()
    assert not impute(fitted, even(), threshold=0.0).abstain.any()
    certain = targets_of([[0.0, 0.0], [1e-9, 0.0]])
    assert impute(regressor(), certain, threshold=0.0).abstain.tolist() == [False, True]


def test_by_default_labels_below_nine_in_ten_are_abstained_from() -> None:
    margin = np.log([0.8999 / 0.1001, 0.9001 / 0.0999])
    logits = np.column_stack([margin, np.zeros(2)]).astype(np.float32)
    rows = rows_of(np.array([-1, -1]), logits)
    assert impute(fitted_like(classes=TWO), rows).abstain.tolist() == [True, False]


def test_by_default_targets_vaguer_than_their_own_std_are_abstained_from() -> None:
    rows = targets_of([[0.999, 0.0], [0.0, 99.9], [1.001, 0.0], [0.0, 100.1]])
    assert impute(regressor(), rows).abstain.tolist() == [False, False, True, True]


def test_the_confidence_of_a_target_is_its_largest_relative_spread_below_zero() -> None:
    rows = targets_of([[0.2, 50.0], [0.75, 50.0]])
    actual = impute(regressor(std_scale=2.0), rows)
    np.testing.assert_allclose(actual.confidence, [-1.0, -1.5], rtol=1e-6)
    assert actual.predictive_std is not None
    np.testing.assert_allclose(actual.predictive_std, [[0.4, 100.0], [1.5, 100.0]], rtol=1e-6)


def test_a_temperature_divides_the_logits_of_the_selected_candidate() -> None:
    """Logits ln 16 and 0 at temperature 2 are odds of 4 to 1; another candidate says otherwise."""
    logits = np.array([[np.log(16), 0.0]], dtype=np.float32)
    rows = rows_of(np.array([-1]), logits)
    rows = dataclasses.replace(rows, outputs={"baseline": -logits, **rows.outputs})
    actual = impute(fitted_like(classes=TWO, temperature=2.0), rows)
    assert (actual.labels.tolist(), actual.confidence[0]) == ([0], pytest.approx(0.8))


def test_a_given_label_is_kept_even_where_the_model_is_sure_of_another() -> None:
    logits = np.array([[0.0, 50.0], [50.0, 0.0]], dtype=np.float32)
    fitted = fitted_like(classes=TWO)
    rows = rows_of(np.array([0, 1]), logits)
    actual = impute(fitted, rows)
    assert actual.labels.tolist() == [0, 1] and not actual.is_imputed.any()
    frame = make_imputed_frame(fitted, rows, actual)
    assert frame["kind"].tolist() == ["no", "yes"]
    assert frame["confidence"].tolist() == [1.0, 1.0] and frame["changes"].tolist() == [0, 0]


def test_labels_of_a_table_of_classes_are_in_the_order_of_its_rows() -> None:
    given = np.array([-1, 1, -1, 0, -1])
    logits = np.log([[0.2, 0.8], [0.5, 0.5], [0.95, 0.05], [0.5, 0.5], [0.1234567, 0.8765433]])
    rows = dataclasses.replace(
        rows_of(given, logits.astype(np.float32)),
        ids=["e", "a", "d", "b", "c"],
        change_counts=np.array([3, 2, 1, 4, 5]),
    )
    fitted = fitted_like(classes=TWO)
    frame = make_imputed_frame(fitted, rows, impute(fitted, rows))
    assert frame["id"].tolist() == ["e", "a", "d", "b", "c"]
    assert frame["kind"].tolist() == ["yes", "yes", "no", "no", "yes"]
    assert frame["source"].tolist() == ["imputed", "given", "imputed", "given", "imputed"]
    assert frame["confidence"].tolist() == [0.8, 1.0, 0.95, 1.0, 0.876543]
    assert frame["abstain"].tolist() == [True, False, False, False, True]
    assert frame["changes"].tolist() == [3, 0, 1, 0, 5]


def test_a_table_of_targets_has_each_targets_value_and_spread() -> None:
    given = np.array([[1.5, 2500.123456789], [np.nan, np.nan]])
    values = np.array([[9.0, 9.0], [1.23456789, -200.123456789]])
    spread = np.array([[3.0, 3.0], [0.123456789, 20.123456789]])
    rows = rows_of(given, values, spread)  # type: ignore[arg-type]
    fitted = regressor()
    frame = make_imputed_frame(fitted, rows, impute(fitted, rows))
    columns = ["id", "u", "v", "u_spread", "v_spread", "source", "abstain", "changes"]
    assert list(frame.columns) == columns
    assert frame["u"].tolist() == [1.5, 1.23457]
    assert frame["v"].tolist() == [2500.123456789, -200.123]  # a given one keeps all its digits
    assert frame["u_spread"].tolist() == [0.0, 0.12346]
    assert frame["v_spread"].tolist() == [0.0, 20.123]


def test_targets_are_rounded_to_six_digits_of_their_std() -> None:
    assert round_targets(np.array([[1.23456789]]), (1.0,)).tolist() == [[1.23457]]
    assert round_targets(np.array([[1.23456789]]), (9.99,)).tolist() == [[1.23457]]
    assert round_targets(np.array([[1.23456789]]), (10.0,)).tolist() == [[1.2346]]
    assert round_targets(np.array([[1.23456789]]), (0.1,)).tolist() == [[1.234568]]
    assert round_targets(np.array([[123456789.0]]), (1e8,)).tolist() == [[123457000.0]]


def test_plain_targets_of_images_are_not_taken_for_pixels() -> None:
    fitted = regressor(shape=(1, 8, 8), has_landmarks=False)
    sizes = np.array([[80, 40]])
    columns = make_label_columns(fitted, np.array([[1.0, 2.0]]), None, sizes)
    assert {name: values.tolist() for name, values in columns.items()} == {"u": [1.0], "v": [2.0]}


def test_points_go_back_to_an_image_as_wide_and_high_as_it_was() -> None:
    """An image of 80 × 40 was squeezed into 8 × 8."""
    fitted = regressor(shape=(1, 8, 8), has_landmarks=True)
    sizes = np.array([[80, 40]])
    columns = make_label_columns(fitted, np.array([[1.0, 2.0]]), np.array([[0.1, 0.1]]), sizes)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "u": [10.0],
        "v": [10.0],
        "u_spread": [1.0],
        "v_spread": [0.5],
    }


def test_names_of_new_columns_do_not_meet_others() -> None:
    assert make_unique_name("u_spread", ["u", "u_spread"]) == "u_spread_"
    assert make_unique_name("u_spread", ["u_spread", "u_spread_"]) == "u_spread__"
    assert make_unique_name("source", []) == "source_"
    assert make_unique_name("u_spread", ["u"]) == "u_spread"


def test_class_numbers_are_written_in_the_order_of_the_classes() -> None:
    assert to_class_array(("10", "9", "-3")).tolist() == [10, 9, -3]
    assert to_class_array(("-0", "1")).tolist() == ["-0", "1"]
    assert to_class_array((str(2**63 - 1), "0")).tolist() == [2**63 - 1, 0]
    assert to_class_array((str(2**63), "0")).tolist() == [str(2**63), "0"]


def test_rows_that_are_all_right_make_a_model_a_little_surer_but_not_for_long() -> None:
    """Below 1 the prior of the log temperature has a std of 1/4, above 1 one of 1."""
    logits, right = np.tile([2.0, 0.0], (5, 1)), np.zeros(5, dtype=np.int64)
    sure, wrong = fit_temperature(logits, right), fit_temperature(logits, 1 - right)
    assert 0.7 < sure < 1 and 2 < wrong < 6

    def slope(t: float, label: int) -> float:
        """The derivative of the penalised cost by the log temperature, which is 0 at the best."""
        margin = 2.0 / t
        likelihood = 5 * margin * (1 / (1 + np.exp(margin)) - label)
        return likelihood + np.log(t) / (0.25**2 if t < 1 else 1.0)

    assert slope(sure, 0) == pytest.approx(0, abs=1e-3)
    assert slope(wrong, 1) == pytest.approx(0, abs=1e-3)


def test_a_temperature_stays_within_its_bounds() -> None:
    logits = np.tile([1e4, 0.0], (500, 1))
    assert fit_temperature(logits, np.ones(500, dtype=np.int64)) == pytest.approx(20, rel=1e-3)


def test_the_scale_of_spreads_is_the_root_of_the_mean_squared_ratio() -> None:
    errors = np.array([[1.0, -40.0], [3.0, 0.0]])
    assert fit_std_scale(errors, np.array([[1.0, 10.0], [1.0, 10.0]])) == pytest.approx(
        np.sqrt((1 + 16 + 9 + 0) / 4)
    )
    assert fit_std_scale(np.zeros((3, 1)), np.ones((3, 1))) == 1e-6
