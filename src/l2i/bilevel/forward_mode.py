"""Directional derivatives along v in parameter space: by forward mode, or by finite differences.

Fused attention has no forward mode, and BatchNorm's takes some fifteen kernels: both are replaced
while dual tensors pass. BatchNorm's Jacobian is symmetric: its backward kernel gives the tangent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from l2i.bilevel.functional import ParamFunction, Params


def use_math_attention() -> AbstractContextManager[None]:
    """Compute attention by matrix products and a softmax, which have every derivative."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def use_same_attention(model: nn.Module) -> AbstractContextManager[None]:
    """Use math attention if the model has dropout: each attention kernel draws other masks."""
    return use_math_attention() if has_dropout(model) else nullcontext()


def has_dropout(model: nn.Module) -> bool:
    """Return whether a module in training has a dropout rate, as nn.MultiheadAttention does."""
    rates = (
        m.p if isinstance(m, _DropoutNd) else getattr(m, "dropout", 0)
        for m in model.modules()
        if m.training
    )
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


class DualBatchNorm(TorchFunctionMode):
    """Mode in which BatchNorm of dual tensors takes a few kernels; for passes without a graph."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.batch_norm or torch.is_grad_enabled() or not kwargs["training"]:
            return func(*args, **kwargs)
        if kwargs["weight"] is None or kwargs["bias"] is None:
            return func(*args, **kwargs)
        return _apply_dual_batch_norm(*args, **kwargs)


def _apply_dual_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor,
    bias: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Return y = γ x̂ + β of dual tensors: ẏ = ∂y/∂x ẋ + γ̇ x̂ + β̇, with ∂y/∂x symmetric."""
    (x, dx), (weight, d_weight), (bias, d_bias) = (
        forward_ad.unpack_dual(t) for t in (x, weight, bias)
    )
    y, mean, scale = torch.native_batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if dx is None and d_weight is None and d_bias is None:
        return y
    by_channel = (1, -1) + (1,) * (x.ndim - 2)
    slope = torch.zeros_like(mean) if d_weight is None else d_weight * scale
    offset = (0 if d_bias is None else d_bias) - slope * mean
    offset, slope = (stat.to(x.dtype).view(by_channel) for stat in (offset, slope))
    tangent = torch.addcmul(offset, x, slope)
    if dx is not None:
        saved_stats = (weight, running_mean, running_var, mean, scale)
        input_tangent, _, _ = torch.ops.aten.native_batch_norm_backward(
            dx, x, *saved_stats, training, eps, [True, False, False]
        )
        tangent = tangent + input_tangent
    dual: Tensor = forward_ad.make_dual(y, tangent.to(y.dtype))
    return dual


# fraction of ‖θ‖: as small as rounding allows, since kinks (ReLU, max pooling) err in proportion
RELATIVE_STEP = {torch.float64: 1e-8, torch.float32: 1e-5}


class DirectionalDerivative(Protocol):
    """`function(params)` and its derivative along `v`."""

    def __call__(
        self, function: ParamFunction, params: Params, v: Params
    ) -> tuple[Tensor, Tensor]: ...


def forward_mode(function: ParamFunction, params: Params, v: Params) -> tuple[Tensor, Tensor]:
    """Pass dual numbers once; they take gradients too, for functions that are gradients."""
    with torch.enable_grad(), forward_ad.dual_level(), DualBatchNorm(), use_math_attention():
        duals = {
            name: forward_ad.make_dual(_detach_to_own_storage(p).requires_grad_(), v[name].detach())
            for name, p in params.items()
        }
        value, tangent = forward_ad.unpack_dual(function(duals))
    return value.detach(), torch.zeros_like(value) if tangent is None else tangent.detach()


def _detach_to_own_storage(p: Tensor) -> Tensor:
    """Detach into own storage: for a view, torch would make a tangent as large as its base."""
    owns_storage = p.numel() * p.element_size() == p.untyped_storage().nbytes()
    return p.detach() if owns_storage else p.detach().clone()


def central_difference(function: ParamFunction, params: Params, v: Params) -> tuple[Tensor, Tensor]:
    """Pass twice, at θ ± εv. Noise in bf16: use float32 (good to a few per cent) or better."""
    v_norm = torch.stack([d.norm() for d in v.values()]).norm()
    params_norm = torch.stack([p.norm() for p in params.values()]).norm()
    safe_v_norm = torch.where(v_norm > 0, v_norm, torch.ones_like(v_norm))
    epsilon = RELATIVE_STEP[params_norm.dtype] * (1 + params_norm) / safe_v_norm

    def shift(sign: int) -> Params:
        return {n: (p + sign * epsilon * v[n]).requires_grad_() for n, p in params.items()}

    with torch.no_grad():
        f_plus, f_minus = function(shift(1)), function(shift(-1))
        return (f_plus + f_minus).detach() / 2, (f_plus - f_minus).detach() / (2 * epsilon)
