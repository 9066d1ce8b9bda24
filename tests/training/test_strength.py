"""How strong the outer step is, and when it is taken; float64, against the formulas."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from l2i import InputError, Run, Trainer, recipes, replace, train
from l2i.config.validate import validate


def small(cell: str = "digits/mean-teacher-l2i-40", **l2i: object) -> Run:
    return replace(recipes.get(cell), device="cpu", precision="float64", steps=20, l2i=l2i)


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in gradient.values()])


def moved(run: Run) -> Tensor:
    """What one step of plain SGD with a rate of 1 takes off the parameters: the gradient that it saw."""
    trainer = Trainer(replace(run, optim={"name": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}))
    before = flat({name: p.detach().clone() for name, p in trainer.params.items()})
    trainer.step(0)
    return before - flat({name: p.detach() for name, p in trainer.params.items()})


def parts(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """g_base, g_outer and C^H of the first step."""
    trainer = Trainer(run)
    batch = trainer.loader.draw_batch(0)
    base, outer = (flat(gradient(batch, 0)).detach() for gradient in (trainer.base_gradient, trainer.outer_gradient))
    assert batch.holdout is not None
    with torch.no_grad():
        c_h = trainer.task.loss(trainer.model(batch.holdout.x), batch.holdout.y)
    return base, outer, c_h


@pytest.mark.parametrize("cell", ["digits/mean-teacher-l2i-40", "friedman/mean-teacher-l2i-60"])
@pytest.mark.parametrize(
    ("rho", "fade", "least"), [(1.0, 0.5, 0.1), (3.0, 2.0, 0.0), (0.3, 0.0, 0.0), (0.05, 1.0, 0.1)]
)
def test_rho_fades_as_the_hold_out_labels_are_learned(cell: str, rho: float, fade: float, least: float) -> None:
    run = small(cell, rho=rho, fade=fade, rho_least=least)
    base, outer, c_h = parts(run)
    guess = 1.0 if "friedman" in cell else torch.tensor(10.0).log()
    share = torch.clamp(c_h / guess, max=1.0) ** fade
    strength = torch.clamp(rho * share, min=min(least, rho))
    assert torch.allclose(moved(run), base + strength * base.norm() / outer.norm() * outer, rtol=1e-8, atol=1e-12)


def test_a_learned_hold_out_set_leaves_the_least_strength() -> None:
    clock = Trainer(small(rho=1.0, fade=0.5, rho_least=0.1)).scalars
    clock.set_step(0)
    costs = torch.tensor([9.0, 1.0, 0.25, 1e-9]).double()
    assert torch.allclose(clock.compute_rho(costs, 1.0), torch.tensor([1.0, 1.0, 0.5, 0.1]).double())


def test_no_strength_is_no_outer_gradient() -> None:
    run = small(rho=0.0)
    assert torch.allclose(moved(run), parts(run)[0], atol=1e-14)


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [1.0, 1.0, 1.0]),
        ("falling", [1.0, 0.5, 0.05]),
        ("rate", [1.0, 0.1, 0.1]),
        ("weight", [0.0, 1.0, 1.0]),
    ],
)
def test_rho_follows_its_schedule(schedule: str, wanted: list[float]) -> None:
    run = replace(small(rho=1.0, rho_schedule=schedule), optim={"schedule": "step", "milestones": (10,)})
    clock = Trainer(run).scalars
    found = []
    for t in (0, 10, 19):
        clock.set_step(t)
        found.append(float(clock.rho))
    assert found == pytest.approx(wanted)


def test_a_turned_step_is_as_long_as_that_of_the_method_alone() -> None:
    run = small(rho=2.0, preserve_step_norm=True)
    base, outer, _ = parts(run)
    total = base / base.norm() + 2 * outer / outer.norm()
    assert torch.allclose(moved(run), base.norm() * total / total.norm(), rtol=1e-8, atol=1e-12)


def test_the_control_adds_the_hold_out_batchs_own_gradient() -> None:
    run = small(through="parameters", rho=1.0)
    trainer = Trainer(run)
    batch = trainer.loader.draw_batch(0)
    assert batch.holdout is not None
    cost = trainer.task.loss(trainer.model(batch.holdout.x), batch.holdout.y)
    wanted = flat(dict(enumerate(torch.autograd.grad(cost, list(trainer.params.values())))))  # type: ignore[arg-type]
    base, outer, _ = parts(run)
    assert torch.allclose(outer, wanted, rtol=1e-9, atol=1e-13)
    assert torch.allclose(moved(run), base + base.norm() / outer.norm() * outer, rtol=1e-8, atol=1e-12)


def test_the_outer_step_starts_when_it_is_told_to(tmp_path: Path) -> None:
    alone = replace(small(update="off"), out=str(tmp_path / "alone"), eval_every=5)
    late = replace(small(start=0.5), out=str(tmp_path / "late"), eval_every=5)
    train(alone)
    train(late)
    rows = [json.loads(line) for line in (tmp_path / "late" / "metrics.jsonl").read_text().splitlines()]
    assert [row["c_h"] is None for row in rows] == [True, True, False, False]
    other = [json.loads(line) for line in (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()]
    assert [row["c_t"] for row in rows[:2]] == [row["c_t"] for row in other[:2]]
    assert rows[3]["c_t"] != other[3]["c_t"]


@pytest.mark.parametrize(
    ("l2i", "message"),
    [
        (
            {"through": "parameters", "update": "paper", "eta": 1.0},
            "l2i.through is for update='normalized'",
        ),
        ({"preserve_step_norm": True, "update": "paper", "eta": 1.0}, "l2i.preserve_step_norm is for update='normalized'"),
        ({"outer_target": "logits", "labels": "learnable"}, "imputes no labels that could be learned"),
        ({"rho_least": -1.0}, "l2i.rho_least=-1.0 must be at least 0"),
        ({"start": 1.5}, "l2i.start=1.5 must be a whole number, or a share"),
    ],
)
def test_what_cannot_be_is_said(l2i: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        validate(small(**l2i))
