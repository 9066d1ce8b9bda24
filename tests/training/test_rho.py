"""How strong the outer step is; float64, against the formulas."""

import pytest
import torch
from torch import Tensor

from l2i import InputError, Run, Trainer, recipes, replace
from l2i.config.validate import validate


def small(cell: str = "digits/mean-teacher-l2i-40", **l2i: object) -> Run:
    return replace(recipes.get(cell), device="cpu", precision="float64", steps=20, l2i=l2i)


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in gradient.values()])


def moved(run: Run) -> Tensor:
    """What a first step of SGD with a rate of 1 takes off the parameters: the gradient it saw."""
    trainer = Trainer(replace(run, optim={"name": "sgd", "lr": 1.0, "weight_decay": 0.0}))
    before = flat({name: p.detach().clone() for name, p in trainer.params.items()})
    trainer.step(0)
    return before - flat({name: p.detach() for name, p in trainer.params.items()})


def parts(run: Run) -> tuple[Tensor, Tensor]:
    """g_base and g_outer of the first step."""
    trainer = Trainer(run)
    batch = trainer.loader.draw_batch(0)
    base, outer = (
        flat(gradient(batch, 0)).detach()
        for gradient in (trainer.compute_base_gradient, trainer.compute_outer_gradient)
    )
    return base, outer


@pytest.mark.parametrize("cell", ["digits/mean-teacher-l2i-40", "friedman/mean-teacher-l2i-60"])
@pytest.mark.parametrize("rho", [1.0, 3.0, 0.3, 0.05])
def test_the_outer_gradient_is_added_at_rho_times_the_length_of_the_base_gradient(
    cell: str, rho: float
) -> None:
    run = small(cell, rho=rho)
    base, outer = parts(run)
    assert torch.allclose(
        moved(run), base + rho * base.norm() / outer.norm() * outer, rtol=1e-8, atol=1e-12
    )


def test_no_strength_is_no_outer_gradient() -> None:
    run = small(rho=0.0)
    assert torch.allclose(moved(run), parts(run)[0], atol=1e-14)


def test_rho_stays_as_the_rate_falls_and_the_weight_grows() -> None:
    run = replace(small(rho=1.0), optim={"schedule": "step", "milestones": (10,)})
    clock = Trainer(run).scalars
    actual = []
    for t in (0, 10, 19):
        clock.set_step(t)
        actual.append(float(clock.rho))
    assert actual == pytest.approx([1.0, 1.0, 1.0])


def test_a_turned_step_is_as_long_as_that_of_the_method_alone() -> None:
    run = small(rho=2.0, preserve_step_norm=True)
    base, outer = parts(run)
    total = base / base.norm() + 2 * outer / outer.norm()
    assert torch.allclose(moved(run), base.norm() * total / total.norm(), rtol=1e-8, atol=1e-12)


def test_the_control_adds_the_hold_out_batchs_own_gradient() -> None:
    run = small(ablation="direct_gradient", rho=1.0)
    trainer = Trainer(run)
    batch = trainer.loader.draw_batch(0)
    assert batch.holdout is not None
    cost = trainer.task.loss(trainer.model(batch.holdout.x), batch.holdout.y)
    wanted = flat(dict(enumerate(torch.autograd.grad(cost, list(trainer.params.values())))))  # type: ignore[arg-type]
    base, outer = parts(run)
    assert torch.allclose(outer, wanted, rtol=1e-9, atol=1e-13)
    assert torch.allclose(
        moved(run), base + base.norm() / outer.norm() * outer, rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize(
    ("l2i", "message"),
    [
        (
            {"preserve_step_norm": True, "update": "paper", "paper": {"eta": 1.0}},
            "l2i.preserve_step_norm needs l2i.update='normalized'",
        ),
        ({"rho": -1.0}, "l2i.rho=-1.0 must be at least 0"),
    ],
)
def test_what_cannot_be_is_said(l2i: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        validate(small(**l2i))
