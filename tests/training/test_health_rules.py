"""The rules of the health checks on rows by hand: their borders, and what they say."""

import pytest
import torch

from l2i.data.samples import Samples, Splits
from l2i.tasks import Classification, Regression
from l2i.training.evaluation import measure_diversity, pick_monitored_split
from l2i.training.health import check_health
from l2i.training.metrics import MetricRow, compute_step_weighted_mean

STEPS = 1000


def make_splits(
    validation: list[int] | None = None, *, labeled: tuple[int, ...] = (0, 1), classes: int = 2
) -> Splits:
    """Splits whose validation labels are given; by default 95 of one class and 5 of another."""
    y = torch.tensor([0] * 95 + [1] * 5 if validation is None else validation, dtype=torch.int64)
    return Splits.from_arrays(
        labeled=(torch.zeros(len(labeled), 1), torch.tensor(labeled)),
        unlabeled=torch.zeros(1, 1),
        validation=(torch.zeros(len(y), 1), y),
        test=(torch.zeros(2, 1), torch.tensor([0, 1])),
        classes=classes,
    )


def row(step: int = STEPS, **values: float | None) -> MetricRow:
    return {"step": step, "test": 1.0, "validation": 1.0, **values}


def kinds(rows: list[MetricRow], splits: Splits | None = None, **settings: float) -> list[str]:
    return list(check_health(rows, splits or make_splits(), STEPS, **settings))


@pytest.mark.parametrize(
    ("diversity", "found"), [(0.0, True), (0.001, True), (0.0011, False), (0.5, False)]
)
def test_one_class_for_nearly_all_samples_is_constant(diversity: float, found: bool) -> None:
    assert (kinds([row(prediction_diversity=diversity)]) == ["constant"]) == found


def test_the_sentence_counts_the_samples_that_belong_to_others() -> None:
    (sentence,) = check_health([row(prediction_diversity=0.0)], make_splits(), STEPS).values()
    assert sentence.startswith(
        "the model predicts one class for 100 % of the 100 validation samples, "
        "at least 5 of which belong to others; lower optim.lr"
    )


@pytest.mark.parametrize(("others", "found"), [(4, False), (5, True)])
def test_five_samples_of_other_classes_are_enough_to_tell(others: int, found: bool) -> None:
    splits = make_splits([0] * 90 + [1] * others)
    assert (kinds([row(prediction_diversity=0.0)], splits) == ["constant"]) == found


@pytest.mark.parametrize(
    ("count", "spread", "found"), [(5, 0.01, True), (5, 0.011, False), (4, 0.0, False)]
)
def test_outputs_of_a_regression_that_hardly_vary_are_constant(
    count: int, spread: float, found: bool
) -> None:
    x, y = torch.zeros(count, 1), torch.rand(count, 1)
    splits = Splits.from_arrays(labeled=(x, y), unlabeled=x, validation=(x, y), test=(x, y))
    warnings = check_health([row(prediction_diversity=spread)], splits, STEPS)
    assert (list(warnings) == ["constant"]) == found
    if found:
        assert warnings["constant"].startswith(
            "the standard deviation of outputs on 5 validation samples is 1 % of that of the"
        )


@pytest.mark.parametrize(
    ("step", "steps", "judged"),
    [(99, 200, False), (100, 200, True), (199, 1000, False), (200, 1000, True)],
)
def test_nothing_is_judged_before_a_fifth_of_the_run_and_100_steps(
    step: int, steps: int, judged: bool
) -> None:
    rows = [row(step, prediction_diversity=0.0)]
    assert bool(check_health(rows, make_splits(), steps)) == judged


def test_no_rows_raise_no_alarm() -> None:
    assert check_health([], make_splits(), STEPS) == {}
    assert kinds([row(prediction_diversity=None)]) == []


@pytest.mark.parametrize(("rate", "found"), [(0.0, True), (0.0009, True), (0.001, False)])
def test_a_mask_that_passes_next_to_nothing_is_shut(rate: float, found: bool) -> None:
    assert (kinds([row(mask_rate=rate, mask_top_class=0.5)]) == ["mask"]) == found


def test_the_last_tenth_of_the_run_counts_each_row_by_its_steps() -> None:
    """The row of step 900 is out; 90 steps at 0 and 10 steps at 0.02 are 0.002."""
    rows = [
        row(900, mask_rate=0.9, mask_top_class=0.5),
        row(990, mask_rate=0.0),
        row(1000, mask_rate=0.02, mask_top_class=0.5),
    ]
    assert kinds(rows) == []
    rows[-1]["mask_rate"] = 0.009  # 0.0009
    assert kinds(rows) == ["mask"]
    assert kinds([rows[0], row(901, mask_rate=0.5, mask_top_class=0.5), *rows[1:]]) == []


@pytest.mark.parametrize(
    ("rate", "top", "found"),
    [(0.1, 0.999, True), (0.1, 0.998, False), (0.099, 1.0, False), (1.0, 1.0, True)],
)
def test_a_mask_that_passes_one_class_alone_has_collapsed(
    rate: float, top: float, found: bool
) -> None:
    rows = [row(mask_rate=rate, mask_top_class=top)]
    assert (kinds(rows) == ["mask"]) == found
    assert kinds(rows, make_splits(labeled=(1, 1))) == []  # there is but one


def test_top_classes_are_weighted_by_the_labels_that_pass() -> None:
    """A row that passes ten times as much counts ten times as much."""
    rows = [
        row(900, mask_rate=0.5, mask_top_class=0.5),
        row(950, mask_rate=1.0, mask_top_class=1.0),
        row(1000, mask_rate=0.001, mask_top_class=0.4),
    ]
    assert kinds(rows) == ["mask"]  # (50 · 1 + 50 · 0.001 · 0.4) / (50 · 1.001)
    rows[-1]["mask_rate"] = 0.01
    assert kinds(rows) == []


def test_a_look_ahead_overshoots_above_the_cost_of_guessing() -> None:
    assert kinds([row(c_h=2.0)], chance_loss=2.0) == []
    assert kinds([row(c_h=2.01)], chance_loss=2.0) == ["ahead"]
    assert kinds([row(c_h=100.0)]) == []
    assert kinds([row(c_h=None)], chance_loss=2.0) == []


def test_means_are_over_the_rows_that_have_a_column() -> None:
    rows: list[tuple[float, MetricRow]] = [
        (10, row(c_h=1.0)),
        (30, row(c_h=None)),
        (90, row(c_h=2.0)),
    ]
    assert compute_step_weighted_mean(rows, "c_h") == pytest.approx(1.9)
    assert compute_step_weighted_mean(rows, "c_t") is None
    assert compute_step_weighted_mean([], "c_h") is None


def test_the_validation_samples_are_watched_or_the_test_samples_without_any() -> None:
    splits = make_splits()
    assert pick_monitored_split(splits) == "validation"
    none = Samples(splits.test.x[:0], splits.test.y[:0])
    assert pick_monitored_split(splits.with_labels(splits.labeled, validation=none)) == "test"


def test_diversity_is_the_share_outside_the_most_frequent_class_or_the_largest_spread() -> None:
    outputs = torch.eye(3)[torch.tensor([0, 0, 0, 1, 2])]
    y = torch.arange(5) % 3
    assert measure_diversity(Classification(num_outputs=3), outputs, y) == pytest.approx(0.4)
    targets = torch.tensor([[0.0, 5.0, 1.0], [2.0, 5.0, 3.0]])
    task = Regression.from_targets(targets)
    half = task.encode(targets) * torch.tensor([0.25, 9.0, 0.5])
    assert measure_diversity(task, half, targets) == pytest.approx(0.5)  # the second does not vary
    assert measure_diversity(task, half, targets[:1].repeat(2, 1)) == 1.0
