from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from derivatives import (
    Inputs,
    agree_in_forward_mode,
    agree_in_second_derivatives,
    directional,
    flat,
    gradient_of,
    leaves,
    twice,
)
from l2i.kernels import batchnorm as norm
from l2i.kernels.batchnorm import (
    FusedNormAct,
    NormAct,
    compute_norm_act_grads,
    compute_norm_act_jvp,
)
from problems import relative

EPS, SLOPE = 1e-5, 0.1
CHANNELS_LAST = {"memory_format": torch.channels_last}
SHAPES = [
    (64, 128, 8, 8),
    (64, 64, 16, 16),
    (65, 32, 32, 32),
    (5, 16, 9, 9),
    (3, 48, 7, 5),
    (2, 3, 300, 301),
]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.leaky_relu(F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS), SLOPE)


def draw(shape: tuple[int, ...] = (4, 6, 5, 3)) -> Inputs:
    """x with means far larger than its deviations, weight, bias."""
    channels = shape[1]
    x = torch.randn(shape) * (0.5 + torch.rand(channels, 1, 1)) + 10 * torch.randn(channels, 1, 1)
    return x.contiguous(**CHANNELS_LAST), torch.randn(channels), torch.randn(channels)


@pytest.mark.parametrize("training", [True, False])
def test_it_is_batch_norm_and_a_leaky_relu(training: bool) -> None:
    ours, theirs = NormAct(6, momentum=0.3, slope=SLOPE), nn.BatchNorm2d(6, momentum=0.3)
    x, *_ = draw()
    for _ in range(2):
        assert torch.equal(ours.train(training)(x), F.leaky_relu(theirs.train(training)(x), SLOPE))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def test_the_gradient_formula_is_autograds_and_can_be_differentiated() -> None:
    inputs = leaves(draw(), dtype=torch.float64)
    dy, v = torch.randn_like(inputs[0]), torch.randn_like(inputs[0])
    wanted = torch.autograd.grad(reference(*inputs), inputs, dy, create_graph=True)
    actual = compute_norm_act_grads(*inputs, dy, eps=EPS, slope=SLOPE)
    assert relative(flat(actual).detach(), flat(wanted).detach()) < 1e-10
    again = [torch.autograd.grad((first[0] * v).sum(), inputs[:2]) for first in (actual, wanted)]
    assert relative(flat(again[0]), flat(again[1])) < 1e-10


@pytest.mark.parametrize("which", [w for w in product((True, False), repeat=3) if any(w)])
def test_the_tangent_formula_is_forward_modes(which: tuple[bool, ...]) -> None:
    inputs = leaves(draw(), dtype=torch.float64)
    dots = tuple(torch.randn_like(value) for value in inputs)
    given = [dot if on else None for dot, on in zip(dots, which, strict=True)]
    actual = compute_norm_act_jvp(*inputs, *given, eps=EPS, slope=SLOPE)
    assert relative(actual.detach(), directional(reference, inputs, dots, which).detach()) < 1e-10


@pytest.fixture
def fused_by_formulas(monkeypatch: pytest.MonkeyPatch) -> object:
    """The fused function with formulas in the places of its kernels."""

    def detached(saved: tuple[Tensor, ...]) -> list[Tensor]:
        return [value.detach() for value in saved[:3]]

    kernels = SimpleNamespace(
        forward=lambda x, weight, bias, running, **_: (
            reference(x, weight, bias),
            x.mean(),
            x.std(),
        ),
        backward=lambda saved, dy, slope: compute_norm_act_grads(
            *detached(saved), dy.detach(), eps=EPS, slope=slope
        ),
        jvp=lambda saved, *dots, slope: compute_norm_act_jvp(
            *detached(saved), *dots, eps=EPS, slope=slope
        ),
    )
    monkeypatch.setattr(norm, "_load_kernels", lambda: kernels)
    return lambda x, weight, bias: FusedNormAct.apply(x, weight, bias, None, 0.1, EPS, SLOPE)


@pytest.mark.parametrize("graph", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("which", [(True, True, True), (False, True, True), (True, False, False)])
def test_the_fused_function_has_forward_mode(
    fused_by_formulas: object, graph: type, which: tuple[bool, ...]
) -> None:
    with graph():
        assert agree_in_forward_mode(
            fused_by_formulas, reference, leaves(draw(), dtype=torch.float64), which
        )


def test_derivatives_of_the_fused_function_can_be_differentiated(fused_by_formulas: object) -> None:
    assert agree_in_second_derivatives(
        fused_by_formulas, reference, leaves(draw(), dtype=torch.float64)
    )


class Case:
    """The fused module on the GPU, and the same inputs in float64."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        x, weight, bias = draw(shape)
        self.module = NormAct(shape[1], momentum=0.3, slope=SLOPE).cuda()
        self.fused = leaves((x.to(dtype), weight, bias), device="cuda")
        self.exact = leaves(self.fused, dtype=torch.float64)
        with torch.no_grad():
            pre = F.batch_norm(self.exact[0], None, None, *self.exact[1:], training=True, eps=EPS)
        self.clear = (
            pre.abs() > 1e-3
        )  # elsewhere rounding may choose the other branch of the leaky ReLU
        self.dy = self.draw_like(self.fused[0]) * self.clear
        self.dots = tuple(self.draw_like(value) for value in self.fused)

    @staticmethod
    def draw_like(value: Tensor) -> Tensor:
        return torch.randn(value.shape).to(value)  # contiguous, unlike x

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional_call(self.module, {"weight": weight, "bias": bias}, (x,))
        assert y.is_contiguous(**CHANNELS_LAST) and y.dtype == x.dtype
        return y

    def gradients(self) -> tuple[Tensor, ...]:
        inputs = leaves(self.fused)  # made here, on the stream that is used
        y = self(*inputs)
        assert type(y.grad_fn).__name__ == "FusedNormActBackward"
        return y, *torch.autograd.grad(y, inputs, self.dy)


@pytest.fixture(params=product(TOLERANCES, SHAPES), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def close(actual: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    return relative(actual.detach().double(), wanted.detach()) < TOLERANCES[dtype]


@pytest.mark.gpu
def test_fused_outputs_and_gradients_are_exact(case: Case) -> None:
    y = reference(*case.exact)
    wanted = (y, *torch.autograd.grad(y, case.exact, case.dy.double()))
    for a, b in zip(case.gradients(), wanted, strict=True):
        assert close(a, b, case.dy.dtype)


@pytest.mark.gpu
def test_fused_running_statistics_are_batch_norms(case: Case) -> None:
    theirs = nn.BatchNorm2d(case.fused[1].numel(), momentum=0.3).cuda().double()
    for _ in range(2):
        case.module(case.fused[0])
        theirs(case.exact[0])
    case.module.track_running_stats = False
    case.module(case.fused[0])
    assert case.module.num_batches_tracked == 2
    assert relative(case.module.running_mean.double(), theirs.running_mean) < 1e-5
    assert relative(case.module.running_var.double(), theirs.running_var) < 1e-5


@pytest.mark.gpu
def test_fused_forward_mode_is_exact(case: Case) -> None:
    exact_dots = tuple(dot.double() for dot in case.dots)
    for which in (w for w in product((True, False), repeat=3) if any(w)):
        with torch.no_grad():
            actual = directional(case, case.fused, case.dots, which)
            wanted = directional(reference, case.exact, exact_dots, which)
        assert close(actual * case.clear, wanted * case.clear, case.dy.dtype), which


@pytest.mark.gpu
def test_fused_derivatives_can_be_differentiated(case: Case) -> None:
    wanted = twice(
        reference, case.exact, case.dy.double(), tuple(dot.double() for dot in case.dots)
    )
    assert close(twice(case, case.fused, case.dy, case.dots), wanted, case.dy.dtype)
    assert close(
        directional(gradient_of(case, case.dy), case.fused, case.dots), wanted, case.dy.dtype
    )


@pytest.mark.gpu
def test_fused_results_repeat_bit_by_bit(case: Case) -> None:
    for a, b in zip(case.gradients(), case.gradients(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_the_kernels_can_be_captured(case: Case) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        case.gradients()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = case.gradients()
    with torch.no_grad():
        case.fused[0].mul_(2)
    graph.replay()
    assert case.module.num_batches_tracked == 2
    for a, b in zip(captured, case.gradients(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_other_layouts_and_eval_mode_take_pytorchs_kernels() -> None:
    case = Case(torch.float32, SHAPES[0])
    for module, x in [
        (case.module, case.fused[0].contiguous()),
        (case.module.eval(), case.fused[0]),
    ]:
        assert type(module(x).grad_fn).__name__.startswith("LeakyRelu")
