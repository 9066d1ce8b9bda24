"""Labelled and unlabelled samples in one forward, and labelled ones on their strong view."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from l2i import Augment, Run, Trainer, recipes, replace, train
from l2i.errors import InputError

SMALL = {
    "device": "cpu",
    "precision": "float64",
    "threads": 1,
    "model": {"name": "wide-resnet", "depth": 10, "width": 1},
    "batch": {"labeled": 6, "unlabeled": 9, "holdout": 5, "joint": "all"},
}


def run_of(cell: str, **changes: object) -> Run:
    return replace(recipes.get(f"digits/{cell}"), **SMALL, **changes)


class Counting(nn.Module):
    """A network that counts its passes in train mode, and their samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head, self.sizes = nn.Linear(8, 10), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return self.head(self.body(x))


def test_the_gradient_is_that_of_one_forward_by_hand() -> None:
    """FixMatch in float64: cross-entropies of a part of the outputs each, labels from another part, cut off."""
    trainer = Trainer(run_of("fixmatch-40", method={"threshold": 0.2}))
    batch = trainer.loader.draw(3)
    found = trainer.base_gradient(batch, 3)
    params = {name: p.detach().clone().requires_grad_() for name, p in trainer.params.items()}
    running = {name: b.clone() for name, b in trainer.model.named_buffers()}
    joined = torch.cat([batch.labeled.x, batch.unlabeled.weak, batch.unlabeled.strong])
    labeled, weak, strong = functional_call(trainer.model, (params, running), joined).split([6, 9, 9])
    confidence, label = weak.detach().softmax(1).max(1)
    kept = confidence >= 0.2
    assert 0 < int(kept.sum()) < 9  # else the mask would go unseen
    cost = F.cross_entropy(labeled, batch.labeled.y)
    cost = cost + (kept * F.cross_entropy(strong, label, reduction="none")).mean()
    wanted = torch.autograd.grad(cost, list(params.values()))
    for name, value in zip(params, wanted, strict=True):
        assert torch.allclose(found[name], value, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize(
    ("cell", "changes", "sizes"),
    [
        ("fixmatch-40", {}, [24]),
        ("uda-40", {}, [24]),
        ("pi-model-40", {}, [24]),
        ("pseudo-label-40", {"method": {"student_view": "weak"}}, [15]),  # labelled and learned on one view
        ("mean-teacher-40", {}, [15]),  # the teacher passes its own, and is another network
        ("sl-40", {}, [6]),
        ("fixmatch-l2i-40", {}, [24, 9, 9, 5]),  # the outer step's are passed apart
        ("fixmatch-40", {"joint": "learned"}, [15, 9]),
        ("mean-teacher-40", {"joint": "learned"}, [15]),
    ],
)
def test_a_base_step_passes_its_samples_once(cell: str, changes: dict[str, Any], sizes: list[int]) -> None:
    model = Counting()
    how = {"joint": changes.get("joint", "all")}
    run = run_of(cell, **{name: value for name, value in changes.items() if name != "joint"})
    trainer = Trainer(replace(run, batch=how), model=model)
    model.sizes.clear()
    trainer.step(0)
    assert sorted(model.sizes, reverse=True) == sizes


def test_without_batchnorm_one_forward_is_as_good_as_several() -> None:
    found = []
    for joint in ("no", "learned", "all"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
        trainer = Trainer(replace(run_of("fixmatch-l2i-40"), batch={"joint": joint}), model=model)
        for step in range(3):
            trainer.step(step)
        found.append([p.detach() for p in trainer.model.parameters()])
    for a, b, c in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12) and torch.allclose(a, c, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", ["mixmatch-40", "vat-40", "mixup-40"])
def test_methods_that_make_samples_of_their_own_refuse(cell: str) -> None:
    with pytest.raises(InputError, match="makes others of them; leave it out"):
        Trainer(run_of(cell))


def test_a_joint_run_trains_and_goes_on(tmp_path: Path) -> None:
    run = replace(run_of("fixmatch-l2i-40"), steps=4, eval_every=2, data={"num_test": 20}, out=str(tmp_path / "run"))
    assert train(run).steps == 4


def test_labelled_samples_are_learned_on_the_view_that_the_run_names() -> None:
    plain = {"weak": Augment(), "strong": Augment(cutout=8, fill=9.0)}
    for view in ("weak", "strong"):
        trainer = Trainer(run_of("fixmatch-l2i-40", data={**plain, "labeled_view": view}))
        batch = trainer.loader.draw(1)
        assert bool((batch.labeled.x == 9.0).any()) == (view == "strong")
        assert batch.holdout is not None and not bool((batch.holdout.x == 9.0).any())
