"""The pieces of a fit against oracles: splits, calibration, changes and likeness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from l2i import InputError
from l2i.candidates.calibration import fit_std_scale, fit_temperature
from l2i.fit.candidates import compute_covariate_shift_auc, count_label_changes, read_snapshots
from l2i.fit.split import MAX_EVAL_ROWS, assign_splits


def classes(
    rows: int, blank: int, shares: tuple[float, ...] = (0.6, 0.3, 0.1)
) -> NDArray[np.int64]:
    draw = np.random.default_rng(0)
    given = draw.choice(len(shares), size=rows, p=shares)
    given[draw.choice(rows, size=blank, replace=False)] = -1
    return given


@pytest.mark.parametrize(
    ("validation", "test", "counts"), [(0.2, 0.2, (60, 60)), (7, 0, (7, 0)), (0.1, 25, (30, 25))]
)
def test_as_many_rows_are_set_aside_as_asked_and_all_are_labelled(
    validation: float, test: float, counts: tuple[int, int]
) -> None:
    given = classes(1000, 700)
    parts = assign_splits(given, validation=validation, test=test, seed=1)
    assert ((parts == "unlabeled") == (given < 0)).all()
    assert ((parts == "validation").sum(), (parts == "test").sum()) == counts
    assert (parts == "labeled").sum() == 300 - sum(counts)


def test_classes_keep_their_shares_in_every_part() -> None:
    given = classes(3000, 2000)
    parts = assign_splits(given, validation=0.2, test=0.3, seed=5)
    for kind in range(3):
        of_kind = (given == kind).sum()
        assert (parts[given == kind] == "validation").sum() == pytest.approx(0.2 * of_kind, abs=2)
        assert (parts[given == kind] == "test").sum() == pytest.approx(0.3 * of_kind, abs=2)


def test_small_and_large_targets_are_in_every_part() -> None:
    given = np.random.default_rng(0).lognormal(size=(500, 2))
    given[::2] = np.nan
    parts = assign_splits(given, validation=0.2, test=0.2, seed=0)
    assert ((parts == "unlabeled") == np.isnan(given[:, 0])).all()
    known = given[~np.isnan(given[:, 0]), 0]
    for part in ("labeled", "validation", "test"):
        actual = given[parts == part, 0]
        assert np.quantile(actual, [0.25, 0.5, 0.75]) == pytest.approx(
            np.quantile(known, [0.25, 0.5, 0.75]), rel=0.2
        )


@pytest.mark.parametrize("seed", range(20))
def test_one_row_of_each_class_is_trained_on_however_rare_it_is(seed: int) -> None:
    given = np.array([0] * 20 + [1, 2, 2] + [-1] * 5)
    parts = assign_splits(given, validation=10, test=10, seed=seed)
    assert set(given[parts == "labeled"]) == {0, 1, 2}


def test_parts_are_of_their_seed() -> None:
    given = classes(400, 100)
    first, again, other = (
        assign_splits(given, validation=0.2, test=0.2, seed=seed) for seed in (3, 3, 4)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_a_share_of_very_many_rows_is_not_taken_whole() -> None:
    parts = assign_splits(classes(40_000, 0), validation=0.4, test=5000, seed=0)
    assert ((parts == "validation").sum(), (parts == "test").sum()) == (MAX_EVAL_ROWS, 5000)


@pytest.mark.parametrize("share", [-1, -0.1, 1.0, 3.5, float("inf"), float("nan")])
def test_what_is_no_share_and_no_count_is_refused(share: float) -> None:
    with pytest.raises(
        InputError, match=r"--test .* must be a whole number of rows, or a fraction"
    ):
        assign_splits(classes(100, 10), validation=0.2, test=share, seed=0)


def test_too_few_rows_are_refused_with_what_helps() -> None:
    with pytest.raises(
        InputError, match=r"10 labelled rows are too few for 5 .* lower --validation and --test"
    ):
        assign_splits(classes(10, 0), validation=5, test=5, seed=0)
    with pytest.raises(InputError, match="too few"):
        assign_splits(np.arange(4.0)[:, None], validation=2, test=2, seed=0)


def test_the_temperature_is_the_one_that_made_the_labels() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(20_000, 4)) * 4
    likely = softmax(logits / 3.0, axis=1)
    y = (draw.random((len(logits), 1)) > likely.cumsum(axis=1)).sum(axis=1)
    assert fit_temperature(logits, y) == pytest.approx(3.0, rel=0.05)


def test_the_temperature_has_the_least_cost_of_a_grid() -> None:
    draw = np.random.default_rng(1)
    logits, y = draw.normal(size=(12, 3)) * 2, draw.integers(0, 3, size=12)

    def cost(t: float) -> float:
        prior = 0.5 * (np.log(t) / (0.25 if t < 1 else 1)) ** 2
        return float(-log_softmax(logits / t, axis=1)[np.arange(12), y].sum() + prior)

    grid = np.geomspace(0.05, 20, 4001)
    best = grid[np.argmin([cost(t) for t in grid])]
    assert fit_temperature(logits, y) == pytest.approx(best, rel=5e-3)


def test_few_rows_that_are_all_right_or_all_wrong_leave_a_temperature_that_is_not_extreme() -> None:
    logits = np.tile([5.0, 0.0], (6, 1))
    assert 0.1 < fit_temperature(logits, np.zeros(6, dtype=np.int64)) < 1
    assert 1 < fit_temperature(logits, np.ones(6, dtype=np.int64)) < 20
    assert fit_temperature(logits[:0], np.zeros(0, dtype=np.int64)) == 1


def test_the_scale_of_spreads_is_the_one_that_made_the_errors_in_any_units() -> None:
    draw = np.random.default_rng(0)
    spread = draw.uniform(0.5, 2.0, size=(5000, 2))
    errors = 2.5 * spread * draw.normal(size=spread.shape)
    units = np.array([1e-4, 1e6])
    assert fit_std_scale(errors, spread) == pytest.approx(2.5, rel=0.03)
    assert fit_std_scale(errors * units, spread * units) == pytest.approx(
        fit_std_scale(errors, spread)
    )
    assert fit_std_scale(errors[:0], spread[:0]) == 1
    assert np.isfinite(fit_std_scale(errors, np.zeros_like(spread)))


def test_changes_of_classes_and_of_targets_are_counted_as_by_hand() -> None:
    assert count_label_changes(np.array([[0, 1, 2], [0, 2, 2], [1, 1, 2]]), None).tolist() == [
        1,
        2,
        0,
    ]
    moving = np.array([[0.0, 0.0], [0.05, 0.0], [0.05, 300.0], [0.3, 301.0]])[:, None]
    assert count_label_changes(moving, np.array([1.0, 1000.0])).tolist() == [2]
    assert count_label_changes(moving[:1], np.array([1.0, 1000.0])).tolist() == [0]


def test_snapshots_are_read_in_order_and_none_from_beyond_the_last_step(tmp_path: Path) -> None:
    for step in (100, 20, 5, 40):
        np.save(tmp_path / f"{step:09d}.npy", np.full(3, step))
    assert read_snapshots(tmp_path, 40).tolist() == [[5] * 3, [20] * 3, [40] * 3]


def test_rows_that_are_alike_cannot_be_told_apart_and_others_can() -> None:
    x = torch.randn(600, 5, generator=torch.Generator().manual_seed(0))
    blank = np.arange(600) % 3 > 0
    assert compute_covariate_shift_auc(x, blank, seed=0) == pytest.approx(0.5, abs=0.08)
    moved = x + 2 * torch.from_numpy(blank)[:, None]
    assert (compute_covariate_shift_auc(moved, blank, seed=0) or 0) > 0.95
    images = moved[:, :1, None, None].expand(600, 1, 12, 12).clamp(0, 8).mul(30).byte()
    assert (compute_covariate_shift_auc(images, blank, seed=0) or 0) > 0.8
    assert compute_covariate_shift_auc(x, np.arange(600) < 9, seed=0) is None
    assert compute_covariate_shift_auc(x, np.ones(600, dtype=bool), seed=0) is None


def test_texts_are_told_apart_by_which_tokens_they_have_not_by_where_or_by_their_numbers() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 2000, (600, 24), generator=draw, dtype=torch.int32)
    blank = np.arange(600) % 3 > 0
    assert compute_covariate_shift_auc(ids, blank, seed=0) == pytest.approx(0.5, abs=0.1)
    turned = torch.where(torch.from_numpy(blank)[:, None], ids.sort(dim=1).values, ids)
    assert compute_covariate_shift_auc(turned, blank, seed=0) == pytest.approx(
        compute_covariate_shift_auc(ids, blank, seed=0)
    )
    ids[torch.from_numpy(blank), 7] = 1234
    assert (compute_covariate_shift_auc(ids, blank, seed=0) or 0) > 0.8
