"""Optimizers, schedules and the scalars of a step, against torch's own and formulas by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

from l2i import InputError, recipes, replace
from l2i.config import Optim
from l2i.training.optimizer import (
    FlatParameters,
    Stepper,
    StepScalars,
    clip_gradient,
    compute_layerwise_lr_scales,
    compute_lr_factor,
)

ONE = torch.ones(())


@pytest.mark.parametrize(
    ("optim", "wanted"),
    [
        (Optim(), [1, 1, 1, 1]),
        (Optim(schedule="linear"), [1, 0.75, 0.5, 0.01]),
        (Optim(schedule="cosine"), [math.cos(7 * math.pi * t / 16) for t in (0, 0.25, 0.5, 0.99)]),
        (Optim(schedule="step", milestones=(25, 0.5, 99)), [1, 0.1, 0.01, 0.001]),
        (Optim(warmup=50), [0, 0.5, 1, 1]),
        (Optim(warmup=0.5, schedule="linear"), [0, 0.5, 0.5, 0.01]),
    ],
    ids=["constant", "linear", "cosine", "step", "warm-up", "warm-up and linear"],
)
def test_a_rate_has_these_values_on_the_way(optim: Optim, wanted: list[float]) -> None:
    actual = [compute_lr_factor(optim, step, 100) for step in (0, 25, 50, 99)]
    assert actual == pytest.approx(wanted)


def run_steps(stepper: Stepper, gradients: list[dict[str, Tensor]], factor: float = 1.0) -> None:
    for gradient in gradients:
        stepper({name: g.clone() for name, g in gradient.items()}, torch.tensor(factor))
        stepper.apply_weight_decay()


def test_sgd_has_a_momentum_of_nine_tenths_and_the_factor_scales_its_rate() -> None:
    w = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    run_steps(
        Stepper({"w": w}, Optim(name="sgd", lr=0.5)),
        [{"w": torch.tensor([1.0], dtype=torch.float64)}] * 2,
        factor=0.2,
    )
    assert float(w.detach()) == pytest.approx(1 - 0.1 * 1 - 0.1 * 1.9)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_coupled_decay_is_part_of_the_gradient_and_decoupled_decay_is_not(name: str) -> None:
    start, g = torch.tensor([2.0, -1.0]), torch.tensor([0.3, 0.1])
    ends = {}
    for mode in ("l2", "decoupled"):
        w = nn.Parameter(start.clone())
        optim = Optim(name=name, lr=0.1, weight_decay=0.01, weight_decay_mode=mode)
        run_steps(Stepper({"w": w}, optim), [{"w": g}] * 3)
        ends[mode] = w.detach()
    theirs = {mode: nn.Parameter(start.clone()) for mode in ends}
    for mode, w in theirs.items():
        l2 = 0.01 if mode == "l2" else 0.0
        reference: torch.optim.Optimizer = torch.optim.SGD([w], 0.1, 0.9, weight_decay=l2)
        if name == "adam":
            reference = torch.optim.Adam([w], 0.1, weight_decay=l2)
        for _ in range(3):
            w.grad = g.clone()
            reference.step()
            if mode == "decoupled":
                w.data.mul_(0.99)
        torch.testing.assert_close(ends[mode], w.detach())


def test_a_step_leaves_no_gradient_behind_and_takes_none_that_was_there() -> None:
    w = nn.Parameter(torch.zeros(2))
    w.grad = torch.full((2,), 100.0)
    stepper = Stepper({"w": w}, Optim(name="sgd", lr=1.0))
    stepper({"w": torch.tensor([1.0, 2.0])}, ONE)
    assert w.tolist() == [-1.0, -2.0] and w.grad is None


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_an_optimizer_goes_on_from_its_state(name: str) -> None:
    first, second, third = ({"a": nn.Parameter(torch.ones(3))} for _ in range(3))
    steppers = [Stepper(p, Optim(name=name, lr=0.1)) for p in (first, second, third)]
    gradients = [{"a": torch.randn(3)} for _ in range(4)]
    run_steps(steppers[0], gradients[:2])
    state = {key: value.clone() for key, value in steppers[0].state_dict().items()}
    run_steps(steppers[2], gradients[2:])  # has moments of its own
    own = {key: value.data_ptr() for key, value in steppers[2].state_dict().items()}
    for p in (second, third):
        p["a"].data.copy_(first["a"].data)
    for stepper in steppers[1:]:
        stepper.load_state_dict({key: value.clone() for key, value in state.items()})
    assert {k: v.data_ptr() for k, v in steppers[2].state_dict().items()} == own  # filled in place
    for stepper in steppers:
        run_steps(stepper, gradients[2:])
    assert torch.equal(first["a"], second["a"]) and torch.equal(first["a"], third["a"])


def test_moments_of_several_groups_are_those_of_their_parameters() -> None:
    names = ("encoder.layer.0.weight", "head.weight", "encoder.layer.1.weight")
    params = [
        {n: nn.Parameter(torch.full((i + 1,), 1.0)) for i, n in enumerate(names)} for _ in "ab"
    ]
    optim = Optim(name="adam", lr=0.1, layer_decay=0.5)
    first, second = (Stepper(p, optim) for p in params)
    gradients = [{n: torch.randn(i + 1) for i, n in enumerate(names)} for _ in range(3)]
    run_steps(first, gradients[:2])
    second.load_state_dict({key: value.clone() for key, value in first.state_dict().items()})
    for n in names:
        params[1][n].data.copy_(params[0][n].data)
    for stepper in (first, second):
        run_steps(stepper, gradients[2:])
    assert all(torch.equal(params[0][n], params[1][n]) for n in names)


def test_the_share_of_a_layer_is_told_by_its_number() -> None:
    names = [
        "model.embeddings.word.weight",
        "model.encoder.layer.0.attention.weight",
        "model.layers.2.weight",
        "layer.1.bias",
        "pooler.weight",
        "multilayer.5.weight",
    ]
    shares = compute_layerwise_lr_scales(names, 0.5)
    assert list(shares.values()) == [0.0625, 0.125, 0.5, 0.25, 1.0, 1.0]


def test_layers_are_asked_for_only_where_rates_differ() -> None:
    assert compute_layerwise_lr_scales(["a", "b"], 1.0) == {"a": 1.0, "b": 1.0}
    with pytest.raises(InputError, match="numbered layers"):
        compute_layerwise_lr_scales(["a", "embed"], 0.9)


@pytest.mark.parametrize(("most", "norm"), [(4.9, 4.9), (5.0, 5.0), (5.1, 5.0), (0.0, 5.0)])
def test_the_norm_of_all_parts_together_is_clipped(most: float, norm: float) -> None:
    gradient = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    clipped = clip_gradient(gradient, most)
    assert list(clipped) == ["a", "b"] and clipped["b"].shape == (1, 1)
    assert float(torch.cat([g.flatten() for g in clipped.values()]).norm()) == pytest.approx(norm)
    assert float(clipped["a"][0] / clipped["b"][0, 0]) == pytest.approx(0.75)


def test_parameters_begin_at_multiples_of_64_values() -> None:
    params = {"a": nn.Parameter(torch.ones(64)), "b": nn.Parameter(torch.ones(65))}
    params["c"] = nn.Parameter(torch.tensor(5.0))
    flat = FlatParameters(params)
    assert [start for _, _, start in flat.layout.values()] == [0, 64, 192]
    assert flat.size == len(flat.values) == 256
    assert float(flat.values.sum()) == 64 + 65 + 5  # zeros in between
    assert float(flat.split(flat.values)["c"]) == 5.0
    assert float(flat.values.norm()) == pytest.approx(math.sqrt(64 + 65 + 25))


def test_a_missing_gradient_is_zero_wherever_it_is_missing() -> None:
    params = {"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(3))}
    flat = FlatParameters(params)
    assert flat.flatten({}).abs().sum() == 0
    piece = flat.flatten({"b": torch.full((3,), 2.0, dtype=torch.float64)})
    assert piece.dtype == torch.float32 and float(piece.sum()) == 6.0
    assert flat.split(piece)["b"].tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("step", "decay", "rate"), [(0, 0.9, 1.0), (1, 0.9, 0.5), (8, 0.9, 1 / 9), (9, 0.9, 0.1)]
)
def test_the_teacher_averages_all_steps_until_its_decay_takes_over(
    step: int, decay: float, rate: float
) -> None:
    run = replace(recipes.get("digits"), optim={"ema_decay": decay}, l2i={"rho": 0.7})
    scalars = StepScalars(run, torch.device("cpu"), torch.float64)
    scalars.set_step(step)
    assert float(scalars.ema_weight) == pytest.approx(rate)
    assert float(scalars.rho) == pytest.approx(0.7) and int(scalars.step) == step


def test_scalars_follow_a_step_back_too() -> None:
    run = replace(recipes.get("digits"), method={"rampup": 10, "weight": 2.0}, steps=100)
    scalars = StepScalars(run, torch.device("cpu"), torch.float64)
    for step, weight in ((0, 0.0), (5, 1.0), (20, 2.0), (20, 2.0), (5, 1.0)):
        scalars.set_step(step)
        assert float(scalars.weight) == pytest.approx(weight) and int(scalars.step) == step


def test_parameters_are_looked_for_where_the_first_of_them_lies() -> None:
    """The first that is trained need not be the first of all."""
    params = {"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(3))}
    flat = FlatParameters(params)
    flat.check_storage(params)
    flat.check_storage({"b": params["b"]})
    moved = {"b": nn.Parameter(params["b"].detach().clone())}
    with pytest.raises(InputError, match="the model was moved"):
        flat.check_storage(moved)
