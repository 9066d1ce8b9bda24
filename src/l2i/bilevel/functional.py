"""The model as a function of its parameters, and the inner step (eq. opt1a, Algorithm 1 line 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.distributed import current_group
from l2i.errors import InputError

Net = Callable[[Tensor], Tensor]
"""The network at some given parameters."""

Params = dict[str, Tensor]
"""Named parameters: θ, θ*, or a direction in their space."""

ParamFunction = Callable[[Params], Tensor]
"""A cost, outputs or a gradient, as a function of θ."""

KNOWN_BATCHNORM = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def trainable(model: nn.Module) -> Params:
    """Return the parameters θ of a model that take gradients, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def detach_params(params: Params) -> Params:
    """Return the same values, cut off from any graph."""
    return {name: p.detach() for name, p in params.items()}


def make_leaf_params(params: Params) -> Params:
    """Return the same values as leaf tensors that take gradients."""
    return {name: p.detach().requires_grad_() for name, p in params.items()}


def lookahead(model: nn.Module, params: Params) -> Net:
    """Return the model as a function, with `params` in place of its parameters.

    Its own parameters and buffers do not change: BatchNorm, for one, does not update its
    statistics.
    """

    def net(x: Tensor) -> Tensor:
        with swap_parameters(model, params), freeze_buffers(model):
            return model(x)  # type: ignore[no-any-return]

    return net


@contextmanager
def swap_parameters(model: nn.Module, params: Params) -> Iterator[None]:
    """Put `params` in the places of the model's own, at a tenth of `functional_call`'s overhead."""
    unknown = params.keys() - dict(model.named_parameters())
    if unknown:
        raise InputError(
            f"{type(model).__name__} has no parameter '{min(unknown)}'; "
            "name those of model.named_parameters()"
        )
    replaced: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter | None]] = []
    names = {id(p): name for name, p in model.named_parameters()}
    for module in model.modules():
        for key, original in module._parameters.items():
            replacement = None if original is None else params.get(names[id(original)])
            if replacement is not None and replacement is not original:
                replaced.append((module._parameters, key, original))
                module._parameters[key] = replacement  # type: ignore[assignment]
    try:
        yield
    finally:
        for param_dict, key, original in replaced:
            param_dict[key] = original


@contextmanager
def freeze_buffers(model: nn.Module) -> Iterator[None]:
    """Protect buffers from forwards: BatchNorm stops tracking, other buffers are copied."""
    layers = find_tracking_batchnorms(model)
    layer_ids = {id(layer) for layer in layers}
    others = [m._buffers for m in model.modules() if id(m) not in layer_ids]
    other_buffers = [(buffers, key, b) for buffers in others for key, b in buffers.items()]
    for layer in layers:
        layer.track_running_stats = False
    for buffer_dict, key, buffer in other_buffers:
        buffer_dict[key] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
        for buffer_dict, key, buffer in other_buffers:
            buffer_dict[key] = buffer


def find_tracking_batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """Return BatchNorm layers in training that leave their statistics alone when not tracking."""
    return [
        m
        for m in model.modules()
        if isinstance(m, _BatchNorm)
        and (
            type(m).forward in KNOWN_BATCHNORM or getattr(m, "respects_track_running_stats", False)
        )
        and m.training
        and m.track_running_stats
    ]


def gradient(cost: ParamFunction, params: Params, wrt: Iterable[str] | None = None) -> Params:
    """Return the gradient of `cost` at `params`, for the parameters named in `wrt` or all."""
    names = list(params if wrt is None else wrt)
    theta = detach_params(params)
    for name in names:
        theta[name].requires_grad_()
    with torch.enable_grad():
        value = cost(theta)
        grads = torch.autograd.grad(value, [theta[n] for n in names], materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def compute_mean_gradient(
    cost: ParamFunction, params: Params, wrt: Iterable[str] | None = None
) -> Params:
    """Return ∇ of the cost averaged over all processes."""
    return current_group().average_tensors(gradient(cost, params, wrt))


def inner_step(
    cost: ParamFunction, params: Params, *, eta: float | Tensor, wrt: Iterable[str] | None = None
) -> Params:
    """Return θ* = θ − η ∇C(θ) for the parameters named in `wrt`, or all; the others stay."""
    grads = compute_mean_gradient(cost, params, wrt)
    theta = detach_params(params)
    return {**theta, **{name: theta[name] - eta * g for name, g in grads.items()}}
