"""The probe against steps taken by hand, and the run beside it."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from formats import write_faces
from l2i import Run, Trainer, recipes, replace, train
from l2i.training import diagnostics as truth
from l2i.training.diagnostics import (
    PROBE_COLUMNS,
    compare_outer_update,
    measure_outer_update,
    measure_test_cost,
    sample_unlabeled,
)
from l2i.training.evaluation import compute_outputs
from l2i.training.loop import StopRequest, TrainingLoop

PAPER = {"update": "paper", "paper": {"eta": 0.5}}
RULES = {
    "normalized": {"l2i": {"update": "normalized"}},
    "paper": {"l2i": PAPER},
    "momentum": {"optim": {"name": "sgd", "lr": 0.01, "weight_decay": 0.01}},
}


def small(cell: str = "digits/mean-teacher-l2i-40", **changes: object) -> Run:
    """With running statistics, dropout, and moments in the optimizer."""
    run = replace(
        recipes.get(cell),
        device="cpu",
        precision="float64",
        steps=12,
        eval_every=4,
        save_every=6,
        probe_samples=50,
    )
    sizes = {"labeled": 8, "unlabeled": 8, "holdout": 8}
    return replace(run, model={"name": "conv", "width": 4, "dropout": 0.2}, batch=sizes, **changes)


def started(run: Run, steps: int = 3) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(run)
    for t in range(steps):
        trainer.step(t)
    return trainer


def same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in theirs
    )


def copied(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.state_dict().items()}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("rule", RULES)
def test_a_probed_run_follows_the_same_trajectory_bit_by_bit(rule: str, tmp_path: Path) -> None:
    for name, count in (("plain", 0), ("probed", 50)):
        train(
            small(out=str(tmp_path / name), **{**RULES[rule], "probe_samples": count}), quiet=True
        )
    states = [
        load_file(tmp_path / name / "checkpoints" / "0000000012.safetensors")
        for name in ("plain", "probed")
    ]
    assert same(*states)
    probed, plain = rows(tmp_path / "probed"), rows(tmp_path / "plain")
    assert [row["step"] for row in probed] == [4, 8, 12]
    beside = (*PROBE_COLUMNS, *truth.ERROR_COLUMNS)
    assert [
        {name: value for name, value in row.items() if name not in beside} for row in probed
    ] == plain
    assert all(row[name] > 0 for row in probed for name in PROBE_COLUMNS)


@pytest.mark.parametrize("rule", RULES)
def test_probing_leaves_the_whole_state_as_it_was(rule: str) -> None:
    trainer = started(small(**RULES[rule]))
    before = copied(trainer)
    actual = measure_outer_update(trainer, 3)
    assert same(trainer.state_dict(), before)
    assert any(name.startswith("optimizer.") for name in before)
    assert measure_outer_update(trainer, 3) == actual


@pytest.mark.parametrize("rule", ["normalized", "paper"])
def test_after_is_the_step_that_the_run_takes_and_before_the_step_without_its_update(
    rule: str,
) -> None:
    run = small(**RULES[rule])
    actual = measure_outer_update(started(run), 3)
    for when in ("before", "after"):
        trainer = started(run)
        if when == "before":
            trainer.outer_step = None
        trainer.step(3)
        held = trainer.loader.draw_batch(3).holdout
        test = trainer.splits.test.take(torch.arange(50))
        assert held is not None
        assert isinstance(test.x, Tensor)
        model = copy.deepcopy(trainer.model).eval()
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)):
            norm.train()
        with torch.no_grad():
            costs = [
                trainer.task.loss(model(x), y)
                for x, y in (held, (trainer.preprocess(test.x), test.y))
            ]
        assert [float(cost) for cost in costs] == [
            actual[f"c_h_{when}"],
            actual[f"test_cost_{when}"],
        ]
    assert actual["c_h_before"] != actual["c_h_after"]


def test_the_learned_labels_lower_the_hold_out_cost() -> None:
    """On average over a run's probes; a single update may miss."""
    run = small(steps=60, l2i={"rho": 0.3})
    trainer, gains = Trainer(run), []
    for t in range(60):
        trainer.step(t)
        if t % 6 == 5:
            actual = measure_outer_update(trainer, t + 1)
            gains.append(actual["c_h_before"] - actual["c_h_after"])
    assert sum(gains) > 0


def test_after_the_last_step_the_last_batch_serves_again() -> None:
    trainer = started(small(), steps=12)
    observed = compare_outer_update(trainer, 12, lambda batch: batch.labeled.x)
    assert torch.equal(observed[0], trainer.loader.draw_batch(11).labeled.x)
    assert torch.equal(*observed)


def test_a_measurement_that_fails_leaves_the_trainer_as_it_was() -> None:
    trainer = started(small())
    before = copied(trainer)
    with pytest.raises(ZeroDivisionError):
        compare_outer_update(trainer, 3, lambda _: 1 / 0)
    assert same(trainer.state_dict(), before)


def test_either_way_shows_the_model_without_and_with_the_update() -> None:
    trainer = started(small())
    samples = trainer.splits.unlabeled.take(torch.arange(5))
    before, after = compare_outer_update(
        trainer, 3, lambda _: compute_outputs(trainer.network, samples, trainer.preprocess)
    )
    assert before.shape == after.shape == (5, 10)
    assert 0 < float((before - after).abs().max()) < 1


@pytest.mark.parametrize(
    "run",
    [small(probe_samples=0), small(l2i={"update": "off"}), small("digits/sl-40")],
    ids=["none", "off", "sl"],
)
def test_there_is_nothing_to_probe_without_an_outer_update_or_samples(run: Run) -> None:
    assert measure_outer_update(Trainer(run), 0) == {}


def test_the_time_of_a_probe_does_not_count(tmp_path: Path) -> None:
    trainer = started(small())
    with StopRequest() as stop:
        training = TrainingLoop(trainer, tmp_path, stop, quiet=True)
    began = training.stopwatch.start_time
    assert set(training.probe(3)) == {*PROBE_COLUMNS, "pseudo_label_error"}
    assert training.stopwatch.start_time > began + 0.001
    training.close()


def test_a_probe_that_is_no_number_does_not_stop_the_run(tmp_path: Path) -> None:
    trainer = started(small())
    with torch.no_grad():
        trainer.splits.test.x.fill_(float("nan"))  # type: ignore[union-attr]
    with StopRequest() as stop:
        training = TrainingLoop(trainer, tmp_path, stop, quiet=True)
    actual = training.probe(3)
    training.close()
    assert actual["test_cost_after"] is None
    assert actual["c_h_after"] is not None


def test_the_test_cost_of_landmarks_is_in_standardised_units(tmp_path: Path) -> None:
    write_faces(tmp_path)
    run = replace(
        recipes.get("aflw/mean-teacher-l2i-91"),
        device="cpu",
        probe_samples=5,
        data={"root": str(tmp_path), "num_labeled": 10},
        batch={"labeled": 4, "unlabeled": 4, "holdout": 4},
    )
    trainer = Trainer(run)
    test, task = trainer.splits.test, trainer.task
    with torch.no_grad():
        outputs = trainer.model.eval()(trainer.preprocess(test.x[:5]))
    wanted = ((task.decode(outputs) - test.y[:5]) / task.std).square().mean()
    assert measure_test_cost(trainer) == pytest.approx(float(wanted), rel=1e-4)


def test_probes_draw_whole_mini_batches_whose_truth_is_known_and_no_random_numbers() -> None:
    trainer = started(small(), steps=0)
    unlabeled, size = trainer.splits.unlabeled, trainer.run.batch.unlabeled
    y = unlabeled.y.clone()
    y[::2] = -1
    splits = dataclasses.replace(trainer.splits, unlabeled=unlabeled._replace(y=y))
    trainer.splits, before = splits, torch.get_rng_state()
    for count, expected in ((1, size), (2 * size - 1, size), (2 * size, 2 * size)):
        drawn = sample_unlabeled(trainer, count)
        assert len(drawn.y) == expected and bool((drawn.y >= 0).all())
        assert not torch.equal(drawn.y, y[y >= 0][:expected])  # shuffled
    assert torch.equal(torch.get_rng_state(), before)
