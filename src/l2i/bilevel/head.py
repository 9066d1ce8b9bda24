"""Φ as a feature encoder and a linear classifier (section 4, «Learning to impute efficiently»)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2i.batch import Net, Params
from l2i.bilevel.inner import lookahead
from l2i.errors import InputError


def find_head(model: nn.Module, head: nn.Linear | str | None = None) -> nn.Linear:
    """The classifier of `model`: the module given or named, or its last nn.Linear."""
    if isinstance(head, str):
        named = dict(model.named_modules()).get(head)
        if not isinstance(named, nn.Linear):
            raise InputError(f"head='{head}' is not an nn.Linear of {type(model).__name__}; name one that is")
        return named
    found = [head] if head is not None else [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not found:
        raise InputError(f"{type(model).__name__} has no nn.Linear to serve as its head; use hypergradient='exact'")
    return found[-1]


def head_names(model: nn.Module, head: nn.Linear) -> tuple[str, str | None]:
    """The names of the head's weight and bias among the parameters of `model`."""
    names = {id(p): name for name, p in model.named_parameters()}
    return names[id(head.weight)], None if head.bias is None else names[id(head.bias)]


def features_and_outputs(model: nn.Module, params: Params, head: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """Φ^f(x) and Φ(x) at `params`, for any module whose output is its head's output."""
    seen: list[tuple[Tensor, Tensor]] = []

    def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append((inputs[0].to(head.weight.dtype), output.to(head.weight.dtype)))
        return seen[-1][1]

    handle = head.register_forward_hook(record)
    try:
        net: Net = lookahead(model, params)
        with torch.no_grad():
            outputs = net(x)
    finally:
        handle.remove()
    if len(seen) != 1 or outputs is not seen[0][1]:
        raise InputError(
            f"the output of {type(model).__name__} is not the output of its head {head}: 'last_layer' needs it to be; "
            "leave out what comes after the head, name another head, or use hypergradient='exact'"
        )
    return seen[0]
