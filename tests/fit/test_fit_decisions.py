"""Which rows a fit selects and calibrates by, and what it says about the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up import data_of, logits_of, trained_as
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from l2i.candidates.calibration import fit_std_scale, fit_temperature
from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.candidates import (
    TrainedCandidate,
    assemble_fit,
    compute_covariate_shift_auc,
    select_by_errors,
)
from l2i.fit.impute import impute

COUNTS = {"labeled": 20, "unlabeled": 40, "validation": 40, "test": 40}
SPLIT = np.repeat(list(COUNTS), list(COUNTS.values()))
TRUTH = np.arange(len(SPLIT)) % 2
GIVEN = np.where(SPLIT == "unlabeled", -1, TRUTH)
VALUES = np.column_stack([np.arange(len(SPLIT)) / 10, 1000.0 * TRUTH])
TARGETS = np.where((SPLIT == "unlabeled")[:, None], np.nan, VALUES)


def assembled(
    given: NDArray[Any], *trained: TrainedCandidate, **changes: Any
) -> tuple[FitArtifact, FitRows]:
    return assemble_fit(data_of(given, SPLIT, **changes), list(trained), (), {"path": "t.csv"})


def wrong_on(*splits: str, every: int = 1) -> NDArray[np.int64]:
    """Classes that are right but for every so many rows of some splits."""
    is_wrong = np.isin(SPLIT, splits) & (np.arange(len(SPLIT)) // 2 % every == 0)
    return np.where(is_wrong, 1 - TRUTH, TRUTH)


def regressor(name: str, outputs: NDArray[np.float64], **changes: Any) -> TrainedCandidate:
    plain = {
        "snapshots": outputs[None],
        "predictive_std": np.ones(outputs.shape, dtype=np.float32),
        "mean": (0.0, 0.0),
        "std": (1.0, 500.0),
        "metric_name": "RMSE",
    }
    return trained_as(name, outputs, **{**plain, **changes})


def off_by(amount: float, *splits: str) -> NDArray[np.float64]:
    """Targets that are off in some splits, by so many standard deviations."""
    signs = 1 - 2.0 * TRUTH[:, None]
    return VALUES + amount * signs * [1.0, 500.0] * np.isin(SPLIT, splits)[:, None]


@pytest.mark.parametrize("better", ["supervised", "baseline", "l2i"])
def test_a_classifier_is_selected_by_the_validation_rows_whatever_others_say(better: str) -> None:
    """All the others are right everywhere but there, and the better one is right there alone."""
    trained = [
        trained_as(name, logits_of(classes, 0.9))
        for name, classes in (
            (n, wrong_on("labeled", "test") if n == better else wrong_on("validation"))
            for n in ("supervised", "baseline", "l2i")
        )
    ]
    fitted, _ = assembled(GIVEN, *trained)
    assert fitted.selected_name == better
    assert [c.name for c in fitted.candidates] == ["supervised", "baseline", "l2i"]


@pytest.mark.parametrize("better", ["supervised", "l2i"])
@pytest.mark.parametrize("amount", [2.0, -2.0])
def test_a_regressor_is_selected_by_the_validation_rows_whatever_others_say(
    better: str, amount: float
) -> None:
    trained = [
        regressor(n, off_by(amount, *(("labeled", "test") if n == better else ("validation",))))
        for n in ("supervised", "l2i")
    ]
    assert assembled(TARGETS, *trained)[0].selected_name == better


def test_targets_of_any_unit_count_alike_in_the_selection() -> None:
    """One is off by half a std of the second target, 250; the other by 2 stds of the first, 2."""
    is_validation = (SPLIT == "validation")[:, None]
    second_off = VALUES + is_validation * [0.0, 250.0]
    first_off = VALUES + is_validation * [2.0, 0.0]
    fitted, _ = assembled(TARGETS, regressor("supervised", second_off), regressor("l2i", first_off))
    assert fitted.selected_name == "supervised"


def test_a_gap_of_one_standard_error_does_not_decide_and_a_larger_one_does() -> None:
    """Of 40 rows one is wrong: the mean gap, 1/40, is one standard error."""
    one, four = np.eye(40)[0], np.eye(40)[:4].sum(axis=0)
    assert select_by_errors({"supervised": np.zeros(40), "l2i": one}) == "l2i"
    assert select_by_errors({"supervised": np.zeros(40), "l2i": four}) == "supervised"
    assert select_by_errors({"supervised": np.ones(2), "baseline": np.zeros(2)}) == "baseline"


def test_the_temperature_is_fitted_on_the_validation_rows_of_the_selected_model() -> None:
    """It is sure and right everywhere but on half of the validation rows; another is never sure."""
    outputs = logits_of(wrong_on("validation", every=2), 0.99)
    other = logits_of(wrong_on("validation"), 0.6)
    fitted, _ = assembled(GIVEN, trained_as("supervised", other), trained_as("l2i", outputs))
    mask = SPLIT == "validation"
    logits, labels = outputs[mask].astype(np.float64), TRUTH[mask]

    def cost(log_t: float) -> float:
        chosen = log_softmax(logits / np.exp(log_t), axis=1)[np.arange(len(labels)), labels]
        return float(-chosen.sum() + 0.5 * log_t**2)  # above 1 the prior's std is 1

    best = np.exp(minimize_scalar(cost, bounds=(0, 3), method="bounded").x)
    assert fitted.temperature == pytest.approx(best, rel=1e-3)
    assert fitted.temperature > 3 > 1 > fit_temperature(outputs[SPLIT == "test"], TRUTH[:40])
    assert fitted.std_scale == 1


def test_confidences_of_imputed_labels_are_those_of_the_calibrated_logits() -> None:
    """Half of the validation rows are wrong, so a 99 % sure label is no longer sure."""
    outputs = logits_of(wrong_on("validation", every=2), 0.99)
    fitted, rows = assembled(GIVEN, trained_as("l2i", outputs))
    imputed = impute(fitted, rows)
    margin = np.log(0.99 / 0.01) / fitted.temperature
    blank = SPLIT == "unlabeled"
    np.testing.assert_allclose(imputed.confidence[blank], 1 / (1 + np.exp(-margin)), rtol=1e-5)
    assert imputed.abstain[blank].all() and not imputed.abstain[~blank].any()
    assert (imputed.confidence[~blank] == 1).all()


def test_spreads_are_scaled_by_the_errors_on_the_validation_rows_alone() -> None:
    """Errors there are 3 spreads in the one target and 1 in the other: sqrt((9 + 1) / 2)."""
    is_validation = (SPLIT == "validation")[:, None]
    outputs = VALUES + np.where(is_validation, [3.0, -50.0], [100.0, 9.0])
    spread = np.where(is_validation, [1.0, 50.0], [7.0, 7.0]).astype(np.float32)
    fitted, rows = assembled(TARGETS, regressor("l2i", outputs, predictive_std=spread))
    assert fitted.std_scale == pytest.approx(np.sqrt(5.0), rel=1e-6)
    imputed = impute(fitted, rows)
    assert imputed.predictive_std is not None
    np.testing.assert_allclose(
        imputed.predictive_std[SPLIT == "unlabeled"], 7.0 * np.sqrt(5.0), rtol=1e-6
    )
    assert fitted.temperature == 1


def test_one_spread_that_is_nearly_zero_does_not_blow_up_the_scale() -> None:
    """It counts as a thousandth of the mean spread."""
    spread = np.array([[1.0]] * 99 + [[0.0]])
    errors = np.zeros((100, 1))
    errors[-1] = 0.00099
    assert fit_std_scale(errors, spread) == pytest.approx(np.sqrt(0.01), rel=1e-6)


def test_rows_are_those_of_the_source_in_their_order_and_of_the_selected_model() -> None:
    """Changes are counted from the selected model's snapshots, 2 for row 0 and 1 for row 1."""
    right, wrong = logits_of(TRUTH, 0.9), logits_of(wrong_on("validation"), 0.9)
    snapshots = np.stack([TRUTH] * 4)
    snapshots[[1, 3], 0] = [1 - TRUTH[0], TRUTH[0]]
    snapshots[3, 1] = 1 - TRUTH[1]
    best = trained_as("supervised", right, snapshots=snapshots)
    fitted, rows = assembled(GIVEN, best, trained_as("l2i", wrong, snapshots=1 - snapshots[:3]))
    assert rows.ids == [f"r{i}" for i in range(len(SPLIT))]
    assert (rows.split_names == SPLIT).all() and (rows.given_labels == GIVEN).all()
    assert rows.change_counts[:3].tolist() == [2, 1, 0] and rows.change_counts[3:].sum() == 0
    assert fitted.num_snapshots == 4
    assert (rows.outputs["supervised"] == right).all() and (rows.outputs["l2i"] == wrong).all()
    assert (impute(fitted, rows).labels == TRUTH).all()


def test_moves_of_targets_are_told_in_their_own_standard_deviations() -> None:
    """The second target's std is 500, so 40 is no move and 60 is one."""
    snapshots = np.stack([VALUES] * 2)
    snapshots[1, 0] += [0.0, 40.0]
    snapshots[1, 1] += [0.0, 60.0]
    snapshots[1, 2] += [0.2, 0.0]
    best = regressor("l2i", off_by(0.1, "validation"), snapshots=snapshots)
    _, rows = assembled(TARGETS, best)
    assert rows.change_counts[:4].tolist() == [0, 1, 1, 0]


def test_the_share_past_the_mask_is_of_unlabelled_rows_at_the_methods_threshold() -> None:
    """Of 40 unlabelled rows 10 reach 0.95, 10 reach just 0.8, and 20 lie above its half."""
    confidence = np.full(len(SPLIT), 0.99)
    blank = np.flatnonzero(SPLIT == "unlabeled")
    confidence[blank[:20]], confidence[blank[20:30]] = 0.6, 0.8
    last = trained_as("l2i", logits_of(TRUTH, confidence), threshold=0.7999)
    assert assembled(GIVEN, last)[0].mask_rate == pytest.approx(0.5)
    assert assembled(GIVEN, last._replace(threshold=0.9))[0].mask_rate == pytest.approx(0.25)
    shifted = last.outputs + 50 * np.arange(len(last.outputs), dtype=np.float32)[:, None]
    assert assembled(GIVEN, last._replace(outputs=shifted))[0].mask_rate == pytest.approx(0.5)
    assert assembled(GIVEN, last._replace(threshold=None))[0].mask_rate is None
    assert (
        assembled(GIVEN, trained_as("supervised", last.outputs, threshold=0.9))[0].mask_rate is None
    )


def test_a_row_just_at_the_masks_threshold_passes() -> None:
    even = np.zeros((len(SPLIT), 2), dtype=np.float32)
    assert assembled(GIVEN, trained_as("l2i", even, threshold=0.5))[0].mask_rate == 1


def test_the_mask_is_that_of_the_last_candidate_not_of_the_selected_one() -> None:
    sure, unsure = logits_of(TRUTH, 0.99), logits_of(wrong_on("validation"), 0.6)
    trained = [
        trained_as("baseline", sure, threshold=0.9),
        trained_as("l2i", unsure, threshold=0.9),
    ]
    fitted, _ = assembled(GIVEN, *trained)
    assert (fitted.selected_name, fitted.mask_rate) == ("baseline", 0)


def test_unlike_inputs_are_told_from_the_unlabelled_rows() -> None:
    """Each row's input is its number, and unlabelled rows are 20 to 59 of 140."""
    fitted, _ = assembled(GIVEN, trained_as("l2i", logits_of(TRUTH, 0.9)))
    data = data_of(GIVEN, SPLIT)
    oracle = compute_covariate_shift_auc(data.x, SPLIT == "unlabeled", seed=0)
    assert fitted.covariate_shift_auc == oracle and oracle is not None and oracle > 0.6


def test_the_report_shows_the_most_and_the_least_confident_imputed_targets() -> None:
    spread = np.full(VALUES.shape, 1e-3, dtype=np.float32)
    blank = np.flatnonzero(SPLIT == "unlabeled")
    spread[blank, 0] = np.roll(np.linspace(0.1, 0.9, 40), 7)  # the most certain is the eighth
    best = regressor("l2i", off_by(1.0, "validation"), predictive_std=spread)
    fitted, _ = assembled(TARGETS, best)
    order = blank[np.roll(np.arange(40), -7)].tolist()
    assert [preview.row for preview in fitted.previews] == order[:8] + order[-8:]
    assert fitted.previews[0].fields == {"n": str(order[0])}


def test_no_class_has_more_than_three_of_the_first_rows_shown_while_another_waits() -> None:
    """Class 0 is always surer than class 1: three of it, three of the other, two of it again."""
    blank = np.flatnonzero(SPLIT == "unlabeled")
    classes, confidence = TRUTH.copy(), np.full(len(SPLIT), 0.6)
    classes[blank] = np.arange(40) % 2
    confidence[blank] = np.linspace(0.99, 0.9, 40) - 0.3 * classes[blank]
    fitted, _ = assembled(GIVEN, trained_as("l2i", logits_of(classes, confidence)))
    zeros, ones = blank[::2].tolist(), blank[1::2].tolist()
    expected = [*zeros[:3], *ones[:3], *zeros[3:5], *ones[-8:]]
    assert [preview.row for preview in fitted.previews] == expected


def test_what_a_fit_says_of_itself_is_the_sources_and_the_selected_models() -> None:
    best = regressor(
        "l2i", off_by(1.0, "validation"), mean=(2.0, 3.0), std=(1.5, 400.0), shape=(1, 6, 6)
    )
    fitted, rows = assembled(
        TARGETS, best, points=True, notes=("a note",), sizes=np.full((len(SPLIT), 2), 12)
    )
    assert (fitted.target_mean, fitted.target_std) == ((2.0, 3.0), (1.5, 400.0))
    assert (fitted.targets, fitted.classes, fitted.has_landmarks) == (("t0", "t1"), None, True)
    assert fitted.metric_description.endswith(", resized to 6 × 6 pixels")
    assert (fitted.notes, fitted.source) == (("a note",), {"path": "t.csv"})
    assert rows.sizes is not None and rows.sizes.shape == (len(SPLIT), 2)
    assert fitted.inputs["columns"][0]["name"] == "n"
