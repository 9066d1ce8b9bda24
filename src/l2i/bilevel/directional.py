"""Directional derivatives along v in parameter space: by forward mode, or by differences where that is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from l2i.batch import Params
from l2i.bilevel.attention import plain_attention
from l2i.bilevel.dual import DualBatchNorm

# of ‖θ‖, for differences: as small as rounding allows, since kinks (ReLU, max pooling) err in proportion to it
STEP = {torch.float64: 1e-8, torch.float32: 1e-5}


class Directional(Protocol):
    """`function(params)` and its derivative along `v`."""

    def __call__(self, function: Callable[[Params], Tensor], params: Params, v: Params) -> tuple[Tensor, Tensor]: ...


def forward_mode(function: Callable[[Params], Tensor], params: Params, v: Params) -> tuple[Tensor, Tensor]:
    """One pass with dual numbers; they take gradients too, for functions that are themselves a gradient."""
    with torch.enable_grad(), forward_ad.dual_level(), DualBatchNorm(), plain_attention():
        duals = {name: forward_ad.make_dual(alone(p).requires_grad_(), v[name].detach()) for name, p in params.items()}
        value, tangent = forward_ad.unpack_dual(function(duals))
    return value.detach(), torch.zeros_like(value) if tangent is None else tangent.detach()


def alone(p: Tensor) -> Tensor:
    """A parameter in memory of its own: of a part of a larger piece, torch makes a tangent as large as the piece."""
    whole = p.numel() * p.element_size() == p.untyped_storage().nbytes()
    return p.detach() if whole else p.detach().clone()


def central_difference(function: Callable[[Params], Tensor], params: Params, v: Params) -> tuple[Tensor, Tensor]:
    """Two passes at θ ± εv. Noise in bf16: use float32 (good to some per cent) or better."""
    length = torch.stack([d.norm() for d in v.values()]).norm()
    size = torch.stack([p.norm() for p in params.values()]).norm()
    epsilon = STEP[size.dtype] * (1 + size) / torch.where(length > 0, length, torch.ones_like(length))
    with torch.no_grad():
        ahead, behind = (
            function({name: (p + sign * epsilon * v[name]).requires_grad_() for name, p in params.items()})
            for sign in (1, -1)
        )
        return (ahead + behind).detach() / 2, (ahead - behind).detach() / (2 * epsilon)
