"""The outer step as a whole: what moves, what stays."""

import math

import pytest
import torch

from l2i.bilevel import (
    LearnableLabels,
    OuterStep,
    OutputLabels,
    Problem,
    combine_normalized,
    exact,
    last_layer,
    lookahead,
    norm,
    normalized_sum,
)
from l2i.bilevel.outer import add_gradients, labels_to_logits, logits_to_labels
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


def test_labels_close_to_zero_survive_the_way_to_logits_and_back() -> None:
    z = torch.tensor([[1e-7, 0.3, 0.7 - 1e-7], [2e-8, 1 - 2e-8 - 1e-5, 1e-5]], dtype=FLOAT64)
    torch.testing.assert_close(logits_to_labels(labels_to_logits(z)), z, rtol=1e-9, atol=0)
    zero = labels_to_logits(torch.tensor([[0.0, 1.0]], dtype=FLOAT64))
    assert zero.tolist() == [[pytest.approx(math.log(1e-8)), 0.0]]


def test_after_an_outer_step_other_dropout_masks_are_drawn_than_it_replayed() -> None:
    """Labels as output pass nothing after the forwards whose masks are replayed."""
    p = problem(dropout=0.5)
    imputed, student, drawn = p.impute(), p.student(), torch.ones(64)
    before = torch.get_rng_state()
    replayed = torch.nn.functional.dropout(drawn)
    torch.set_rng_state(before)
    OuterStep(hypergradient=exact)(Problem(p.model, p.params, student, imputed, p.c_h, eta=0.2))
    assert not torch.equal(torch.nn.functional.dropout(drawn), replayed)


def test_the_cost_after_the_look_ahead_is_reported() -> None:
    p = problem()
    step = OuterStep(hypergradient=exact)
    for eta in (None, 0.2):
        imputed, student = p.impute(), p.student()
        got = step(Problem(p.model, p.params, student, imputed, p.c_h, eta=eta)).c_h
        cost = student.cost_of(lookahead(p.model, p.params), imputed.detach())
        grads = torch.autograd.grad(cost, list(p.params.values()))
        star = {n: v - (eta or 0.0) * g for (n, v), g in zip(p.params.items(), grads, strict=True)}
        assert float(got) == pytest.approx(float(p.c_h(lookahead(p.model, star)).detach()))
        assert not got.requires_grad


def test_only_the_students_own_cost_pulls_it_where_c_t_has_mixed_targets() -> None:
    """C^T is in the inner step alone: the labels that were learned reach θ by C^U."""
    p = problem("mixmatch")
    labels = LearnableLabels(label_lr=0.5)
    problem_of_step = Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=0.2)
    got = OuterStep(hypergradient=exact, labels=labels)(problem_of_step, mixed_c_t=p.supervised())
    imputed = p.impute().detach()
    both = p.supervised().concat(p.student())
    d_z = exact(Problem(p.model, p.params, both, imputed, p.c_h, eta=0.2))
    target = Imputed(labels.step_labels(imputed.z, d_z), imputed.weight)
    cost = p.student().cost_of(lookahead(p.model, p.params), target)
    for name, wanted in zip(
        p.params, torch.autograd.grad(cost, list(p.params.values())), strict=True
    ):
        torch.testing.assert_close(got.gradient[name], wanted, rtol=1e-10, atol=1e-14)


def test_a_normalized_step_of_labels_is_as_long_as_there_are_labels() -> None:
    z, d_z = torch.rand(6, 4, dtype=FLOAT64), torch.randn(6, 4, dtype=FLOAT64)
    labels = LearnableLabels(
        label_lr=0.25, normalized=True, to_logits=lambda z: z, to_label=lambda logits: logits
    )
    step = labels.step_labels(z, d_z) - z
    torch.testing.assert_close(step, -0.25 * 6 * d_z / d_z.norm())


@pytest.mark.parametrize("rho", [0.3, 2.0])
@pytest.mark.parametrize("preserve_norm", [False, True])
def test_gradients_are_combined_by_their_formula(rho: float, preserve_norm: bool) -> None:
    base, outer = (torch.randn(7, dtype=FLOAT64) for _ in range(2))
    wanted = base + rho * base.norm() / outer.norm() * outer
    wanted = wanted * base.norm() / wanted.norm() if preserve_norm else wanted
    got = combine_normalized(base, outer, rho=rho, preserve_norm=preserve_norm)
    torch.testing.assert_close(got, wanted)
    by_name = normalized_sum(
        {"a": base[:4].view(2, 2), "b": base[4:]},
        {"b": outer[4:], "a": outer[:4].view(2, 2)},
        rho=rho,
    )
    if not preserve_norm:
        torch.testing.assert_close(by_name["a"], wanted[:4].view(2, 2))
        torch.testing.assert_close(by_name["b"], wanted[4:])


def test_gradients_are_added_by_name_and_their_norm_is_over_all() -> None:
    left = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    right = {"b": torch.tensor([[10.0]]), "a": torch.tensor([1.0, 2.0])}
    total = add_gradients(left, right)
    assert {name: g.tolist() for name, g in total.items()} == {"a": [4.0, 2.0], "b": [[14.0]]}
    assert float(norm(left)) == 5.0


def test_labels_that_do_not_count_do_not_pull_the_student() -> None:
    p = problem()
    imputed = p.impute().detach()._replace(weight=torch.tensor([0, 1, 0, 2, 0, 0], dtype=FLOAT64))
    labels, d_z = LearnableLabels(label_lr=0.5), torch.randn_like(imputed.z)
    got = labels.gradient(p.model, p.params, p.student(), imputed, d_z)
    target = Imputed(labels.step_labels(imputed.z, d_z), imputed.weight)
    f = lookahead(p.model, p.params)(p.batch.unlabeled.weak2).softmax(1)
    distances = (f - target.z).square().mean(1)
    cost = (distances[1] + 2 * distances[3]) / 6
    for name, wanted in zip(
        p.params, torch.autograd.grad(cost, list(p.params.values())), strict=True
    ):
        torch.testing.assert_close(got[name], wanted, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_gradients_of_any_size_are_combined(scale: float) -> None:
    base, outer = torch.randn(5, dtype=FLOAT64), torch.randn(5, dtype=FLOAT64)
    wanted = combine_normalized(base, outer, rho=0.3, preserve_norm=True)
    got = combine_normalized(scale * base, scale**2 * outer, rho=0.3, preserve_norm=True)
    torch.testing.assert_close(got / scale, wanted)


def test_parameters_that_labels_do_not_depend_on_have_no_gradient() -> None:
    p = problem()
    p.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2, dtype=FLOAT64)))
    for labels in SETTINGS.values():
        gradient = compute_outer_gradient(p, OuterStep(hypergradient=exact, labels=labels))
        assert gradient["unused"].tolist() == [0.0, 0.0]
        assert norm(gradient) > 0


def test_learnable_labels_take_a_plain_step_of_size_one_by_default() -> None:
    z, d_z = torch.rand(3, 4, dtype=FLOAT64).softmax(1), torch.randn(3, 4, dtype=FLOAT64)
    logits = z.log().requires_grad_()
    (d_logits,) = torch.autograd.grad(logits.softmax(1), logits, d_z)
    moved = (logits - d_logits).softmax(1).detach()
    torch.testing.assert_close(LearnableLabels().step_labels(z, d_z), moved)


def test_an_outer_step_is_of_outputs_by_the_last_layer_by_default() -> None:
    assert OuterStep() == OuterStep(hypergradient=last_layer, labels=OutputLabels())
