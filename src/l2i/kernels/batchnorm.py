"""BatchNorm and leaky ReLU as one module, by fused kernels if they apply."""

from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from l2i.kernels import any_requires_grad, can_use_fused, is_dual

FUSED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
REDUCE_DIMS = (0, 2, 3)  # of the statistics of a channel


class NormAct(nn.BatchNorm2d):
    """BatchNorm, then a leaky ReLU."""

    # its forward leaves the statistics alone if `track_running_stats` is off
    respects_track_running_stats: ClassVar[bool] = True

    def __init__(self, channels: int, *, momentum: float | None = 0.1, slope: float = 0.1) -> None:
        super().__init__(channels, momentum=momentum)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        if not (can_use_fused(x) and self._can_fuse(x)):
            return F.leaky_relu(super().forward(x), self.slope)
        running_stats = None
        if self.track_running_stats and self.running_mean is not None:
            running_stats = (self.running_mean, self.running_var, self.num_batches_tracked)
        constants = (self.momentum, self.eps, self.slope)
        with torch.cuda.device_of(x):  # Triton launches on the current device
            return FusedNormAct.apply(  # type: ignore[no-untyped-call, no-any-return]
                x, self.weight, self.bias, running_stats, *constants
            )

    def _can_fuse(self, x: Tensor) -> bool:
        return (
            (self.training and self.affine and self.momentum is not None)
            and (x.dim() == 4 and x.dtype in FUSED_DTYPES and self.weight.dtype == torch.float32)
            and x.is_contiguous(memory_format=torch.channels_last)
            # more than one value per channel, and offsets of 32 bits
            and x.shape[1] < x.numel() < 2**31
        )


class FusedNormAct(Function):
    """NormAct by fused kernels; higher derivatives use the formulas below."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_stats: tuple[Tensor, Tensor, Tensor] | None,
        momentum: float,
        eps: float,
        slope: float,
    ) -> Tensor:
        y, mean, invstd = _load_kernels().forward(
            x, weight, bias, running_stats, momentum=momentum, eps=eps, slope=slope
        )
        ctx.save_for_backward(x, weight, bias, mean, invstd)
        ctx.save_for_forward(x, weight, bias, mean, invstd)
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.slope = eps, slope
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 7
        x, weight, bias, *_ = ctx.saved_tensors
        if torch.is_grad_enabled() or any(is_dual(t) for t in (x, weight, bias, dy)):
            grads = compute_norm_act_grads(x, weight, bias, dy, eps=ctx.eps, slope=ctx.slope)
        else:
            grads = _load_kernels().backward(ctx.saved_tensors, dy, slope=ctx.slope)
        return (*grads, None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        inputs, tangents = ctx.saved_tensors[:3], tangents[:3]
        if any_requires_grad(*inputs, *tangents):
            return compute_norm_act_jvp(*inputs, *tangents, eps=ctx.eps, slope=ctx.slope)
        y_dot: Tensor = _load_kernels().jvp(ctx.saved_tensors, *tangents, slope=ctx.slope)
        return y_dot


def compute_norm_act_grads(
    x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor, *, eps: float, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, in differentiable operations."""
    x_hat, scale, active = _normalize(x, weight, bias, eps)
    g = torch.where(active, dy, slope * dy).to(x_hat.dtype)
    dx = _apply_jacobian(g, x_hat, scale).to(x.dtype)
    return dx, (g * x_hat).sum(REDUCE_DIMS), g.sum(REDUCE_DIMS)


def compute_norm_act_jvp(
    x: Tensor, weight: Tensor, bias: Tensor, *tangents: Tensor | None, eps: float, slope: float
) -> Tensor:
    """Return the directional derivative of the outputs, in differentiable operations."""
    x_dot, weight_dot, bias_dot = tangents
    x_hat, scale, active = _normalize(x, weight, bias, eps)
    y_dot = torch.zeros_like(x_hat)
    if x_dot is not None:
        y_dot = y_dot + _apply_jacobian(x_dot.to(x_hat.dtype), x_hat, scale)
    if weight_dot is not None:
        y_dot = y_dot + weight_dot[:, None, None] * x_hat
    if bias_dot is not None:
        y_dot = y_dot + bias_dot[:, None, None]
    return torch.where(active, y_dot, slope * y_dot).to(x.dtype)


def _normalize(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Return the normalised x̂, weight / σ, and whether the leaky ReLU is active, in ≥ float32."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = x - x.mean(REDUCE_DIMS, keepdim=True)
    invstd = (centred.square().mean(REDUCE_DIMS, keepdim=True) + eps).rsqrt()
    x_hat, weight = centred * invstd, weight[:, None, None]
    return x_hat, weight * invstd, x_hat * weight + bias[:, None, None] > 0


def _apply_jacobian(d: Tensor, x_hat: Tensor, scale: Tensor) -> Tensor:
    """Apply BatchNorm's Jacobian in x to `d`; it is symmetric, so this serves both modes."""
    projection = x_hat * (d * x_hat).mean(REDUCE_DIMS, keepdim=True)
    return scale * (d - d.mean(REDUCE_DIMS, keepdim=True) - projection)


def _load_kernels() -> Any:
    return import_module("l2i.kernels.batchnorm_triton")  # not before: Triton may be missing
