"""The outer step as a whole: what moves, what stays."""

import pytest
import torch

from l2i.bilevel import (
    LearnableLabels,
    OuterStep,
    OutputLabels,
    Problem,
    exact,
    lookahead,
    norm,
    normalized_sum,
)
from l2i.bilevel.problem import Imputed
from l2i.errors import InputError
from problems import FLOAT64, ToyProblem, problem

SETTINGS = {"O": OutputLabels(), "L": LearnableLabels(normalized=True)}


def compute_outer_gradient(p: ToyProblem, step: OuterStep) -> dict[str, torch.Tensor]:
    return step(Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=0.2)).gradient


@pytest.mark.parametrize("labels", SETTINGS)
@pytest.mark.parametrize("hypergradient", ["exact", "last_layer"])
def test_outer_step_leaves_parameters_running_stats_and_batch_untouched(
    labels: str, hypergradient: str
) -> None:
    import l2i.bilevel

    p = problem("mean-teacher")
    before = {name: value.clone() for name, value in p.model.state_dict().items()}
    inputs = p.batch.unlabeled.weak.clone()
    step = OuterStep(hypergradient=getattr(l2i.bilevel, hypergradient), labels=SETTINGS[labels])
    gradient = compute_outer_gradient(p, step)
    assert set(gradient) == set(p.params)
    assert norm(gradient) > 0
    assert all(torch.equal(before[name], value) for name, value in p.model.state_dict().items())
    assert all(value.grad is None for value in p.model.parameters())
    assert torch.equal(inputs, p.batch.unlabeled.weak)


def test_output_labels_reach_the_parameters_by_backward_through_z() -> None:
    p = problem()
    gradient = compute_outer_gradient(p, OuterStep(hypergradient=exact))
    imputed = p.impute()
    d_z = exact(Problem(p.model, p.params, p.student(), imputed, p.c_h, eta=0.2))
    imputed.z.backward(d_z)
    for name, value in p.params.items():
        assert torch.allclose(gradient[name], value.grad, rtol=1e-12, atol=1e-15)


def test_learnable_labels_pull_the_student_to_the_moved_labels() -> None:
    p = problem()
    labels = LearnableLabels(label_lr=0.5, normalized=True)
    gradient = compute_outer_gradient(p, OuterStep(hypergradient=exact, labels=labels))
    imputed = p.impute().detach()
    d_z = exact(Problem(p.model, p.params, p.student(), imputed, p.c_h, eta=0.2))
    logits = imputed.z.log().requires_grad_()
    (d_p,) = torch.autograd.grad(logits.softmax(1), logits, d_z)
    target = (logits - 0.5 * d_p * len(d_p) / d_p.norm()).softmax(1).detach()
    cost = p.student().cost_of(lookahead(p.model, p.params), Imputed(target, imputed.weight))
    for name, wanted in zip(
        p.params, torch.autograd.grad(cost, list(p.params.values())), strict=True
    ):
        assert torch.allclose(gradient[name], wanted, rtol=1e-12, atol=1e-15)


def test_learnable_labels_stay_distributions_and_leave_the_given_labels_alone() -> None:
    z = torch.rand(6, 4, dtype=FLOAT64).softmax(1)
    saved = z.clone()
    moved = LearnableLabels(label_lr=3.0).step_labels(z, torch.randn_like(z))
    assert torch.allclose(moved.sum(1), torch.ones(6, dtype=FLOAT64))
    assert torch.equal(z, saved)
    assert not torch.allclose(moved, z)


def test_hard_labels_can_be_learned_as_parameters_and_not_as_output() -> None:
    p = problem("fixmatch")
    with pytest.raises(InputError, match="use soft labels, or labels='learnable'"):
        compute_outer_gradient(p, OuterStep(hypergradient=exact))
    gradient = compute_outer_gradient(
        p, OuterStep(hypergradient=exact, labels=LearnableLabels(normalized=True))
    )
    assert norm(gradient) > 0


def test_normalized_sum_holds_the_ratio_whatever_the_scale() -> None:
    base, outer = ({"a": torch.randn(3, 2), "b": torch.randn(5)} for _ in range(2))
    total = normalized_sum(base, outer, rho=0.3)
    added = {name: total[name] - base[name] for name in base}
    assert float(norm(added) / norm(base)) == pytest.approx(0.3, rel=1e-5)
    scaled = normalized_sum(base, {name: 1e4 * g for name, g in outer.items()}, rho=0.3)
    assert all(torch.allclose(total[name], scaled[name], rtol=1e-4) for name in base)


def test_normalized_sum_of_a_vanished_outer_gradient_is_the_base_gradient() -> None:
    base = {"a": torch.randn(4)}
    assert torch.equal(normalized_sum(base, {"a": torch.zeros(4)}, rho=0.3)["a"], base["a"])


@pytest.mark.parametrize("with_c_t", [True, False])
def test_mixmatch_takes_c_t_into_the_inner_step_as_a_student(with_c_t: bool) -> None:
    p = problem("mixmatch")
    step = OuterStep(hypergradient=exact)
    mixed = p.supervised() if with_c_t else None
    gradient = step(
        Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=0.2), mixed_c_t=mixed
    ).gradient
    imputed = p.impute()
    inner = p.inner(with_c_t=with_c_t, imputed=imputed)
    d_z = exact(Problem(p.model, p.params, inner["student"], imputed, p.c_h, eta=0.2))
    grads = torch.autograd.grad(imputed.z, list(p.params.values()), d_z)
    assert all(
        torch.allclose(gradient[n], g, rtol=1e-12, atol=1e-15)
        for n, g in zip(p.params, grads, strict=True)
    )


def test_learnable_labels_stay_where_there_is_nothing_to_learn() -> None:
    """In float32 too, where dividing by the smallest number overflows."""
    z = torch.rand(64, 10).softmax(1)
    moved = LearnableLabels(normalized=True).step_labels(z, torch.zeros_like(z))
    assert torch.allclose(moved, z, atol=1e-6)


def test_dropout_masks_are_not_drawn_again_after_the_outer_step() -> None:
    p = problem(dropout=0.5)
    before = torch.get_rng_state()
    step = OuterStep(hypergradient=exact, labels=LearnableLabels())
    step(Problem(p.model, p.params, p.student(), p.impute().detach(), p.c_h, eta=0.2))
    assert not torch.equal(torch.get_rng_state(), before)
