"""Precision: bf16 inside forwards; parameters, costs and look-ahead steps stay in float32."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import Params, detach_params
from l2i.config import Run
from l2i.config.validate import find_bf16_problem


def resolve_precision(run: Run, device: torch.device) -> str:
    """Return the run's precision, or for 'auto' the fastest that loses nothing."""
    if run.precision != "auto":
        return run.precision
    return "float32" if device.type != "cuda" or find_bf16_problem(run) else "bf16"


@contextmanager
def use_precision(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, with cuDNN's fastest algorithms and without TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    previous_tf32, is_deterministic = matmul.allow_tf32, cudnn.deterministic
    flags = cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=not is_deterministic,
        deterministic=is_deterministic,
        allow_tf32=False,
    )
    matmul.allow_tf32 = False
    try:
        with flags, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        matmul.allow_tf32 = previous_tf32


class Autocast(nn.Module):
    """A model with its forward in bf16 and its output in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        # no cache: the look-ahead calls one module at several parameters
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            outputs: Tensor = self.model(x)
        return outputs.float()


def apply_precision(model: nn.Module, precision: str) -> nn.Module:
    """Wrap a model for bf16; other precisions are those of its parameters."""
    return Autocast(model) if precision == "bf16" else model


def list_matrix_params(network: nn.Module) -> list[str]:
    """List the parameters that bf16 forwards round: those of convolutions and linear layers."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    layers = [module for module in network.modules() if isinstance(module, kinds)]
    matrix_ids = {id(p) for layer in layers for p in layer._parameters.values()}
    return [name for name, p in network.named_parameters() if id(p) in matrix_ids]


def round_params(params: Params, names: Collection[str]) -> Params:
    """Return detached parameters, those in `names` in bf16: rounded once for all forwards at θ."""
    detached = detach_params(params)
    sources = {name: detached[name] for name in names if name in params}
    rounded = {name: torch.empty_like(p, dtype=torch.bfloat16) for name, p in sources.items()}
    if rounded:
        torch._foreach_copy_(list(rounded.values()), list(sources.values()))
    return detached | rounded
