"""What is read off a network after its training: outputs, metrics, snapshots and spreads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import data_of, source_of
from numpy.typing import NDArray

from l2i import InputError
from l2i.config import Run, replace
from l2i.data.samples import Samples
from l2i.data.transforms.image import Augment
from l2i.fit.candidates import (
    NUM_VIEWS,
    TrainedCandidate,
    _compute_predictive_std,
    make_snapshot_writer,
    read_snapshots,
)
from l2i.fit.preprocess import ImagePreprocessor
from l2i.fit.split import PreparedData, assemble_data
from l2i.training.run_dir import Result
from l2i.training.trainer import Trainer

SPLIT = np.repeat(["labeled", "unlabeled", "validation", "test"], [12, 8, 6, 6])
ROWS = len(SPLIT)
TRUTH = np.arange(ROWS) % 2
VALUES = np.column_stack([1e6 + np.arange(ROWS), 0.001 * TRUTH])
TARGETS = np.where((SPLIT == "unlabeled")[:, None], np.nan, VALUES)
GIVEN = np.where(SPLIT == "unlabeled", -1, TRUTH)


def run_of(**changes: Any) -> Run:
    run = Run(steps=40, eval_every=2, save_every=20, device="cpu", threads=1)
    model = {"name": "mlp", "width": 8, "depth": 1}
    run = replace(run, model=model, method="mean-teacher", data={"weak": {"noise": 0.0}})
    return replace(run, **changes)


def trainer_of(prepared: PreparedData, **changes: Any) -> Trainer:
    return Trainer(run_of(**changes), splits=prepared.splits)


def result_of(steps: int = 40) -> Result:
    return Result(
        name="l2i",
        metric=1.0,
        metric_name="RMSE",
        metric_definition="",
        validation=1.0,
        seed=0,
        steps=steps,
        seconds=3.5,
        versions={},
        hardware="",
    )


@pytest.fixture
def regression() -> Iterator[tuple[PreparedData, Trainer]]:
    data = data_of(TARGETS, SPLIT)
    with closing(trainer_of(data)) as trainer:
        yield data, trainer


@pytest.fixture
def classification() -> Iterator[tuple[PreparedData, Trainer]]:
    data = data_of(GIVEN, SPLIT)
    with closing(trainer_of(data)) as trainer:
        yield data, trainer


def all_rows(data: PreparedData) -> Samples:
    return data.rows_to_device(torch.device("cpu"), torch.float32)


def test_spreads_are_over_views_and_the_last_five_snapshots(
    regression: tuple[PreparedData, Trainer],
) -> None:
    """The weak view changes nothing here, so all views are the prediction itself."""
    data, trainer = regression
    samples = all_rows(data)
    predicted = trainer.task.decode(trainer.predict(samples)).numpy()  # type: ignore[attr-defined]
    snapshots = predicted + np.arange(7)[:, None, None] ** 2 * [1.0, 0.01]
    actual = _compute_predictive_std(trainer, samples, snapshots.astype(np.float32))
    stacked = np.concatenate([np.stack([predicted] * 8), snapshots[2:]])
    np.testing.assert_allclose(actual, stacked.std(axis=0), rtol=1e-3)


def test_spreads_are_over_weak_views_drawn_by_the_seed() -> None:
    data = data_of(TARGETS, SPLIT)
    noisy = {"data": {"weak": {"noise": 0.5}}}

    def spread(**changes: Any) -> NDArray[np.float32]:
        with closing(trainer_of(data, **changes)) as trainer:
            torch.manual_seed(0)
            samples = all_rows(data)
            still = trainer.task.decode(trainer.predict(samples))  # type: ignore[attr-defined]
            return _compute_predictive_std(trainer, samples, still.numpy()[None])

    one = spread(**noisy)
    assert (one > 0).all() and NUM_VIEWS == 8
    assert (spread(**noisy) == one).all()
    strong = {"data": {"weak": {"noise": 0.0}, "strong": {"noise": 0.5}}}
    assert spread(**strong) == pytest.approx(0)


def test_outputs_of_a_regressor_are_targets_in_their_units(
    regression: tuple[PreparedData, Trainer], tmp_path: Path
) -> None:
    """Before any step they lie near the mean, 1e6: float32 keeps just a digit behind the point."""
    data, trainer = regression
    make_snapshot_writer(tmp_path, data.rows_to_device)(trainer, 40)
    trained = TrainedCandidate.from_trainer("l2i", trainer, result_of(), data, tmp_path)
    labeled = TARGETS[SPLIT == "labeled"]
    np.testing.assert_allclose(trained.mean, labeled.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(trained.std, labeled.std(axis=0), rtol=1e-4)
    standardized = trainer.predict(all_rows(data)).double().numpy()
    expected = standardized * labeled.std(axis=0) + labeled.mean(axis=0)
    np.testing.assert_allclose(trained.outputs, expected, atol=1e-5)
    assert trained.outputs.dtype == np.float64 and trained.outputs.shape == (ROWS, 2)
    assert trained.predictive_std is not None and trained.predictive_std.shape == (ROWS, 2)
    assert trained.shape == (1,) and trained.threshold is None


def test_metrics_of_a_regressor_are_those_of_its_own_split(
    regression: tuple[PreparedData, Trainer], tmp_path: Path
) -> None:
    data, trainer = regression
    make_snapshot_writer(tmp_path, data.rows_to_device)(trainer, 40)
    trained = TrainedCandidate.from_trainer("l2i", trainer, result_of(), data, tmp_path)
    errors = (trained.outputs - VALUES) / trained.std
    is_validation = SPLIT == "validation"
    cost = np.square(errors[is_validation]).mean()
    assert trained.candidate.validation_cost == pytest.approx(cost, rel=1e-3)
    metrics = trainer.compute_metrics()
    name = trainer.task.metric_name
    assert trained.candidate.validation_metric == metrics["validation"][name]
    assert trained.candidate.test_metric == metrics["test"][name]
    assert trained.candidate.validation_metric != trained.candidate.test_metric
    assert (trained.candidate.steps, trained.candidate.seconds) == (40, 3.5)
    assert trained.candidate.title == "mean-teacher + L2I"
    other = TrainedCandidate.from_trainer("baseline", trainer, result_of(), data, tmp_path)
    assert other.candidate.title == "mean-teacher"


def test_outputs_of_a_classifier_are_the_averaged_models_logits(
    classification: tuple[PreparedData, Trainer], tmp_path: Path
) -> None:
    data, trainer = classification
    with torch.no_grad():
        for parameter in trainer.teacher.model.parameters():
            parameter.add_(0.3)  # the two models differ from now on
    make_snapshot_writer(tmp_path, data.rows_to_device)(trainer, 40)
    trained = TrainedCandidate.from_trainer("l2i", trainer, result_of(), data, tmp_path)
    with torch.no_grad():
        expected = trainer.teacher.model.eval()(data.x)
    np.testing.assert_allclose(trained.outputs, expected.numpy(), rtol=1e-5)
    wrong = trained.outputs.argmax(axis=1) != TRUTH
    validation = 100 * wrong[SPLIT == "validation"].mean()
    assert trained.candidate.validation_metric == pytest.approx(validation)
    assert trained.candidate.test_metric == pytest.approx(100 * wrong[SPLIT == "test"].mean())
    assert trained.predictive_std is None and trained.mean == trained.std == ()
    assert trained.snapshots.tolist() == [trained.outputs.argmax(axis=1).tolist()]


def test_without_test_rows_there_is_no_test_metric(tmp_path: Path) -> None:
    split = np.where(SPLIT == "test", "labeled", SPLIT)
    data = data_of(GIVEN, split)
    with closing(trainer_of(data, method="fixmatch")) as trainer:
        make_snapshot_writer(tmp_path, data.rows_to_device)(trainer, 40)
        trained = TrainedCandidate.from_trainer("l2i", trainer, result_of(), data, tmp_path)
    assert trained.candidate.test_metric is None
    assert trained.threshold == run_of(method="fixmatch").method.threshold


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [
        (40, 2, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]),  # every other evaluation, ten in all
        (6, 2, [2, 4, 6]),
        (45, 4, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 45]),
    ],
)
def test_about_ten_snapshots_are_taken_and_always_one_at_the_end(
    steps: int,
    every: int,
    expected: list[int],
    regression: tuple[PreparedData, Trainer],
    tmp_path: Path,
) -> None:
    data, trainer = regression
    trainer.run = replace(trainer.run, steps=steps, eval_every=every)
    write_snapshot = make_snapshot_writer(tmp_path / "deep", data.rows_to_device)
    for step in [*range(every, steps, every), steps]:
        write_snapshot(trainer, step)
    assert [int(path.stem) for path in sorted((tmp_path / "deep").iterdir())] == expected


def test_damaged_snapshots_are_said(tmp_path: Path) -> None:
    (tmp_path / "000000001.npy").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="is damaged; fit again with a different --out"):
        read_snapshots(tmp_path, 5)


def test_points_predicted_from_a_shifted_view_are_shifted_back() -> None:
    """A network that finds the bright pixel follows it; moved back, all views agree."""
    side, draw = 12, np.random.default_rng(0)
    spots = draw.integers(4, 8, size=(ROWS, 2))
    images = np.zeros((ROWS, 1, side, side), dtype=np.uint8)
    images[np.arange(ROWS), 0, spots[:, 1], spots[:, 0]] = 255
    points = np.where((SPLIT == "unlabeled")[:, None], np.nan, spots + 0.5)
    source = source_of(images, points, points=True)
    normalizer = ImagePreprocessor.fit(images)
    data = assemble_data(source, normalizer, SPLIT, torch.from_numpy(images), Run())
    weak = dataclasses.asdict(Augment(shift=2, padding="constant"))
    with closing(trainer_of(data, data={"weak": weak})) as trainer:
        task = trainer.task

        def find_spot(x: torch.Tensor) -> torch.Tensor:
            flat = x.flatten(1).argmax(dim=1)
            found = torch.stack([flat % side, flat // side], dim=1) + 0.5
            return (found - task.mean) / task.std  # type: ignore[attr-defined]

        trainer.teacher.model.forward = find_spot  # type: ignore[method-assign]
        spread = _compute_predictive_std(
            trainer, all_rows(data), np.repeat((spots + 0.5)[None], 5, axis=0)
        )
    np.testing.assert_allclose(spread, 0, atol=1e-4)
