"""Convolution, max pooling and hardtanh as one module, by fused kernels on a GPU."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from l2i.kernels import any_requires_grad, can_use_fused, is_dual

HALF_DTYPES = (torch.bfloat16, torch.float16)
FUSED_DTYPES = (*HALF_DTYPES, torch.float32)
CHANNEL_MULTIPLE = 8  # cuDNN copies other numbers of channels before it can use tensor cores
CLAMPED_CODE = 4  # lower codes number the positions of a 2×2 window, row by row
REDUCE_DIMS = (0, 2, 3)  # of a channel's values
KERNEL_SIDE_LIMIT = 7  # from which on patches do not fit a tile of `FusedConvPool`

Tangents = tuple[Tensor | None, ...]  # None stands for zeros


class ConvPoolHardtanh(nn.Conv2d):
    """A convolution without padding, 2×2 max pooling, then hardtanh.

    With `pad_channels`, fused kernels pad the output with zero channels to a multiple of 8, for a
    following `ConvPoolHardtanh`, which recognises such an input and ignores them.
    """

    def __init__(
        self, channels: int, width: int, kernel: int, *, pad_channels: bool = False
    ) -> None:
        super().__init__(channels, width, kernel)
        self.pad_channels = pad_channels

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        if not (can_use_fused(x) and self._can_fuse(x)):
            return F.hardtanh(F.max_pool2d(F.conv2d(x, self._pad_weight(x), self.bias), 2))
        width = _round_up_channels(self.out_channels) if self.pad_channels else self.out_channels
        with torch.cuda.device_of(x):  # Triton launches on the current device
            if self._can_fuse_conv(x):
                return _apply_fused(
                    FusedConvPool, x, self.weight, self.bias, _get_conv_dtype(x), width
                )
            return _apply_fused(FusedBiasPool, F.conv2d(x, self._pad_weight(x)), self.bias, width)

    def _pad_weight(self, x: Tensor) -> Tensor:
        """Return the weight, with zeros for the channels that a padded input adds."""
        extra = _round_up_channels(self.in_channels) - self.in_channels
        is_padded = extra > 0 and x.dim() > 2 and x.shape[-3] == self.in_channels + extra
        return F.pad(self.weight, (0, 0, 0, 0, 0, extra)) if is_padded else self.weight

    def _can_fuse_conv(self, x: Tensor) -> bool:
        """Return whether the convolution itself is faster by our kernel than by cuDNN."""
        fits = self.in_channels == x.shape[1] == 1 and max(self.kernel_size) < KERNEL_SIDE_LIMIT
        same_dtype = torch.is_autocast_enabled("cuda") or x.dtype == self.weight.dtype
        return fits and _get_conv_dtype(x) in HALF_DTYPES and same_dtype

    def _can_fuse(self, x: Tensor) -> bool:
        dtypes = {x.dtype, _get_conv_dtype(x), self.weight.dtype}
        if x.dim() != 4 or not dtypes.issubset(FUSED_DTYPES):
            return False
        height, width = (
            side - kernel + 1 for side, kernel in zip(x.shape[2:], self.kernel_size, strict=True)
        )
        values = x.shape[0] * height * width * _round_up_channels(self.out_channels)
        return min(height, width) > 1 and 0 < max(values, x.numel()) < 2**31  # offsets of 32 bits


class FusedConvPool(Function):
    """The module for one input channel; a code says which value of a window passes, if any."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, width: int
    ) -> Tensor:
        y, code = _load_kernels().conv_pool(x, weight, bias, dtype, width)
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
        needs_dx = ctx.needs_input_grad[0]
        compute_grads = partial(compute_conv_pool_grads, x, weight, bias, code, dy, ctx.dtype)
        if torch.is_grad_enabled() or any(is_dual(t) for t in (x, weight, dy)):
            return (*compute_grads((needs_dx, True)), None, None)
        dx = compute_grads((True, False))[0] if needs_dx else None
        return (dx, *_load_kernels().conv_pool_grads(x, weight, bias, code, dy), None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (x, weight, _, code), (x_dot, weight_dot, bias_dot) = ctx.saved_tensors, tangents[:3]
        form = (ctx.dtype, ctx.width)
        if any_requires_grad(x, weight, *tangents[:3]):
            return _compute_conv_pool_jvp(x, weight, code, tangents[:3], *form)
        weight_dot = torch.zeros_like(weight) if weight_dot is None else weight_dot
        y_dot = _load_kernels().conv_pool_tangent(x, weight_dot, bias_dot, code, *form)
        if x_dot is not None:
            y_dot = y_dot + _compute_conv_pool_jvp(x, weight, code, (x_dot, None, None), *form)
        return y_dot  # type: ignore[no-any-return]


class FusedBiasPool(Function):
    """Bias, max pooling and hardtanh of a convolution `c`, a linear map once the code is known."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, bias: Tensor, width: int) -> Tensor:
        y, code = _load_kernels().bias_pool(c, bias, width)
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
            return (*_load_kernels().bias_pool_grads(dy, bias, code, ctx.size), None)
        dc = unpool_gradient(dy, code, ctx.size)
        return dc, _sum_bias_gradient(dc, bias), None

    @staticmethod
    def jvp(ctx: Any, c_dot: Tensor | None, bias_dot: Tensor | None, _: None) -> Tensor:
        code = ctx.saved_tensors[1]
        if not any_requires_grad(c_dot, bias_dot):
            return _load_kernels().bias_pool_tangent(  # type: ignore[no-any-return]
                c_dot, bias_dot, code, ctx.size, ctx.dtype, ctx.width
            )
        if c_dot is None:
            y_dot = torch.zeros_like(code, dtype=ctx.dtype)
        else:
            y_dot = gather_pooled(c_dot, code)
        return _add_bias_and_pad(y_dot, bias_dot, code, ctx.width)


def unpool_gradient(dy: Tensor, code: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the gradient of the convolution's outputs, in differentiable operations."""
    window_values = torch.where(_make_position_mask(code), dy[:, : code.shape[1], None], 0.0)
    dense = F.pixel_shuffle(window_values.flatten(1, 2), 2)
    dense = F.pad(dense, (0, size[1] - dense.shape[3], 0, size[0] - dense.shape[2]))
    return dense.contiguous(memory_format=torch.channels_last)


def gather_pooled(dense: Tensor, code: Tensor) -> Tensor:
    """Return the values that pass, in differentiable operations."""
    height, width = code.shape[2:]
    window_values = F.pixel_unshuffle(dense[:, :, : 2 * height, : 2 * width], 2)
    window_values = window_values.unflatten(1, (-1, 4))
    return torch.where(_make_position_mask(code), window_values, 0.0).sum(2)


def compute_conv_pool_grads(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    code: Tensor,
    dy: Tensor,
    dtype: torch.dtype,
    needs_grad: tuple[bool, bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x and weight, if needed, and bias, in differentiable operations."""
    size = (x.shape[2] - weight.shape[2] + 1, x.shape[3] - weight.shape[3] + 1)
    dense = unpool_gradient(dy, code, size)
    # stride 1, no padding, dilation 1, not transposed, no output padding, one group
    geometry = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        dense, x.to(dtype), weight.to(dtype), None, *geometry, (*needs_grad, False)
    )
    dx = dx.to(x.dtype) if needs_grad[0] else None
    dweight = dweight.to(weight.dtype) if needs_grad[1] else None
    return dx, dweight, _sum_bias_gradient(dense, bias)


def _sum_bias_gradient(dense: Tensor, bias: Tensor) -> Tensor:
    dtype = torch.promote_types(dense.dtype, torch.float32)
    return dense.sum(REDUCE_DIMS, dtype=dtype).to(bias.dtype)


def _compute_conv_pool_jvp(
    x: Tensor, weight: Tensor, code: Tensor, tangents: Tangents, dtype: torch.dtype, width: int
) -> Tensor:
    """Return the directional derivative of the outputs, in differentiable operations."""
    x_dot, weight_dot, bias_dot = tangents
    y_dot = torch.zeros_like(code, dtype=dtype)
    for a, b in ((x_dot, weight), (x, weight_dot)):
        if a is not None and b is not None:
            y_dot = y_dot + gather_pooled(F.conv2d(a.to(dtype), b.to(dtype)), code)
    return _add_bias_and_pad(y_dot, bias_dot, code, width)


def _add_bias_and_pad(y_dot: Tensor, bias_dot: Tensor | None, code: Tensor, width: int) -> Tensor:
    if bias_dot is not None:
        bias_part = torch.where(code < CLAMPED_CODE, bias_dot[:, None, None], 0.0)
        y_dot = y_dot + bias_part.to(y_dot.dtype)
    y_dot = F.pad(y_dot, (0, 0, 0, 0, 0, width - y_dot.shape[1]))
    return y_dot.contiguous(memory_format=torch.channels_last)


def _make_position_mask(code: Tensor) -> Tensor:
    """Return which of the four values of each window pass, [N, C, 4, H, W]."""
    return code[:, :, None] == torch.arange(4, dtype=code.dtype, device=code.device)[:, None, None]


def _get_conv_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _round_up_channels(channels: int) -> int:
    return -(-channels // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE


def _apply_fused(function: type[Function], *arguments: Any) -> Tensor:
    """Apply the function, or only its kernel, without a code, if no derivative can be needed."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    if any(is_dual(t) or (t.requires_grad and torch.is_grad_enabled()) for t in tensors):
        return function.apply(*arguments)  # type: ignore[no-any-return]
    kernels = _load_kernels()
    kernel = kernels.conv_pool if function is FusedConvPool else kernels.bias_pool
    return kernel(*arguments, keep=False)[0]  # type: ignore[no-any-return]


def _load_kernels() -> Any:
    return import_module("l2i.kernels.conv_pool_triton")  # not before: Triton may be missing
