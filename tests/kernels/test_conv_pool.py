from collections.abc import Iterator
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
from l2i.kernels import conv_pool as stage
from l2i.kernels import disable_fused_kernels
from l2i.kernels.conv_pool import (
    CLAMPED_CODE,
    REDUCE_DIMS,
    ConvPoolHardtanh,
    FusedBiasPool,
    FusedConvPool,
    compute_conv_pool_grads,
    gather_pooled,
    unpool_gradient,
)
from l2i.models.base import ModelConfig
from l2i.models.tcdcn import build_tcdcn
from problems import relative

CHANNELS_LAST = {"memory_format": torch.channels_last}
# samples, channels in and out, kernel, height, width
SHAPES = [(128, 1, 20, 5, 60, 60), (3, 1, 20, 5, 13, 15), (2, 1, 70, 4, 14, 15)]
SHAPES += [(128, 20, 48, 5, 28, 28), (40, 48, 64, 3, 12, 12), (3, 3, 5, 3, 13, 15)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
WHICH = [which for which in product((True, False), repeat=3) if any(which)]


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.hardtanh(F.max_pool2d(F.conv2d(x, weight, bias), 2))


def draw(shape: tuple[int, ...] = (3, 1, 5, 3, 9, 11)) -> Inputs:
    """x, weight and bias such that about a third of the outputs are clamped."""
    samples, channels, width, kernel, *size = shape
    weight = 0.7 * torch.randn(width, channels, kernel, kernel) / (kernel * channels**0.5)
    return (
        torch.randn(samples, channels, *size).contiguous(**CHANNELS_LAST),
        weight,
        0.3 * torch.randn(width),
    )


def quarters(c: Tensor) -> Tensor:
    """The values of each window, [N, C, 4, H, W]."""
    height, width = (side // 2 * 2 for side in c.shape[2:])
    return F.pixel_unshuffle(c[..., :height, :width], 2).unflatten(1, (-1, 4))


def pooled(c: Tensor, bias: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """What the kernels are to find."""
    best, place = (quarters(c) + bias[:, None, None, None]).max(2)
    code = torch.where(best.abs() < 1, place, CLAMPED_CODE).to(torch.uint8)
    return F.pad(best.clamp(-1, 1), (0, 0, 0, 0, 0, width - c.shape[1])), code


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_a_convolution_pooled_and_squashed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours = ConvPoolHardtanh(3, 20, 5, pad_channels=True)
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(3, 20, 5), nn.MaxPool2d(2), nn.Hardtanh())
    assert list(ours.state_dict()) == list(theirs[0].state_dict())
    x = 3 * torch.randn(2, 3, 13, 15, dtype=dtype)
    assert torch.equal(ours.to(dtype)(x), theirs.to(dtype)(x))
    assert torch.equal(ours(x[0]), theirs(x[0]))


def test_it_ignores_the_channels_that_fill_up_and_no_others() -> None:
    layer, x = ConvPoolHardtanh(20, 6, 3), torch.randn(2, 24, 8, 8)
    assert torch.allclose(layer(x), layer(x[:, :20]), atol=1e-6)
    with pytest.raises(RuntimeError, match="20 channels"):
        layer(torch.randn(2, 23, 8, 8))


def test_selecting_is_pooling_and_spreading_its_transpose() -> None:
    c, bias = torch.randn(2, 3, 7, 9, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    y, code = pooled(c, bias, 3)
    through = torch.where(code < CLAMPED_CODE, bias[:, None, None], 0.0)
    assert torch.allclose(
        gather_pooled(c, code) + through, torch.where(code < CLAMPED_CODE, y, 0.0)
    )
    dy = torch.randn_like(y)
    wanted = torch.autograd.functional.vjp(
        lambda c: F.hardtanh(F.max_pool2d(c + bias[:, None, None], 2)), c, dy
    )[1]
    assert torch.equal(unpool_gradient(dy, code, (7, 9)), wanted)


@pytest.fixture(params=["first", "pool"])
def fused_by_formulas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """A fused function, filled up to eight channels, with formulas in the places of its kernels."""

    def moved(c_dot: Tensor | None, bias_dot: Tensor | None, code: Tensor, *_: object) -> Tensor:
        whole = 0.0 if c_dot is None else gather_pooled(c_dot, code)
        whole = whole + (
            0.0
            if bias_dot is None
            else torch.where(code < CLAMPED_CODE, bias_dot[:, None, None], 0.0)
        )
        return F.pad(whole, (0, 0, 0, 0, 0, 3))

    kernels = SimpleNamespace(
        conv_pool=lambda x, weight, bias, dtype, width: pooled(F.conv2d(x, weight), bias, width),
        conv_pool_grads=lambda *values: compute_conv_pool_grads(
            *(v.detach() for v in values), torch.float64, (False, True)
        )[1:],
        conv_pool_tangent=lambda x, weight, bias, code, *_: moved(
            F.conv2d(x.detach(), weight), bias, code
        ),
        bias_pool=pooled,
        bias_pool_tangent=moved,
        bias_pool_grads=lambda dy, bias, code, size: (
            unpool_gradient(dy, code, size),
            unpool_gradient(dy, code, size).sum(REDUCE_DIMS),
        ),
    )
    monkeypatch.setattr(stage, "_load_kernels", lambda: kernels)
    if request.param == "first":
        return lambda x, weight, bias: FusedConvPool.apply(x, weight, bias, x.dtype, 8)[:, :5]
    return lambda x, weight, bias: FusedBiasPool.apply(F.conv2d(x, weight), bias, 8)[:, :5]


def test_the_fused_functions_have_the_gradient(fused_by_formulas: object) -> None:
    inputs = leaves(draw(), dtype=torch.float64)
    ys = [f(*inputs) for f in (fused_by_formulas, reference)]
    dy = torch.randn_like(ys[0])
    actual, wanted = (flat(torch.autograd.grad(y, inputs, dy)) for y in ys)
    assert relative(actual, wanted) < 1e-10


@pytest.mark.parametrize("graph", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("which", WHICH)
def test_the_fused_functions_have_forward_mode(
    fused_by_formulas: object, graph: type, which: tuple[bool, ...]
) -> None:
    with graph():
        assert agree_in_forward_mode(
            fused_by_formulas, reference, leaves(draw(), dtype=torch.float64), which
        )


def test_derivatives_of_the_fused_functions_can_be_differentiated(
    fused_by_formulas: object,
) -> None:
    assert agree_in_second_derivatives(
        fused_by_formulas, reference, leaves(draw(), dtype=torch.float64)
    )


class Case:
    """The fused module on the GPU, and the same inputs in float64."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        x, weight, bias = draw(shape)
        self.module, self.dtype = ConvPoolHardtanh(*shape[1:4], pad_channels=True).cuda(), dtype
        first = shape[1] == 1 and dtype == torch.bfloat16
        self.function = "FusedConvPoolBackward" if first else "FusedBiasPoolBackward"
        self.fused = leaves((x.to(dtype), weight.to(dtype), bias), device="cuda")
        self.exact = leaves(self.fused, dtype=torch.float64)
        with torch.no_grad():
            best = quarters(F.conv2d(*self.exact)).topk(2, 2).values.unbind(2)
        # elsewhere rounding may choose another place of the window, or clamp
        near = 3 * TOLERANCES[dtype]
        self.clear = (best[0] - best[1] > near) & ((best[0].abs() - 1).abs() > near)
        self.dy = (
            torch.randn(self.clear.shape).to("cuda", dtype) * self.clear
        )  # contiguous, unlike x
        self.dots = tuple(torch.randn(value.shape).to(value) for value in self.fused)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional_call(self.module, {"weight": weight, "bias": bias}, (x,))
        assert y.is_contiguous(**CHANNELS_LAST) and y.dtype == x.dtype and y.shape[1] % 8 == 0
        return y[:, : self.module.out_channels]

    def gradients(self) -> tuple[Tensor, ...]:
        inputs = leaves(self.fused)  # made here, on the stream that is used
        y = self(*inputs)
        assert type(y.grad_fn.next_functions[0][0]).__name__ == self.function
        return y, *torch.autograd.grad(y, inputs, self.dy)

    def close(self, actual: Tensor, wanted: Tensor) -> bool:
        return relative(actual.detach().double(), wanted.detach()) < TOLERANCES[self.dtype]


@pytest.fixture
def exact_convolutions() -> Iterator[None]:
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


@pytest.fixture(params=product(TOLERANCES, SHAPES), ids=str)
def case(request: pytest.FixtureRequest, exact_convolutions: None) -> Case:
    return Case(*request.param)


@pytest.mark.gpu
def test_fused_outputs_and_gradients_are_exact(case: Case) -> None:
    y = reference(*case.exact)
    wanted = (y, *torch.autograd.grad(y, case.exact, case.dy.double()))
    actual = case.gradients()
    for a, b in zip(actual, wanted, strict=True):
        assert case.close(a, b)
    with torch.no_grad():
        assert torch.equal(case(*case.fused), actual[0])


@pytest.mark.gpu
def test_fused_forward_mode_is_exact(case: Case) -> None:
    exact_dots = tuple(dot.double() for dot in case.dots)
    for which in WHICH:
        with torch.no_grad():
            actual = directional(case, case.fused, case.dots, which)
            wanted = directional(reference, case.exact, exact_dots, which)
        assert case.close(actual * case.clear, wanted * case.clear), which


@pytest.mark.gpu
def test_fused_derivatives_can_be_differentiated(case: Case) -> None:
    wanted = twice(
        reference, case.exact, case.dy.double(), tuple(dot.double() for dot in case.dots)
    )
    assert case.close(twice(case, case.fused, case.dy, case.dots), wanted)
    assert case.close(directional(gradient_of(case, case.dy), case.fused, case.dots), wanted)


@pytest.mark.gpu
def test_fused_results_repeat_bit_by_bit_also_from_a_graph(case: Case) -> None:
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
    for a, b in zip(captured, case.gradients(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_ties_limits_and_what_is_no_number_go_as_in_pytorch() -> None:
    c = torch.randn(1, 4, 8, 8, device="cuda").clamp(-2, 2)
    c[0, 0], c[0, 1], c[0, 2, 2, 3], c[0, 2, 5, 4] = 0.25, 1.0, float("nan"), float("inf")
    c = c.contiguous(**CHANNELS_LAST).requires_grad_()
    ys = FusedBiasPool.apply(c, torch.zeros(4, device="cuda"), 4), F.hardtanh(F.max_pool2d(c, 2))
    dy = torch.randn_like(ys[0])
    assert torch.equal(ys[0].nan_to_num(7), ys[1].nan_to_num(7))
    actual, wanted = (torch.autograd.grad(y, c, dy)[0] for y in ys)
    assert torch.equal(actual[:, [0, 1, 3]], wanted[:, [0, 1, 3]])


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_tcdcn_is_as_near_to_the_cpus_as_pytorchs_kernels(
    bf16: bool, exact_convolutions: None
) -> None:
    model, x = build_tcdcn((1, 60, 60), 10, ModelConfig(name="tcdcn")), torch.rand(64, 1, 60, 60)

    def results(device: str) -> tuple[Tensor, ...]:
        with torch.autocast(
            "cuda", torch.bfloat16, enabled=bf16 and device == "cuda", cache_enabled=False
        ):
            y = model.to(device)(x.to(device)).float()
        actual = torch.autograd.grad(y.square().mean(), list(model.parameters()))
        return y.detach().cpu(), flat(actual).cpu()

    exact, fused = results("cpu"), results("cuda")
    with disable_fused_kernels():
        pytorchs = results("cuda")
    for mine, theirs, wanted in zip(fused, pytorchs, exact, strict=True):
        assert relative(mine, wanted) < 1.5 * relative(theirs, wanted) + 1e-4
