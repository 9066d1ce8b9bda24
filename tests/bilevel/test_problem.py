"""The parts of a bilevel problem: students in one forward, labels, costs and replayed masks."""

import pytest
import torch
from torch import Tensor, nn

from l2i.bilevel import (
    Problem,
    exact,
    finite_difference,
    gradient,
    last_layer,
    lookahead,
    trainable,
)
from l2i.bilevel.functional import detach_params, freeze_buffers, make_leaf_params, swap_parameters
from l2i.bilevel.head import Head
from l2i.bilevel.outer import OuterStep
from l2i.bilevel.problem import Activations, Imputed, Student
from problems import FLOAT64, problem, relative


def test_students_in_one_forward_cost_what_they_cost_apart() -> None:
    """Their inputs come one after the other, and each cost gets its own outputs."""
    imputed = Imputed.unmasked(torch.tensor([[2.0]]))
    first = Student(torch.tensor([[1.0], [2.0]]), lambda f, i: 10 * f.sum() * i.z.sum())
    second = Student(torch.tensor([[3.0], [4.0], [5.0]]), lambda f, i: f.sum() * i.weight.sum())
    both = first.concat(second)
    assert both.inputs.flatten().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert float(both.cost_of(lambda x: x, imputed)) == 10 * 3 * 2 + 12
    outputs = torch.tensor([[1.0], [0.0], [0.0], [0.0], [7.0]])
    assert float(both.cost(outputs, imputed)) == 10 * 1 * 2 + 7


def test_labels_all_count_unless_told_otherwise_and_can_be_cut_off() -> None:
    z = torch.rand(3, 2, dtype=FLOAT64, requires_grad=True)
    imputed = Imputed.unmasked(z)
    assert imputed.weight.tolist() == [1.0] * 3 and imputed.weight.dtype == FLOAT64
    cut = imputed.detach()
    assert torch.equal(cut.z, z) and not cut.z.requires_grad and not cut.weight.requires_grad


def test_the_inner_cost_is_the_students_and_c_t_where_it_is_given() -> None:
    p = problem()
    imputed, student = p.impute(), p.student()
    net = lookahead(p.model, p.params)
    cost = student.cost_of(net, imputed.detach())
    arguments = (p.model, p.params, student, imputed, p.c_h)
    plain = Problem(*arguments)
    both = Problem(*arguments, c_t=lambda net: 100 * net(p.batch.labeled.x).square().mean())
    torch.testing.assert_close(plain.compute_cost(p.params), cost)
    c_t = 100 * net(p.batch.labeled.x).square().mean()
    torch.testing.assert_close(both.compute_cost(p.params), cost + c_t)
    other = imputed.detach()._replace(z=imputed.z.detach().flip(0))
    torch.testing.assert_close(plain.compute_cost(p.params, other), student.cost_of(net, other))
    torch.testing.assert_close(plain.compute_holdout_cost(p.params), p.c_h(net))
    outputs = plain.compute_outputs(p.params)
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs, net(student.inputs).detach())


@pytest.mark.parametrize(
    ("settings", "repeats"),
    [({}, False), ({"eta": 0.1}, True), ({"repeats_forward": True}, True)],
    ids=["no inner step", "an inner step", "two forwards"],
)
def test_masks_are_replayed_where_forwards_repeat(
    settings: dict[str, object], repeats: bool
) -> None:
    p = problem(dropout=0.5)
    posed = Problem(p.model, p.params, p.student(), p.impute(), p.c_h, **settings)
    first, second = (posed.compute_outputs(p.params) for _ in range(2))
    assert torch.equal(first, second) == repeats


def test_finite_differences_meet_the_same_masks_on_both_sides() -> None:
    """Without an inner step too: else the difference would be that of the masks."""
    p = problem(dropout=0.5)
    imputed, student = p.impute(), p.student()
    values = []
    for function, repeats in ((finite_difference, False), (exact, True)):
        torch.manual_seed(3)
        posed = Problem(p.model, p.params, student, imputed, p.c_h, repeats_forward=repeats)
        values.append(function(posed))
    assert relative(*values) < 1e-5


def test_activations_of_the_student_alone_are_of_no_use_where_c_t_is_mixed_in() -> None:
    p = problem("mixmatch")
    stale = Activations(torch.zeros(12, 12, dtype=FLOAT64), torch.zeros(12, 4, dtype=FLOAT64))
    step, mixed = OuterStep(hypergradient=last_layer), p.supervised()
    arguments = (p.model, p.params, p.student())
    got, wanted = (
        step(Problem(*arguments, p.impute(), p.c_h, activations=each), mixed_c_t=mixed).gradient
        for each in (stale, None)
    )
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name])


def test_a_gradient_is_of_the_parameters_that_are_named() -> None:
    params = {"a": torch.tensor(2.0), "b": torch.tensor(3.0), "c": torch.tensor(1.0)}

    def cost(p: dict[str, Tensor]) -> Tensor:
        return p["a"] ** 2 * p["b"]

    every = {name: float(g) for name, g in gradient(cost, params).items()}
    assert every == {"a": 12.0, "b": 4.0, "c": 0.0}  # none for what has no part in it
    assert {n: float(g) for n, g in gradient(cost, params, ["b"]).items()} == {"b": 4.0}
    with torch.no_grad():
        assert float(gradient(cost, params, ["a"])["a"]) == 12.0


def test_parameters_that_are_frozen_are_not_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].weight.requires_grad_(False)
    assert list(trainable(model)) == ["0.bias", "1.weight", "1.bias"]


def test_swapped_parameters_come_back_and_those_not_named_stay() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    own = dict(model.named_parameters())
    with swap_parameters(model, {"1.bias": torch.tensor([5.0])}):
        assert float(model[1].bias) == 5.0 and model[0].weight is own["0.weight"]
    assert all(own[name] is p for name, p in model.named_parameters())


class Recorder(nn.Module):
    """Counts its calls in a buffer, as some layers of others do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("unused", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def test_no_buffer_moves_within_and_all_are_back_afterwards() -> None:
    model = nn.Sequential(Recorder(), nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    before = {name: (b, b.clone()) for name, b in model.named_buffers()}
    with freeze_buffers(model):
        model(torch.randn(4, 2))
    assert all(b is before[name][0] for name, b in model.named_buffers())
    assert all(torch.equal(b, before[name][1]) for name, b in model.named_buffers())
    assert model[1].track_running_stats and model[2].track_running_stats
    model(torch.randn(4, 2))
    assert float(model[0].calls) == 1 and int(model[1].num_batches_tracked) == 1


def test_layers_in_evaluation_mode_use_their_running_statistics_within() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2)).double().eval()
    model[0].running_mean += 3.0
    x = torch.randn(4, 2, dtype=FLOAT64)
    torch.testing.assert_close(lookahead(model, trainable(model))(x), model(x))


def test_the_head_is_the_one_that_is_given_named_or_last() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2)), nn.Linear(2, 4))
    assert Head.from_model(model).names == ["2.weight", "2.bias"]
    assert Head.from_model(model, "1.0").names == ["1.0.weight", "1.0.bias"]
    assert Head.from_model(model, model[0]).names == ["0.weight", "0.bias"]


def test_features_are_what_the_head_is_given() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    x = torch.randn(6, 3, dtype=FLOAT64)
    head = Head.from_model(model)
    features, outputs = head.forward_with_features(model, x)
    torch.testing.assert_close(features, model[:2](x))
    torch.testing.assert_close(outputs, model(x))
    torch.testing.assert_close(head.apply(features, dict(model.named_parameters())), outputs)
    assert not model[2]._forward_hooks


def test_values_are_cut_off_from_their_graph_or_made_leaves() -> None:
    own = torch.ones(2, requires_grad=True)
    params = {"a": own * 3}
    cut, leaves = detach_params(params), make_leaf_params(params)
    assert cut["a"].tolist() == leaves["a"].tolist() == [3.0, 3.0]
    assert not cut["a"].requires_grad
    assert leaves["a"].requires_grad and leaves["a"].is_leaf
