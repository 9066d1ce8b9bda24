"""BatchNorm in forward mode by its own backward kernel, since its Jacobian is symmetric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class DualBatchNorm(TorchFunctionMode):
    """Within it, BatchNorm of dual tensors takes a few kernels instead of some fifteen; for passes without a graph."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.batch_norm or torch.is_grad_enabled() or not kwargs["training"]:
            return func(*args, **kwargs)
        if kwargs["weight"] is None or kwargs["bias"] is None:
            return func(*args, **kwargs)
        return batch_norm(*args, **kwargs)


def batch_norm(
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
    """Y = γ x̂ + β of dual tensors: ẏ = ∂y/∂x ẋ + γ̇ x̂ + β̇, where ∂y/∂x is a projection times a scale a channel."""
    (x, dx), (weight, d_weight), (bias, d_bias) = (forward_ad.unpack_dual(t) for t in (x, weight, bias))
    y, mean, scale = torch.native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if dx is None and d_weight is None and d_bias is None:
        return y
    by_channel = (1, -1) + (1,) * (x.ndim - 2)
    slope = torch.zeros_like(mean) if d_weight is None else d_weight * scale
    offset = (0 if d_bias is None else d_bias) - slope * mean
    tangent = torch.addcmul(offset.to(x.dtype).view(by_channel), x, slope.to(x.dtype).view(by_channel))
    if dx is not None:
        seen = (weight, running_mean, running_var, mean, scale)
        through, _, _ = torch.ops.aten.native_batch_norm_backward(dx, x, *seen, training, eps, [True, False, False])
        tangent = tangent + through
    dual: Tensor = forward_ad.make_dual(y, tangent.to(y.dtype))
    return dual
