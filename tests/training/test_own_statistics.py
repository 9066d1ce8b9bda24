"""The averaged model's own BatchNorm statistics, against means taken by hand, and the run beside them."""

import json
from dataclasses import replace as replace_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from l2i import Run, Trainer, recipes, replace, train
from l2i.data.split import Samples
from l2i.ranks import ALONE
from l2i.training.load import evaluate_run, load_whole
from l2i.training.own_statistics import BATCH, SAMPLES, SEED, outputs_in_training, renew_statistics, seen, shared

COUNTED = ("running_mean", "running_var", "num_batches_tracked")
NET = {"name": "wide-resnet", "depth": 10, "width": 1}


def run_of(cell: str = "digits/mean-teacher-40", statistics: str = "own", **changes: Any) -> Run:
    optim = {"ema_statistics": statistics, "ema_decay": 0.9}
    return replace(recipes.get(cell), device="cpu", precision="float64", model=NET, optim=optim, **changes)


def started(run: Run) -> Trainer:
    trainer = Trainer(run)
    for t in range(4):
        trainer.step(t)
    return trainer


def test_they_are_the_means_over_mini_batches_of_the_averaged_model() -> None:
    trainer = started(run_of())
    some = seen(trainer).x
    assert isinstance(some, Tensor)
    model, met, generator = trainer.teacher.model, list[Tensor](), torch.Generator().manual_seed(SEED)
    layer = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    handle = layer.register_forward_pre_hook(lambda _, args: met.append(args[0].detach()))
    with torch.no_grad():
        for part in some.split(BATCH):
            model(trainer.loader.viewed(part, trainer.run.data.weak, generator))  # each with its own statistics
    handle.remove()
    renew_statistics(trainer)
    assert len(met) == SAMPLES // BATCH > 1
    means = torch.stack([x.mean((0, 2, 3)) for x in met]).mean(0)
    variances = torch.stack([x.var((0, 2, 3)) for x in met]).mean(0)
    torch.testing.assert_close(layer.running_mean, means)
    torch.testing.assert_close(layer.running_var, variances)


def test_modes_and_momenta_are_left_as_they_were_and_a_layer_in_evaluation_mode_too() -> None:
    trainer = started(run_of())
    layers = [m for m in trainer.teacher.model.modules() if isinstance(m, nn.BatchNorm2d)]
    layers[0].eval()
    kept = [(m.training, m.momentum) for m in layers]
    still = layers[0].running_mean
    assert still is not None
    before = still.clone()
    renew_statistics(trainer)
    assert [(m.training, m.momentum) for m in layers] == kept and bool((before == still).all())


def test_unlabelled_samples_serve_and_labelled_ones_where_there_are_no_others() -> None:
    """Each of them as often as any other, but for one."""
    for cell, part in (("digits/mean-teacher-40", "unlabeled"), ("digits/sl-40", "labeled")):
        trainer = Trainer(run_of(cell))
        found, source = seen(trainer).x, getattr(trainer.splits, part).x
        assert isinstance(found, Tensor) and len(found) == SAMPLES
        times = (found[:, None].flatten(2) == source[None].flatten(2)).all(dim=2).sum(dim=0)
        assert int(times.min()) >= 1 and int(times.max() - times.min()) <= 1


@pytest.mark.parametrize("cell", ["digits/fixmatch-40", "digits/sl-40"])
def test_they_have_the_spread_of_the_views_that_a_run_learns_from(cell: str) -> None:
    """At an average of no memory they are those that the steps left; shifts of digits double the spread of a pixel."""
    trainer = Trainer(replace(recipes.get(cell), device="cpu", optim={"ema_statistics": "own", "ema_decay": 0.0}))
    for t in range(60):
        trainer.step(t)
    layers = [m for m in trainer.teacher.model.modules() if isinstance(m, nn.BatchNorm1d)]
    steps = [m.running_var.sum() for m in layers if m.running_var is not None]
    renew_statistics(trainer)
    own = [m.running_var.sum() for m in layers if m.running_var is not None]
    assert len(own) == 2 and all(0.8 < float(a / b) < 1.25 for a, b in zip(own, steps, strict=True))


def test_steps_do_not_notice(tmp_path: Path) -> None:
    ends = {}
    for statistics in ("copied", "own"):
        run = run_of(statistics=statistics, steps=6, eval_every=2, save_every=3, out=str(tmp_path / statistics))
        train(run, quiet=True)
        ends[statistics] = load_file(tmp_path / statistics / "checkpoints" / "0000000006.safetensors")
    differing = {n for n, value in ends["own"].items() if not torch.equal(value, ends["copied"][n])}
    assert differing and all(n.startswith("teacher.") and n.rpartition(".")[2] in COUNTED for n in differing)


def test_a_runs_checkpoint_has_the_statistics_that_it_was_evaluated_with(tmp_path: Path) -> None:
    """Whoever opens it needs no samples; evaluating it again gives the same figures."""
    out = tmp_path / "run"
    result = train(run_of(steps=6, eval_every=3, out=str(out)), quiet=True)
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    loaded = load_whole(out).trainer
    test = loaded.splits.test
    assert float(loaded.task.figure(loaded.predict(test), test.y)) == pytest.approx(last["test"])
    assert evaluate_run(str(out))["test"]["error (%)"] == pytest.approx(last["test"]) == result.figure


def test_a_checkpoint_between_evaluations_has_them_too(tmp_path: Path) -> None:
    train(run_of(steps=6, eval_every=6, save_every=4, out=str(tmp_path / "run")), quiet=True)
    kept = load_file(tmp_path / "run" / "checkpoints" / "0000000004.safetensors")
    trainer = started(run_of(steps=6))  # of which it takes four
    renew_statistics(trainer)
    for name, value in trainer.teacher.model.state_dict().items():
        torch.testing.assert_close(kept[f"teacher.{name}"], value)


def test_parts_of_processes_are_even_and_none_is_empty() -> None:
    raw = torch.arange(7)
    parts = [shared(raw, replace_dataclass(ALONE, index=index, size=3)) for index in range(3)]
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert shared(raw[:2], replace_dataclass(ALONE, index=2, size=3)).tolist() == [0, 1]


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (3, [3]), (9, [9]), (11, [6, 5])])
def test_no_sample_is_normalised_alone(count: int, sizes: list[int]) -> None:
    met: list[int] = []
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[1].register_forward_pre_hook(lambda _, args: met.append(len(args[0])))
    samples = Samples(torch.randn(count, 2), torch.zeros(count))
    assert outputs_in_training(model, samples, lambda x: x, size=5).shape == (count, 2)
    assert met == sizes
