"""The averaged model's own BatchNorm statistics, against means by hand, and the run beside them."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from determinism import run_of as case_of
from safetensors.torch import load_file
from torch import Tensor, nn

from l2i import Run, Trainer, recipes, replace, train
from l2i.data.samples import Samples
from l2i.methods import METHODS
from l2i.training.ema import Teacher, compute_outputs_train_bn
from l2i.training.loading import evaluate_run, load_full_state

COUNTED = ("running_mean", "running_var", "num_batches_tracked")
NET = {"name": "wide-resnet", "depth": 10, "width": 1}


def run_of(
    cell: str = "digits/mean-teacher-40", statistics: str = "recompute", **changes: Any
) -> Run:
    optim = {"ema_bn": statistics, "ema_decay": 0.9}
    return replace(
        recipes.get(cell), device="cpu", precision="float64", model=NET, optim=optim, **changes
    )


def started(run: Run) -> Trainer:
    trainer = Trainer(run)
    for t in range(4):
        trainer.step(t)
    return trainer


def test_they_are_the_means_over_what_steps_pass() -> None:
    trainer = started(run_of())
    model, met = trainer.teacher.model, list[Tensor]()
    layer = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    handle = layer.register_forward_pre_hook(lambda _, args: met.append(args[0].detach()))
    with torch.no_grad():
        for step in range(10):  # of 40 + 64 samples
            batch = trainer.loader.draw_batch(step)
            for part in (batch.labeled.x, batch.unlabeled.weak2):
                model(part)  # in training mode: each with its own statistics
    handle.remove()
    trainer.recompute_bn()
    means = torch.stack([x.mean((0, 2, 3)) for x in met]).mean(0)
    variances = torch.stack([x.var((0, 2, 3)) for x in met]).mean(0)
    torch.testing.assert_close(layer.running_mean, means)
    torch.testing.assert_close(layer.running_var, variances)


def test_modes_and_momenta_are_left_as_they_were_and_a_layer_in_evaluation_mode_too() -> None:
    trainer = started(run_of())
    layers = [m for m in trainer.teacher.model.modules() if isinstance(m, nn.BatchNorm2d)]
    layers[0].eval()
    saved = [(m.training, m.momentum) for m in layers]
    still = layers[0].running_mean
    assert still is not None
    before = still.clone()
    trainer.recompute_bn()
    assert [(m.training, m.momentum) for m in layers] == saved and bool((before == still).all())


@pytest.mark.parametrize("method", METHODS)
def test_of_a_model_that_stays_as_it_is_they_are_those_that_steps_leave(method: str) -> None:
    """Views and mixing have a spread of their own: a shift of a digit doubles that of a pixel."""
    cell = "digits/sl-40" if method == "supervised" else f"digits/{method}-40"
    run = replace(
        recipes.get(cell),
        device="cpu",
        precision="float64",
        optim={"lr": 1e-12, "ema_bn": "recompute"},
    )
    trainer = Trainer(run)
    for t in range(100):
        trainer.step(t)
    layers = [m for m in trainer.teacher.model.modules() if isinstance(m, nn.BatchNorm1d)]
    steps = [m.running_var.mean() for m in layers if m.running_var is not None]
    trainer.recompute_bn()
    own = [m.running_var.mean() for m in layers if m.running_var is not None]
    assert len(own) == 2 and all(
        float(a / b) == pytest.approx(1, abs=0.1) for a, b in zip(own, steps, strict=True)
    )


def test_steps_do_not_notice(tmp_path: Path) -> None:
    ends = {}
    for statistics in ("copy", "recompute"):
        run = run_of(
            statistics=statistics,
            steps=6,
            eval_every=2,
            save_every=3,
            out=str(tmp_path / statistics),
        )
        train(run, quiet=True)
        ends[statistics] = load_file(
            tmp_path / statistics / "checkpoints" / "0000000006.safetensors"
        )
    differing = {
        n for n, value in ends["recompute"].items() if not torch.equal(value, ends["copy"][n])
    }
    assert differing and all(
        n.startswith("teacher.") and n.rpartition(".")[2] in COUNTED for n in differing
    )


def test_a_runs_checkpoint_has_the_statistics_that_it_was_evaluated_with(tmp_path: Path) -> None:
    """Whoever opens it needs no samples; evaluating it again gives the same figures."""
    out = tmp_path / "run"
    result = train(run_of(steps=6, eval_every=3, out=str(out)), quiet=True)
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    loaded = load_full_state(out).trainer
    test = loaded.splits.test
    assert float(loaded.task.metric(loaded.predict(test), test.y)) == pytest.approx(last["test"])
    assert (
        evaluate_run(str(out))["test"]["error (%)"] == pytest.approx(last["test"]) == result.metric
    )


def test_a_checkpoint_between_evaluations_has_them_too(tmp_path: Path) -> None:
    train(run_of(steps=6, eval_every=6, save_every=4, out=str(tmp_path / "run")), quiet=True)
    saved = load_file(tmp_path / "run" / "checkpoints" / "0000000004.safetensors")
    trainer = started(run_of(steps=6))  # of which it takes four
    trainer.recompute_bn()
    for name, value in trainer.teacher.model.state_dict().items():
        torch.testing.assert_close(saved[f"teacher.{name}"], value)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (3, [3]), (9, [9]), (11, [6, 5])])
def test_no_sample_is_normalised_alone(count: int, sizes: list[int]) -> None:
    met: list[int] = []
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[1].register_forward_pre_hook(lambda _, args: met.append(len(args[0])))
    samples = Samples(torch.randn(count, 2), torch.zeros(count))
    assert compute_outputs_train_bn(model, samples, lambda x: x, batch_size=5).shape == (count, 2)
    assert met == sizes


def test_streamed_images_are_drawn_beside_the_run_and_leave_it_as_it_is(tmp_path: Path) -> None:
    ends = {}
    for statistics in ("copy", "recompute"):
        torch.manual_seed(0)
        run = case_of("streamed images", tmp_path / "run", threads=1)
        trainer = Trainer(replace(run, steps=3, optim={"ema_bn": statistics}))
        with closing(trainer):
            for t in range(2):
                trainer.step(t)
                trainer.recompute_bn()
            ends[statistics] = {n: value.clone() for n, value in trainer.state_dict().items()}
    differing = {
        n for n, value in ends["recompute"].items() if not torch.equal(value, ends["copy"][n])
    }
    assert differing and all(
        n.startswith("teacher.") and n.rpartition(".")[2] in COUNTED for n in differing
    )


def test_an_average_moves_its_weights_and_copies_the_buffers_of_the_model() -> None:
    model = nn.BatchNorm1d(2)
    teacher = Teacher(model)
    start = teacher.flat.values.clone()
    model.running_mean.fill_(3.0)  # type: ignore[union-attr]
    model.num_batches_tracked.fill_(7)  # type: ignore[union-attr]
    teacher.update(model, start + 8.0, torch.tensor(0.25))
    torch.testing.assert_close(teacher.flat.values, start + 2.0)
    for one in (model, teacher.model):  # copied from the model, which stays as it was
        assert one.running_mean.tolist() == [3.0, 3.0]  # type: ignore[union-attr, operator]
        assert int(one.num_batches_tracked) == 7  # type: ignore[arg-type]
    model.running_mean.fill_(5.0)  # type: ignore[union-attr]
    assert teacher.model.running_mean.tolist() == [3.0, 3.0]  # type: ignore[union-attr, operator]


def test_a_batch_is_normalised_by_itself_without_dropout_and_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    x = torch.randn(6, 3)
    outputs = compute_outputs_train_bn(model, Samples(x, torch.zeros(6)), lambda raw: raw)
    by_hand = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(outputs, by_hand)
    assert model[1].training and model[0].running_mean.tolist() == [0.0] * 3  # type: ignore[union-attr, operator]
