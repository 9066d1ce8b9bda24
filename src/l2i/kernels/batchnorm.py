"""BatchNorm with its leaky ReLU as one module: fused kernels where they apply, PyTorch's own elsewhere."""

from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from l2i.kernels import can_use_fused, is_dual

FUSED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
REDUCE_DIMS = (0, 2, 3)  # what the statistics of a channel run over


class NormAct(nn.BatchNorm2d):
    """BatchNorm, then a leaky ReLU."""

    moves_where_tracked: ClassVar[bool] = True  # its forward leaves the statistics where `track_running_stats` is off

    def __init__(self, channels: int, *, momentum: float | None = 0.1, slope: float = 0.1) -> None:
        super().__init__(channels, momentum=momentum)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        if not (can_use_fused(x) and self._can_fuse(x)):
            return F.leaky_relu(super().forward(x), self.slope)
        running_stats = (self.running_mean, self.running_var, self.num_batches_tracked)
        updated_stats = running_stats if self.track_running_stats and self.running_mean is not None else None
        with torch.cuda.device_of(x):  # Triton launches on the current device
            arguments = (x, self.weight, self.bias, updated_stats, self.momentum, self.eps, self.slope)
            return FusedNormAct.apply(*arguments)  # type: ignore[no-untyped-call, no-any-return]

    def _can_fuse(self, x: Tensor) -> bool:
        return (
            (self.training and self.affine and self.momentum is not None)
            and (x.dim() == 4 and x.dtype in FUSED_DTYPES and self.weight.dtype == torch.float32)
            and x.is_contiguous(memory_format=torch.channels_last)
            and x.shape[1] < x.numel() < 2**31  # more than one value a channel, and offsets of 32 bits
        )


class FusedNormAct(Function):
    """The same by the kernels; where a derivative is itself to be differentiated, by the formulas below."""

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
        y, mean, invstd = _load_kernels().forward(x, weight, bias, running_stats, momentum=momentum, eps=eps, slope=slope)
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
        inputs, input_tangents = ctx.saved_tensors[:3], tangents[:3]
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*inputs, *input_tangents)):
            return compute_norm_act_jvp(*inputs, *input_tangents, eps=ctx.eps, slope=ctx.slope)
        return _load_kernels().jvp(ctx.saved_tensors, *input_tangents, slope=ctx.slope)  # type: ignore[no-any-return]


def compute_norm_act_grads(
    x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor, *, eps: float, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What reaches x, weight and bias from dy, in operations that can be differentiated again."""
    x_hat, scale, active = _normalize(x, weight, bias, eps)
    g = torch.where(active, dy, slope * dy).to(x_hat.dtype)
    return _apply_jacobian(g, x_hat, scale).to(x.dtype), (g * x_hat).sum(REDUCE_DIMS), g.sum(REDUCE_DIMS)


def compute_norm_act_jvp(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_dot: Tensor | None,
    weight_dot: Tensor | None,
    bias_dot: Tensor | None,
    *,
    eps: float,
    slope: float,
) -> Tensor:
    """The directional derivative of the outputs, in operations that can be differentiated again."""
    x_hat, scale, active = _normalize(x, weight, bias, eps)
    y_dot = torch.zeros_like(x_hat)
    if x_dot is not None:
        y_dot = y_dot + _apply_jacobian(x_dot.to(x_hat.dtype), x_hat, scale)
    if weight_dot is not None:
        y_dot = y_dot + _expand_channels(weight_dot) * x_hat
    if bias_dot is not None:
        y_dot = y_dot + _expand_channels(bias_dot)
    return torch.where(active, y_dot, slope * y_dot).to(x.dtype)


def _normalize(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised x̂, weight / σ, and where the leaky ReLU is active; float32 or better."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = x - x.mean(REDUCE_DIMS, keepdim=True)
    invstd = (centred.square().mean(REDUCE_DIMS, keepdim=True) + eps).rsqrt()
    x_hat = centred * invstd
    return x_hat, _expand_channels(weight) * invstd, x_hat * _expand_channels(weight) + _expand_channels(bias) > 0


def _apply_jacobian(d: Tensor, x_hat: Tensor, scale: Tensor) -> Tensor:
    """BatchNorm's Jacobian in x applied to `d`; it is symmetric, so this serves both modes."""
    return scale * (d - d.mean(REDUCE_DIMS, keepdim=True) - x_hat * (d * x_hat).mean(REDUCE_DIMS, keepdim=True))


def _expand_channels(values: Tensor) -> Tensor:
    return values[:, None, None]


def _load_kernels() -> Any:
    return import_module("l2i.kernels.batchnorm_triton")  # where Triton is; here, machines without it would import it
