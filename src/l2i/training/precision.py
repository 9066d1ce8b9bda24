"""Precision: bf16 or TF32 inside forwards; parameters, costs and look-ahead steps stay in float32."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import detach_params
from l2i.bilevel.problem import Params
from l2i.config import Run
from l2i.config.validate import find_bf16_problem


def resolve_precision(run: Run, device: torch.device) -> str:
    """The precision that the run asks for, or for 'auto' the fastest that loses nothing."""
    if run.precision != "auto":
        return "float32" if run.precision == "tf32" and device.type != "cuda" else run.precision
    return "float32" if device.type != "cuda" or find_bf16_problem(run) else "bf16"


@contextmanager
def use_precision(precision: str, device: torch.device) -> Iterator[None]:
    """On a GPU, made the current one: cuDNN's fastest algorithms, and TF32 in products only where the run says so."""
    matmul, cudnn, tf32 = torch.backends.cuda.matmul, torch.backends.cudnn, precision == "tf32"
    previous_tf32, is_deterministic = matmul.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = tf32
    try:
        flags = cudnn.flags(enabled=cudnn.enabled, benchmark=not is_deterministic, deterministic=is_deterministic, allow_tf32=tf32)
        with flags, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        matmul.allow_tf32 = previous_tf32


def list_matrix_params(network: nn.Module) -> list[str]:
    """The parameters that bf16 forwards round: those of convolutions and linear layers."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    matrix_ids = {id(p) for module in network.modules() if isinstance(module, kinds) for p in module._parameters.values()}
    return [name for name, p in network.named_parameters() if id(p) in matrix_ids]


def round_params(params: Params, names: Collection[str]) -> Params:
    """The parameters with some in bf16, rounded once for all forwards at θ."""
    bf16_names = [name for name in names if name in params]
    bf16_values = [torch.empty_like(params[name].detach(), dtype=torch.bfloat16) for name in bf16_names]
    if bf16_values:
        torch._foreach_copy_(bf16_values, [params[name].detach() for name in bf16_names])
    return {**detach_params(params), **dict(zip(bf16_names, bf16_values, strict=True))}


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
