"""Every hypergradient against unrolling, in float64, with BatchNorm in train mode."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from l2i.bilevel import (
    Problem,
    exact,
    finite_difference,
    last_layer,
    last_layer_paper,
    lookahead,
    trainable,
    unrolled,
)
from l2i.bilevel.forward_mode import central_difference
from l2i.bilevel.functional import inner_step
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Imputed, Student
from l2i.errors import InputError
from problems import FLOAT64, imputing_methods, problem, relative

ETA = 0.3
HEAD = ("7.weight", "7.bias")
# an argmax does not move with θ
SOFT = [pair for pair in imputing_methods() if problem(*pair).impute().z.requires_grad]


@pytest.mark.parametrize("with_c_t", [True, False], ids=["with C^T", "without C^T"])
@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_exact_equals_unrolled(method: str, task: str, with_c_t: bool) -> None:
    p = problem(method, task)
    imputed = p.impute()
    inner = p.inner(with_c_t=with_c_t, imputed=imputed)
    arguments = (p.model, p.params, inner["student"], imputed, p.c_h)
    got = exact(Problem(*arguments, eta=ETA, c_t=inner["c_t"]))
    assert relative(got, unrolled(Problem(*arguments, eta=ETA, c_t=inner["c_t"]))) < 1e-10


@pytest.mark.parametrize("with_c_t", [True, False])
@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_exact_equals_unrolled_over_three_inner_steps(
    method: str, task: str, with_c_t: bool
) -> None:
    p = problem(method, task)
    imputed = p.impute()
    inner = p.inner(with_c_t=with_c_t, imputed=imputed)
    arguments = (p.model, p.params, inner["student"], imputed, p.c_h)
    got = exact(Problem(*arguments, eta=ETA, inner_steps=3, c_t=inner["c_t"]))
    assert (
        relative(got, unrolled(Problem(*arguments, eta=ETA, inner_steps=3, c_t=inner["c_t"])))
        < 1e-10
    )


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_exact_and_unrolled_see_the_same_dropout_masks(inner_steps: int) -> None:
    p = problem(dropout=0.5)
    imputed = p.impute()
    inner = p.inner(with_c_t=True, imputed=imputed)
    values = []
    for function in (exact, unrolled):
        torch.manual_seed(1)
        arguments = (p.model, p.params, inner["student"], imputed, p.c_h)
        values.append(
            function(Problem(*arguments, eta=ETA, inner_steps=inner_steps, c_t=inner["c_t"]))
        )
    assert relative(*values) < 1e-10


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_finite_differences_come_close_to_exact(inner_steps: int) -> None:
    p = problem()
    arguments = (p.model, p.params, p.student(), p.impute(), p.c_h)
    got = finite_difference(Problem(*arguments, eta=ETA, inner_steps=inner_steps))
    assert relative(got, exact(Problem(*arguments, eta=ETA, inner_steps=inner_steps))) < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 0.05)])
def test_finite_differences_bear_kinks(dtype: torch.dtype, tolerance: float) -> None:
    encoder = [
        nn.Linear(8, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
    ]
    p = problem()._replace(model=nn.Sequential(*encoder, nn.Linear(64, 4)).to(FLOAT64))
    wanted = exact(Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=None))
    p = p._replace(
        model=p.model.to(dtype),
        batch=tree_map_only(torch.Tensor, lambda t: rounded(t, dtype), p.batch),
    )
    got = finite_difference(Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=None))
    assert relative(got.to(FLOAT64), wanted) < tolerance


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def test_small_eta_is_the_limit_of_the_look_ahead() -> None:
    p = problem("mixmatch")
    arguments = (p.model, p.params, p.student(), p.impute(), p.c_h)
    for function in (exact, last_layer):
        limit = function(Problem(*arguments, eta=None))
        assert relative(function(Problem(*arguments, eta=1e-7)) / 1e-7, limit) < 1e-5


@pytest.mark.parametrize("with_c_t", [True, False])
@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_last_layer_equals_exact_restricted_to_the_head(
    method: str, task: str, with_c_t: bool
) -> None:
    """Given the head's parameters alone, exact moves only them and its v is zero elsewhere."""
    p = problem(method, task)
    imputed = p.impute()
    inner = p.inner(with_c_t=with_c_t, imputed=imputed)
    head = {name: p.params[name] for name in HEAD}
    got = last_layer(
        Problem(p.model, p.params, inner["student"], imputed, p.c_h, eta=ETA, c_t=inner["c_t"])
    )
    wanted = exact(
        Problem(p.model, head, inner["student"], imputed, p.c_h, eta=ETA, c_t=inner["c_t"])
    )
    assert relative(got, wanted) < 1e-10


def test_last_layer_after_a_full_look_ahead_equals_autograd() -> None:
    """moves='all': θ* moves every parameter, V is C^H's gradient at θ* in the head."""
    p = problem()
    imputed = p.impute()
    student = p.student()
    got = last_layer(
        Problem(p.model, p.params, student, imputed, p.c_h, eta=ETA, lookahead_params="all")
    )
    z = imputed.z.detach().requires_grad_()
    cost = student.cost_of(lookahead(p.model, p.params), Imputed(z, imputed.weight))
    grads = dict(
        zip(
            p.params,
            torch.autograd.grad(cost, list(p.params.values()), create_graph=True),
            strict=True,
        )
    )
    star = {
        name: (value - ETA * grads[name]).detach().requires_grad_()
        for name, value in p.params.items()
    }
    v = torch.autograd.grad(p.c_h(lookahead(p.model, star)), [star[name] for name in HEAD])
    inner_product = sum(
        (grads[name] * direction).sum() for name, direction in zip(HEAD, v, strict=True)
    )
    (wanted,) = torch.autograd.grad(-ETA * inner_product, z)
    assert relative(got, wanted) < 1e-10


def test_the_papers_rule_equals_the_closed_form_up_to_a_constant_a_row_for_cross_entropy() -> None:
    p = problem()
    imputed = p.impute()
    student = Student(p.batch.unlabeled.weak2, lambda outputs, i: p.task.loss(outputs, i.z))
    arguments = (p.model, p.params, student, imputed, p.c_h)
    difference = last_layer_paper(Problem(*arguments, eta=ETA)) - last_layer(
        Problem(*arguments, eta=ETA)
    )
    assert torch.allclose(difference, difference[:, :1].expand_as(difference), atol=1e-14)


def test_the_papers_rule_differs_from_the_closed_form_for_the_squared_distance() -> None:
    p = problem()
    arguments = (p.model, p.params, p.student(), p.impute(), p.c_h)
    difference = last_layer_paper(Problem(*arguments, eta=ETA)) - last_layer(
        Problem(*arguments, eta=ETA)
    )
    assert difference.std(dim=1).max() > 1e-4


def test_the_papers_rule_is_the_sum_over_holdout_samples() -> None:
    p = problem()
    imputed = p.impute()
    got = last_layer_paper(Problem(p.model, p.params, p.student(), imputed, p.c_h, eta=None))
    encoder, net = p.model[:-1], lookahead(p.model, p.params)
    held = p.batch.holdout
    with torch.no_grad():
        features = torch.cat(
            [lookahead(encoder, trainable(encoder))(held.x), torch.ones(7, 1, dtype=FLOAT64)], 1
        )
        observed = lookahead(encoder, trainable(encoder))(p.batch.unlabeled.weak2)
        mine = torch.cat([observed, torch.ones(6, 1, dtype=FLOAT64)], 1)
        residual = net(held.x).softmax(1) - p.task.to_target(held.y).to(FLOAT64)
        wanted = (mine @ features.T) @ residual / (len(features) * len(mine))
    assert relative(got, wanted) < 1e-10


class ThirdPower(torch.autograd.Function):
    """A function with forward mode and one backward, and no second one."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError("no double backward here")
        return 3 * ctx.saved_tensors[0] ** 2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 5, dtype=FLOAT64), nn.Linear(5, 4, dtype=FLOAT64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(ThirdPower.apply(self.first(x)))


def test_exact_needs_no_double_backward() -> None:
    p = problem()._replace(model=Cubed())
    arguments = (p.model, p.params, p.student(), p.impute(), p.c_h)
    with pytest.raises(RuntimeError, match="no double backward"):
        unrolled(Problem(*arguments, eta=ETA))
    got = exact(Problem(*arguments, eta=ETA))
    assert relative(got, finite_difference(Problem(*arguments, eta=ETA))) < 1e-6


def test_last_layer_refuses_an_activation_after_the_head() -> None:
    p = problem()
    model = nn.Sequential(p.model, nn.Tanh())
    with pytest.raises(InputError, match="needs a model whose output is that of its head"):
        last_layer(Problem(model, trainable(model), p.student(), p.impute(), p.c_h, eta=ETA))


def test_last_layer_refuses_a_network_without_a_linear_layer() -> None:
    p = problem()
    model = nn.Sequential(nn.Conv1d(1, 1, 1)).to(FLOAT64)
    with pytest.raises(InputError, match=r"no nn\.Linear"):
        last_layer(Problem(model, trainable(model), p.student(), p.impute(), p.c_h, eta=ETA))


def test_last_layer_takes_the_head_that_is_named() -> None:
    p = problem()
    arguments = (p.model, p.params, p.student(), p.impute(), p.c_h)
    assert torch.equal(
        last_layer(Problem(*arguments, eta=ETA, head="7")), last_layer(Problem(*arguments, eta=ETA))
    )
    with pytest.raises(InputError, match="head='nose'"):
        last_layer(Problem(*arguments, eta=ETA, head="nose"))


def test_last_layer_refuses_a_head_that_is_frozen_or_shared() -> None:
    p = problem()
    tied = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(FLOAT64)
    tied[2].weight = tied[0].weight
    frozen = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4).requires_grad_(False)).to(FLOAT64)
    for model in (tied, frozen):
        with pytest.raises(
            InputError, match="is frozen or shares its weights; use hypergradient='exact'"
        ):
            last_layer(Problem(model, trainable(model), p.student(), p.impute(), p.c_h, eta=ETA))


def test_finite_differences_along_nothing_are_nothing() -> None:
    p = problem()
    got = finite_difference(
        Problem(
            p.model,
            p.params,
            p.student(),
            p.impute(),
            lambda net: net(p.batch.labeled.x).sum() * 0,
            eta=None,
        )
    )
    assert torch.equal(got, torch.zeros_like(got))


def test_last_layer_takes_one_inner_step() -> None:
    p = problem()
    with pytest.raises(InputError, match="inner_steps=3"):
        last_layer(
            Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=ETA, inner_steps=3)
        )


@pytest.mark.parametrize(
    "function", [exact, last_layer, finite_difference, last_layer_paper, unrolled]
)
def test_nothing_of_the_model_moves(function) -> None:
    p = problem()
    before = {name: value.clone() for name, value in p.model.state_dict().items()}
    imputed = p.impute()
    function(Problem(p.model, p.params, p.student(), imputed, p.c_h, eta=ETA))
    assert all(torch.equal(before[name], value) for name, value in p.model.state_dict().items())
    assert all(value.grad is None for value in p.model.parameters())


@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_moving_labels_against_d_z_lowers_the_holdout_cost(method: str, task: str) -> None:
    """C^H(θ*) falls as the gradient promises when z moves a little along −d_z and θ is fixed."""
    p = problem(method, task)
    imputed, student = p.impute().detach(), p.student()
    d_z = exact(Problem(p.model, p.params, student, imputed, p.c_h, eta=ETA))
    step = 1e-4 / float(d_z.norm())
    change = held_cost(p, student, imputed._replace(z=imputed.z - step * d_z)) - held_cost(
        p, student, imputed
    )
    assert change == pytest.approx(-step * float(d_z.square().sum()), rel=1e-3)
    assert change < 0


@pytest.mark.parametrize(("method", "task"), SOFT)
def test_moving_the_imputing_parameters_against_the_outer_gradient_lowers_the_holdout_cost(
    method: str, task: str
) -> None:
    """The same with z moved through θ: only labels change, the inner step starts at the same θ."""
    p = problem(method, task)
    imputed, student = p.impute(), p.student()
    d_z = exact(Problem(p.model, p.params, student, imputed, p.c_h, eta=ETA))
    grads = torch.autograd.grad(imputed.z, list(p.params.values()), d_z)
    size = float(sum(g.square().sum() for g in grads))
    step = 1e-4 / size**0.5
    moved = {
        name: value.detach() - step * g
        for (name, value), g in zip(p.params.items(), grads, strict=True)
    }
    before, after = imputed.detach(), p.impute(moved).detach()._replace(weight=imputed.weight)
    change = held_cost(p, student, after) - held_cost(p, student, before)
    assert change == pytest.approx(-step * size, rel=1e-2)
    assert change < 0


def held_cost(p, student: Student, imputed: Imputed) -> float:
    """C^H after one inner step towards the given labels, by plain autograd."""
    grads = torch.autograd.grad(
        student.cost_of(lookahead(p.model, p.params), imputed), list(p.params.values())
    )
    star = {name: value - ETA * g for (name, value), g in zip(p.params.items(), grads, strict=True)}
    return float(p.c_h(lookahead(p.model, star)).detach())


def test_the_papers_rule_counts_each_label_by_its_weight() -> None:
    p = problem()
    imputed, weight = p.impute(), torch.tensor([0, 0.5, 1, 0, 2, 1], dtype=FLOAT64)
    arguments = (p.model, p.params, p.student())
    plain, masked = (
        last_layer_paper(Problem(*arguments, labels, p.c_h, eta=None))
        for labels in (imputed, imputed._replace(weight=weight))
    )
    assert plain.abs().min() > 0
    torch.testing.assert_close(masked, weight.unsqueeze(1) * plain)


def test_the_papers_rule_is_in_proportion_to_eta() -> None:
    p = problem()
    arguments = (p.model, p.params, p.student(), p.impute(), p.c_h)
    limit = last_layer_paper(Problem(*arguments, eta=None))
    assert relative(last_layer_paper(Problem(*arguments, eta=1e-7)) / 1e-7, limit) < 1e-5


def test_the_papers_rule_needs_an_output_for_each_label() -> None:
    p = problem("mixmatch")
    with pytest.raises(InputError, match="needs one student output per label"):
        last_layer_paper(Problem(p.model, p.params, p.student(), p.impute(), p.c_h, eta=ETA))


def test_unrolling_needs_a_rate() -> None:
    p = problem()
    with pytest.raises(InputError, match="set eta"):
        unrolled(Problem(p.model, p.params, p.student(), p.impute(), p.c_h))


@pytest.mark.parametrize("lookahead_params", ["head", "all"])
def test_last_layer_takes_activations_of_an_earlier_forward(lookahead_params: str) -> None:
    p = problem()
    imputed, student = p.impute(), p.student()
    head = Head.from_model(p.model)
    with torch.no_grad():
        known = head.forward_with_features(lookahead(p.model, p.params), student.inputs)
    arguments = (p.model, p.params, student, imputed, p.c_h)
    settings = {"eta": ETA, "lookahead_params": lookahead_params}
    got, wanted = (
        last_layer(Problem(*arguments, **settings, activations=each)) for each in (known, None)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)
    other = known._replace(features=2 * known.features)
    assert not torch.allclose(last_layer(Problem(*arguments, eta=ETA, activations=other)), wanted)


def test_a_head_without_a_bias_has_a_derivative_without_one() -> None:
    p = problem()
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4, bias=False)).to(FLOAT64)
    p = p._replace(model=model)
    imputed, student = p.impute(), p.student()
    assert Head.from_model(model).names == ["2.weight"]
    got = last_layer(Problem(model, p.params, student, imputed, p.c_h, eta=ETA))
    head = {"2.weight": p.params["2.weight"]}
    wanted = exact(Problem(model, head, student, imputed, p.c_h, eta=ETA))
    assert relative(got, wanted) < 1e-10


@pytest.mark.parametrize(("dtype", "step"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_a_difference_is_taken_this_far_on_either_side(dtype: torch.dtype, step: float) -> None:
    """The step is a fraction of 1 + ‖θ‖: rounding forbids a smaller one, kinks a larger one."""
    theta = {"a": torch.full((2, 2), 3.0, dtype=dtype), "b": torch.full((4,), 4.0, dtype=dtype)}
    v = {"a": torch.full((2, 2), 0.6, dtype=dtype), "b": torch.full((4,), 0.8, dtype=dtype)}
    points: list[torch.Tensor] = []

    def total(params: dict[str, torch.Tensor]) -> torch.Tensor:
        points.append(torch.cat([p.detach().flatten() for p in params.values()]))
        return params["a"].sum() + params["b"].sum()

    value, slope = central_difference(total, theta, v)
    plus, minus = (point.double() - torch.tensor([3.0] * 4 + [4.0] * 4) for point in points)
    assert float(plus.norm()) == pytest.approx(step * 11, rel=0.05)  # ‖θ‖ = 10
    assert plus.tolist() == pytest.approx((-minus).tolist(), rel=0.05) and bool((plus > 0).all())
    assert float(value) == pytest.approx(28.0)
    assert float(slope) == pytest.approx(5.6, rel=0.02)


def test_a_difference_close_to_a_kink_does_not_cross_it() -> None:
    theta, v = {"w": torch.tensor([1e-7], dtype=FLOAT64)}, {"w": torch.ones(1, dtype=FLOAT64)}
    _, slope = central_difference(lambda p: p["w"].relu().sum(), theta, v)
    assert float(slope) == pytest.approx(1.0, rel=1e-6)


def test_the_inner_step_moves_what_it_is_told_to_and_nothing_else() -> None:
    theta = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}

    def cost(p: dict[str, torch.Tensor]) -> torch.Tensor:
        return p["a"].square().sum() * p["b"].sum()

    both = inner_step(cost, theta, eta=0.1)
    assert both["a"].tolist() == pytest.approx([0.4, 0.8])  # θ − 0.1 · 2 · 3 θ
    assert both["b"].tolist() == pytest.approx([2.5])
    one = inner_step(cost, theta, eta=0.1, wrt=["b"])
    assert torch.equal(one["a"], theta["a"]) and one["b"].tolist() == pytest.approx([2.5])
    assert not any(value.requires_grad for value in (*both.values(), *one.values()))


@pytest.mark.parametrize("function", [exact, finite_difference, unrolled])
def test_parameters_that_nothing_depends_on_change_nothing(function) -> None:
    p = problem()
    imputed, student = p.impute(), p.student()

    def d_z() -> torch.Tensor:
        return function(Problem(p.model, p.params, student, imputed, p.c_h, eta=ETA, inner_steps=2))

    before = d_z()
    p.model.register_parameter("unused", nn.Parameter(torch.zeros(3, dtype=FLOAT64)))
    torch.testing.assert_close(d_z(), before, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("function", [exact, last_layer, finite_difference])
def test_labels_that_the_cost_does_not_depend_on_have_no_derivative(function) -> None:
    p = problem()
    student = Student(p.batch.unlabeled.weak2, lambda f, i: f.square().mean() + 0 * i.z.sum())
    got = function(Problem(p.model, p.params, student, p.impute(), p.c_h, eta=ETA))
    assert torch.equal(got, torch.zeros(6, 4, dtype=FLOAT64))


def test_the_dtype_and_shape_are_those_of_the_labels() -> None:
    p = problem("mixmatch")
    imputed, student = p.impute(), p.student()
    for function in (exact, last_layer, finite_difference, unrolled):
        got = function(Problem(p.model, p.params, student, imputed, p.c_h, eta=ETA))
        assert got.shape == imputed.z.shape and got.dtype == FLOAT64
        assert not got.requires_grad
