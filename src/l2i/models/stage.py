"""A convolution, its max pooling and its hardtanh as one module: fused kernels on a GPU, PyTorch's own elsewhere."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from l2i.models.fused import is_dual, usable

HALF = (torch.bfloat16, torch.float16)
FUSED = (*HALF, torch.float32)
WHOLE = 8  # channels: cuDNN copies what is no multiple of this before it can use the matrix units
CLAMPED = 4  # as a code; lower ones number the places of a 2×2 window, row by row
ROWS = (0, 2, 3)  # what a channel's values run over
SIDE = 7  # of kernels whose patches do not fit a tile of `FusedFirst`


class Stage(nn.Conv2d):
    """A convolution that does not pad, 2×2 max pooling, then hardtanh.

    With `filled`, zeros fill the output's channels up to a multiple of 8 where kernels are fused: for a `Stage` to
    follow, which knows such an input and ignores them.
    """

    def __init__(self, channels: int, width: int, kernel: int, *, filled: bool = False) -> None:
        super().__init__(channels, width, kernel)
        self.filled = filled

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        if not (usable(x) and self._fusible(x)):
            return F.hardtanh(F.max_pool2d(F.conv2d(x, self._weight(x), self.bias), 2))
        dtype, width = _dtype(x), _whole(self.out_channels) if self.filled else self.out_channels
        with torch.cuda.device_of(x):  # Triton launches on the current device
            if self._is_first(x):
                return _applied(FusedFirst, x, self.weight, self.bias, dtype, width)
            return _applied(FusedPool, F.conv2d(x, self._weight(x)), self.bias, width)

    def _weight(self, x: Tensor) -> Tensor:
        """With zeros for the channels with which `filled` outputs are filled up."""
        more = _whole(self.in_channels) - self.in_channels
        filled = more > 0 and x.dim() > 2 and x.shape[-3] == self.in_channels + more
        return F.pad(self.weight, (0, 0, 0, 0, 0, more)) if filled else self.weight

    def _is_first(self, x: Tensor) -> bool:
        """Whether the convolution itself is better not left to cuDNN."""
        fits = self.in_channels == x.shape[1] == 1 and max(self.kernel_size) < SIDE
        return fits and _dtype(x) in HALF and (torch.is_autocast_enabled("cuda") or x.dtype == self.weight.dtype)

    def _fusible(self, x: Tensor) -> bool:
        if not (x.dim() == 4 and x.dtype in FUSED and _dtype(x) in FUSED and self.weight.dtype in FUSED):
            return False
        height, width = (side - kernel + 1 for side, kernel in zip(x.shape[2:], self.kernel_size, strict=True))
        values = x.shape[0] * height * width * _whole(self.out_channels)
        return min(height, width) > 1 and 0 < max(values, x.numel()) < 2**31  # offsets of 32 bits


class FusedFirst(Function):
    """All of a stage with one input channel; the code says which value of a window came through, if any did."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, width: int) -> Tensor:
        y, code = _kernels().first(x, weight, bias, dtype, width)
        ctx.save_for_backward(x, weight, bias, code)
        ctx.save_for_forward(x, weight, bias, code)
        ctx.set_materialize_grads(False)
        ctx.dtype, ctx.width = dtype, width
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 5
        x, weight, bias, code = ctx.saved_tensors
        if torch.is_grad_enabled() or any(is_dual(t) for t in (x, weight, dy)):
            return (*gradients(x, weight, bias, code, dy, ctx.dtype, (ctx.needs_input_grad[0], True)), None, None)
        dx = None
        if ctx.needs_input_grad[0]:
            dx, *_ = gradients(x, weight, bias, code, dy, ctx.dtype, (True, False))
        return (dx, *_kernels().first_gradients(x, weight, bias, code, dy), None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (x, weight, _, code), (x_dot, weight_dot, bias_dot) = ctx.saved_tensors, tangents[:3]
        if _differentiable(x, weight, *tangents[:3]):
            return tangent(x, weight, code, x_dot, weight_dot, bias_dot, ctx.dtype, ctx.width)
        weight_dot = torch.zeros_like(weight) if weight_dot is None else weight_dot
        y_dot = _kernels().first_tangent(x, weight_dot, bias_dot, code, ctx.dtype, ctx.width)
        if x_dot is not None:
            y_dot = y_dot + tangent(x, weight, code, x_dot, None, None, ctx.dtype, ctx.width)
        return y_dot  # type: ignore[no-any-return]


class FusedPool(Function):
    """What follows the convolution `c`: bias, max pooling and hardtanh, a linear map once the code is known."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, bias: Tensor, width: int) -> Tensor:
        y, code = _kernels().pool(c, bias, width)
        ctx.save_for_backward(bias, code)
        ctx.save_for_forward(bias, code)
        ctx.set_materialize_grads(False)
        ctx.size, ctx.dtype, ctx.width = c.shape[2:], c.dtype, width
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 3
        bias, code = ctx.saved_tensors
        if not (torch.is_grad_enabled() or is_dual(dy)):
            return (*_kernels().spread(dy, bias, code, ctx.size), None)
        dc = spread(dy, code, ctx.size)
        return dc, dc.sum(ROWS, dtype=torch.promote_types(dy.dtype, torch.float32)).to(bias.dtype), None

    @staticmethod
    def jvp(ctx: Any, c_dot: Tensor | None, bias_dot: Tensor | None, _: None) -> Tensor:
        code = ctx.saved_tensors[1]
        if not _differentiable(c_dot, bias_dot):
            return _kernels().select(c_dot, bias_dot, code, ctx.size, ctx.dtype, ctx.width)  # type: ignore[no-any-return]
        moved = torch.zeros_like(code, dtype=ctx.dtype) if c_dot is None else select(c_dot, code)
        return _finished(moved, bias_dot, code, ctx.width)


def spread(dy: Tensor, code: Tensor, size: tuple[int, int]) -> Tensor:
    """What reaches the convolution's outputs from dy, in operations that can be differentiated again."""
    quarters = torch.where(_places(code), dy[:, : code.shape[1], None], 0.0)
    dense = F.pixel_shuffle(quarters.flatten(1, 2), 2)
    dense = F.pad(dense, (0, size[1] - dense.shape[3], 0, size[0] - dense.shape[2]))
    return dense.contiguous(memory_format=torch.channels_last)


def select(dense: Tensor, code: Tensor) -> Tensor:
    """The values that come through, in operations that can be differentiated."""
    height, width = code.shape[2:]
    quarters = F.pixel_unshuffle(dense[:, :, : 2 * height, : 2 * width], 2).unflatten(1, (-1, 4))
    return torch.where(_places(code), quarters, 0.0).sum(2)


def gradients(
    x: Tensor, weight: Tensor, bias: Tensor, code: Tensor, dy: Tensor, dtype: torch.dtype, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, ...]:
    """What reaches x and weight, where wanted, and bias, in operations that can be differentiated again."""
    dense = spread(dy, code, (x.shape[2] - weight.shape[2] + 1, x.shape[3] - weight.shape[3] + 1))
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        dense, x.to(dtype), weight.to(dtype), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (*wanted, False)
    )
    dbias = dense.sum(ROWS, dtype=torch.promote_types(dtype, torch.float32)).to(bias.dtype)
    return dx.to(x.dtype) if wanted[0] else None, dweight.to(weight.dtype) if wanted[1] else None, dbias


def tangent(
    x: Tensor,
    weight: Tensor,
    code: Tensor,
    x_dot: Tensor | None,
    weight_dot: Tensor | None,
    bias_dot: Tensor | None,
    dtype: torch.dtype,
    width: int,
) -> Tensor:
    """The directional derivative of the outputs, in operations that can be differentiated again."""
    moved = torch.zeros_like(code, dtype=dtype)
    pairs = ((x_dot, weight), (x, weight_dot))
    for a, b in pairs:
        if a is not None and b is not None:
            moved = moved + select(F.conv2d(a.to(dtype), b.to(dtype)), code)
    return _finished(moved, bias_dot, code, width)


def _finished(moved: Tensor, bias_dot: Tensor | None, code: Tensor, width: int) -> Tensor:
    """With the bias's part, and the channels that fill up."""
    if bias_dot is not None:
        moved = moved + torch.where(code < CLAMPED, bias_dot[:, None, None], 0.0).to(moved.dtype)
    moved = F.pad(moved, (0, 0, 0, 0, 0, width - moved.shape[1]))
    return moved.contiguous(memory_format=torch.channels_last)


def _places(code: Tensor) -> Tensor:
    """Which of the four values of each window come through, [N, C, 4, H, W]."""
    return code[:, :, None] == torch.arange(4, dtype=code.dtype, device=code.device)[:, None, None]


def _dtype(x: Tensor) -> torch.dtype:
    """In which the convolution is to be."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _whole(channels: int) -> int:
    return -(-channels // WHOLE) * WHOLE


def _applied(function: type[Function], *arguments: Any) -> Tensor:
    """The function, or its kernel alone where no derivative will be asked for, so that no code is kept."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    if any(is_dual(t) or (t.requires_grad and torch.is_grad_enabled()) for t in tensors):
        return function.apply(*arguments)  # type: ignore[no-any-return]
    kernel = {FusedFirst: _kernels().first, FusedPool: _kernels().pool}[function]
    return kernel(*arguments, keep=False)[0]  # type: ignore[no-any-return]


def _differentiable(*values: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in values)


def _kernels() -> Any:
    return import_module("l2i.models.stage_launch")  # where Triton is; here, machines without it would import it
