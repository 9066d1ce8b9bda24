"""A convolution, its max pooling and its hardtanh as one module: fused kernels on a GPU, PyTorch's own elsewhere."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from l2i.kernels import can_use_fused, is_dual

HALF_DTYPES = (torch.bfloat16, torch.float16)
FUSED_DTYPES = (*HALF_DTYPES, torch.float32)
CHANNEL_MULTIPLE = 8  # channels: cuDNN copies what is no multiple of this before it can use the matrix units
CLAMPED_CODE = 4  # as a code; lower ones number the places of a 2×2 window, row by row
REDUCE_DIMS = (0, 2, 3)  # what a channel's values run over
KERNEL_SIDE_LIMIT = 7  # of kernels whose patches do not fit a tile of `FusedFirst`


class ConvPoolHardtanh(nn.Conv2d):
    """A convolution that does not pad, 2×2 max pooling, then hardtanh.

    With `filled`, zeros fill the output's channels up to a multiple of 8 where kernels are fused: for a `Stage` to
    follow, which knows such an input and ignores them.
    """

    def __init__(self, channels: int, width: int, kernel: int, *, pad_channels: bool = False) -> None:
        super().__init__(channels, width, kernel)
        self.pad_channels = pad_channels

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        if not (can_use_fused(x) and self._can_fuse(x)):
            return F.hardtanh(F.max_pool2d(F.conv2d(x, self._pad_weight(x), self.bias), 2))
        dtype, width = _get_conv_dtype(x), _round_up_channels(self.out_channels) if self.pad_channels else self.out_channels
        with torch.cuda.device_of(x):  # Triton launches on the current device
            if self._can_fuse_conv(x):
                return _apply_fused(FusedConvPool, x, self.weight, self.bias, dtype, width)
            return _apply_fused(FusedBiasPool, F.conv2d(x, self._pad_weight(x)), self.bias, width)

    def _pad_weight(self, x: Tensor) -> Tensor:
        """With zeros for the channels with which `filled` outputs are filled up."""
        extra = _round_up_channels(self.in_channels) - self.in_channels
        is_padded = extra > 0 and x.dim() > 2 and x.shape[-3] == self.in_channels + extra
        return F.pad(self.weight, (0, 0, 0, 0, 0, extra)) if is_padded else self.weight

    def _can_fuse_conv(self, x: Tensor) -> bool:
        """Whether the convolution itself is better not left to cuDNN."""
        fits = self.in_channels == x.shape[1] == 1 and max(self.kernel_size) < KERNEL_SIDE_LIMIT
        return fits and _get_conv_dtype(x) in HALF_DTYPES and (torch.is_autocast_enabled("cuda") or x.dtype == self.weight.dtype)

    def _can_fuse(self, x: Tensor) -> bool:
        if not (x.dim() == 4 and x.dtype in FUSED_DTYPES and _get_conv_dtype(x) in FUSED_DTYPES and self.weight.dtype in FUSED_DTYPES):
            return False
        height, width = (side - kernel + 1 for side, kernel in zip(x.shape[2:], self.kernel_size, strict=True))
        values = x.shape[0] * height * width * _round_up_channels(self.out_channels)
        return min(height, width) > 1 and 0 < max(values, x.numel()) < 2**31  # offsets of 32 bits


class FusedConvPool(Function):
    """All of a stage with one input channel; the code says which value of a window came through, if any did."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, width: int) -> Tensor:
        y, code = _load_kernels().first(x, weight, bias, dtype, width)
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
            return (*compute_conv_pool_grads(x, weight, bias, code, dy, ctx.dtype, (ctx.needs_input_grad[0], True)), None, None)
        dx = None
        if ctx.needs_input_grad[0]:
            dx, *_ = compute_conv_pool_grads(x, weight, bias, code, dy, ctx.dtype, (True, False))
        return (dx, *_load_kernels().first_gradients(x, weight, bias, code, dy), None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (x, weight, _, code), (x_dot, weight_dot, bias_dot) = ctx.saved_tensors, tangents[:3]
        if _any_requires_grad(x, weight, *tangents[:3]):
            return compute_conv_pool_jvp(x, weight, code, x_dot, weight_dot, bias_dot, ctx.dtype, ctx.width)
        weight_dot = torch.zeros_like(weight) if weight_dot is None else weight_dot
        y_dot = _load_kernels().first_tangent(x, weight_dot, bias_dot, code, ctx.dtype, ctx.width)
        if x_dot is not None:
            y_dot = y_dot + compute_conv_pool_jvp(x, weight, code, x_dot, None, None, ctx.dtype, ctx.width)
        return y_dot  # type: ignore[no-any-return]


class FusedBiasPool(Function):
    """What follows the convolution `c`: bias, max pooling and hardtanh, a linear map once the code is known."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, bias: Tensor, width: int) -> Tensor:
        y, code = _load_kernels().pool(c, bias, width)
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
            return (*_load_kernels().spread(dy, bias, code, ctx.size), None)
        dc = unpool_gradient(dy, code, ctx.size)
        return dc, dc.sum(REDUCE_DIMS, dtype=torch.promote_types(dy.dtype, torch.float32)).to(bias.dtype), None

    @staticmethod
    def jvp(ctx: Any, c_dot: Tensor | None, bias_dot: Tensor | None, _: None) -> Tensor:
        code = ctx.saved_tensors[1]
        if not _any_requires_grad(c_dot, bias_dot):
            return _load_kernels().select(c_dot, bias_dot, code, ctx.size, ctx.dtype, ctx.width)  # type: ignore[no-any-return]
        y_dot = torch.zeros_like(code, dtype=ctx.dtype) if c_dot is None else gather_pooled(c_dot, code)
        return _add_bias_and_pad(y_dot, bias_dot, code, ctx.width)


def unpool_gradient(dy: Tensor, code: Tensor, size: tuple[int, int]) -> Tensor:
    """What reaches the convolution's outputs from dy, in operations that can be differentiated again."""
    window_values = torch.where(_make_position_mask(code), dy[:, : code.shape[1], None], 0.0)
    dense = F.pixel_shuffle(window_values.flatten(1, 2), 2)
    dense = F.pad(dense, (0, size[1] - dense.shape[3], 0, size[0] - dense.shape[2]))
    return dense.contiguous(memory_format=torch.channels_last)


def gather_pooled(dense: Tensor, code: Tensor) -> Tensor:
    """The values that come through, in operations that can be differentiated."""
    height, width = code.shape[2:]
    window_values = F.pixel_unshuffle(dense[:, :, : 2 * height, : 2 * width], 2).unflatten(1, (-1, 4))
    return torch.where(_make_position_mask(code), window_values, 0.0).sum(2)


def compute_conv_pool_grads(
    x: Tensor, weight: Tensor, bias: Tensor, code: Tensor, dy: Tensor, dtype: torch.dtype, needs_grad: tuple[bool, bool]
) -> tuple[Tensor | None, ...]:
    """What reaches x and weight, where wanted, and bias, in operations that can be differentiated again."""
    dense = unpool_gradient(dy, code, (x.shape[2] - weight.shape[2] + 1, x.shape[3] - weight.shape[3] + 1))
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        dense, x.to(dtype), weight.to(dtype), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (*needs_grad, False)
    )
    dbias = dense.sum(REDUCE_DIMS, dtype=torch.promote_types(dtype, torch.float32)).to(bias.dtype)
    return dx.to(x.dtype) if needs_grad[0] else None, dweight.to(weight.dtype) if needs_grad[1] else None, dbias


def compute_conv_pool_jvp(
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
    y_dot = torch.zeros_like(code, dtype=dtype)
    pairs = ((x_dot, weight), (x, weight_dot))
    for a, b in pairs:
        if a is not None and b is not None:
            y_dot = y_dot + gather_pooled(F.conv2d(a.to(dtype), b.to(dtype)), code)
    return _add_bias_and_pad(y_dot, bias_dot, code, width)


def _add_bias_and_pad(y_dot: Tensor, bias_dot: Tensor | None, code: Tensor, width: int) -> Tensor:
    """With the bias's part, and the channels that fill up."""
    if bias_dot is not None:
        y_dot = y_dot + torch.where(code < CLAMPED_CODE, bias_dot[:, None, None], 0.0).to(y_dot.dtype)
    y_dot = F.pad(y_dot, (0, 0, 0, 0, 0, width - y_dot.shape[1]))
    return y_dot.contiguous(memory_format=torch.channels_last)


def _make_position_mask(code: Tensor) -> Tensor:
    """Which of the four values of each window come through, [N, C, 4, H, W]."""
    return code[:, :, None] == torch.arange(4, dtype=code.dtype, device=code.device)[:, None, None]


def _get_conv_dtype(x: Tensor) -> torch.dtype:
    """In which the convolution is to be."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _round_up_channels(channels: int) -> int:
    return -(-channels // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE


def _apply_fused(function: type[Function], *arguments: Any) -> Tensor:
    """The function, or its kernel alone where no derivative will be asked for, so that no code is kept."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    if any(is_dual(t) or (t.requires_grad and torch.is_grad_enabled()) for t in tensors):
        return function.apply(*arguments)  # type: ignore[no-any-return]
    kernel = {FusedConvPool: _load_kernels().first, FusedBiasPool: _load_kernels().pool}[function]
    return kernel(*arguments, keep=False)[0]  # type: ignore[no-any-return]


def _any_requires_grad(*values: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in values)


def _load_kernels() -> Any:
    return import_module("l2i.kernels.conv_pool_triton")  # where Triton is; here, machines without it would import it
