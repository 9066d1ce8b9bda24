"""What only a CUDA device can show; skipped without one."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_only

from formats import write_cifar10
from image_folders import write_class_folders
from l2i import Augment, Run, Trainer, recipes, replace

pytestmark = pytest.mark.gpu
PAPER = {"outer_update": "paper", "eta": 0.1, "inner_supervised": True}


def conv(cell: str = "digits", **changes: object) -> Run:
    return replace(recipes.get(cell), **{"model": {"name": "conv", "width": 8}, **changes})


def cost_unwaited(trainer: Trainer) -> float:
    """C^T of a second step in which waiting for the device is an error."""
    trainer.step(0)
    try:
        torch.cuda.set_sync_debug_mode("error")
        trainer.step(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return trainer.meter.read()["c_t"]


@pytest.mark.parametrize("hypergradient", ["exact", "last_layer", "finite_difference"])
def test_the_outer_gradient_is_the_cpus(hypergradient: str) -> None:
    batch = Trainer(conv(device="cpu", precision="float64")).loader.draw(0)
    gradients = []
    for device in ("cpu", "cuda"):
        trainer = Trainer(conv(device=device, precision="float64", l2i={"hypergradient": hypergradient}))
        there = tree_map_only(torch.Tensor, partial(torch.Tensor.to, device=device), batch)
        gradients.append(trainer.outer_gradient(there, 0).gradient)
    for name, value in gradients[0].items():
        assert torch.allclose(value, gradients[1][name].cpu(), rtol=1e-6, atol=1e-10), name


@pytest.mark.parametrize(
    "l2i", [{"outer_update": "off"}, {}, {"hypergradient": "exact"}, {**PAPER, "labels": "learnable"}], ids=str
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("cell", ["digits/fixmatch-l2i-40", "digits/mixmatch-l2i-40", "digits/mean-teacher-l2i-40"])
def test_a_step_does_not_wait_for_the_device(cell: str, l2i: dict[str, object]) -> None:
    assert cost_unwaited(Trainer(conv(cell, device="cuda", l2i=l2i))) > 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    "cell", ["fixmatch-l2i-250", "vat-250", "mixup-250", "uda-l2i-250", "mean-teacher-l2i-250-exact"]
)
def test_a_step_on_8_bit_images_does_not_wait_for_the_device(cell: str, tmp_path: Path) -> None:
    run = replace(
        recipes.get(f"cifar10/{cell}"),
        device="cuda",
        data={"root": str(write_cifar10(tmp_path)), "num_labeled": 20, "num_validation": 10},
        batch={"labeled": 8, "unlabeled": 16, "holdout": 8},
        model={"depth": 10, "width": 1},
    )
    assert cost_unwaited(Trainer(run)) > 0


def test_streamed_images_train_as_on_the_cpu(tmp_path: Path) -> None:
    """The same rows and, without augmentation, the same costs, whether copied ahead to the GPU or not."""
    root = str(write_class_folders(tmp_path, classes=3, per_class=6, size=72))
    costs = []
    for device in ("cpu", "cuda"):
        run = replace(recipes.get("imagenet/fixmatch-l2i"), device=device, precision="float64", steps=9)
        plain = {"weak": Augment(), "strong": Augment(), "root": root, "workers": 2}
        batch = {"labeled": 3, "unlabeled": 4, "holdout": 3}
        trainer = Trainer(replace(run, data=plain, batch=batch, model={"depth": 8}))
        for step in range(4):
            trainer.step(step)
        costs.append(trainer.meter.read()["c_t"])
        trainer.close()
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)


def test_bf16_comes_close_to_float32() -> None:
    costs = []
    for precision in ("bf16", "float32"):
        trainer = Trainer(conv(device="cuda", precision=precision))
        for step in range(5):
            trainer.step(step)
        trainer.meter.check()
        costs.append(trainer.meter.read()["c_t"])
    assert costs[0] == pytest.approx(costs[1], rel=0.05)


def test_a_saved_state_goes_on_where_it_was() -> None:
    first, second = (Trainer(conv(device="cuda", model={"dropout": 0.5})) for _ in range(2))
    for step in range(3):
        first.step(step)
    kept = {name: value.clone() for name, value in first.state().items()}
    first.step(3)
    second.load(kept)
    second.step(3)
    for (name, a), b in zip(first.state().items(), second.state().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5), name
