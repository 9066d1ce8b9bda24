"""Precision: bf16 or TF32 inside forwards; parameters, costs and look-ahead steps stay in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from l2i.batch import Params
from l2i.bilevel.inner import detached
from l2i.config import Run
from l2i.validate import lost_in_bf16


def precision_of(run: Run, device: torch.device) -> str:
    """The precision that the run asks for, or for 'auto' the fastest that loses nothing."""
    if run.precision != "auto":
        return run.precision
    return "float32" if device.type != "cuda" or lost_in_bf16(run) else "bf16"


@contextmanager
def numerics(precision: str) -> Iterator[None]:
    """On a GPU: cuDNN's fastest algorithms, and products of float32 in TF32 only where the run says so."""
    matmul, cudnn, tf32 = torch.backends.cuda.matmul, torch.backends.cudnn, precision == "tf32"
    before, fixed = matmul.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = tf32
    try:
        with cudnn.flags(enabled=cudnn.enabled, benchmark=not fixed, deterministic=fixed, allow_tf32=tf32):
            yield
    finally:
        matmul.allow_tf32 = before


def rounded(params: Params) -> Params:
    """Convolutions' weights as bf16 forwards take them, made once for all forwards at θ; the rest as it is."""
    wide = [name for name, p in params.items() if p.ndim > 2]
    return {**detached(params), **copied([params[name].detach() for name in wide], torch.bfloat16, wide)}


def whole(gradient: Params) -> Params:
    """A gradient in float32 or better."""
    low = [name for name, g in gradient.items() if g.dtype == torch.bfloat16]
    return {**gradient, **copied([gradient[name] for name in low], torch.float32, low)} if low else gradient


def copied(values: list[Tensor], dtype: torch.dtype, names: list[str]) -> Params:
    """Copies of another type, all in one go."""
    made = [torch.empty_like(value, dtype=dtype) for value in values]
    if made:
        torch._foreach_copy_(made, values)
    return dict(zip(names, made, strict=True))


class Autocast(nn.Module):
    """`model` with its forward in bf16 and its output in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        # no cache: the look-ahead calls one module at several parameters
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            outputs: Tensor = self.model(x)
        return outputs.float()
