"""Parameters in one piece of memory, so that what is done to all of them takes one kernel.

MERGED:
Adam and SGD with the paper's schedules, stepped by gradients that are handed over (Algorithm 1, lines 6 and 11).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from l2i.bilevel.outer import norm
from l2i.bilevel.problem import Params
from l2i.config import Optim
from l2i.errors import InputError
from l2i.quantity import resolve_count

PARAM_ALIGNMENT = 64  # values: where each parameter begins, so that kernels may read several at once


class FlatParameters:
    """The parameters keep their names, shapes and order of memory, but lie one behind the other in `values`."""

    def __init__(self, params: Params) -> None:
        offsets, self.size = {}, 0
        for name, p in params.items():
            offsets[name] = self.size
            self.size += -(-p.numel() // PARAM_ALIGNMENT) * PARAM_ALIGNMENT
        self.layout = {name: (offsets[name], p.shape, empty_dense_like(p).stride()) for name, p in params.items()}
        first = next(iter(params.values()))
        self.values = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        for name, view in self.split(self.values).items():
            view.copy_(params[name].detach())
            params[name].data = view

    def check_storage(self, params: Params) -> None:
        """That the parameters still lie here; a model that was moved or given to two trainers has left."""
        name = next(iter(params))
        if params[name].data_ptr() != self.values.data_ptr() + self.layout[name][0] * self.values.element_size():
            raise InputError("the model was moved or given to another trainer; make a new trainer with it")

    def split(self, flat: Tensor) -> Params:
        """Such a piece as named tensors, which share its memory."""
        return {name: flat.as_strided(shape, stride, start) for name, (start, shape, stride) in self.layout.items()}

    def flatten(self, named: Params) -> Tensor:
        """Named tensors as such a piece, all of one kind copied in one go; nothing where there is none."""
        flat = torch.zeros_like(self.values)
        views = self.split(flat)
        for dtype in dict.fromkeys(value.dtype for value in named.values()):
            names = [name for name, value in named.items() if value.dtype == dtype]
            torch._foreach_copy_([views[name] for name in names], [named[name] for name in names])
        return flat


def empty_dense_like(p: Tensor) -> Tensor:
    """Room for a parameter in its own order of memory, without the gaps that an expanded one has."""
    return torch.empty_like(p.detach())


def compute_lr_factor(optim: Optim, step: int, steps: int) -> float:
    """The learning rate at `step`, as a share of the one that the run is given."""
    warmup = resolve_count(optim.warmup, steps)
    if step < warmup:
        return step / warmup
    if optim.schedule == "linear":
        return 1 - step / steps
    if optim.schedule == "step":
        return math.prod(optim.gamma for milestone in optim.milestones if step >= resolve_count(milestone, steps))
    if optim.schedule == "cosine":
        return math.cos(7 * math.pi * step / (16 * steps))
    return 1.0


def clip_gradient(gradient: Params, max_norm: float) -> Params:
    """A gradient of norm at most `most`; of any norm where that is 0."""
    if not max_norm:
        return gradient
    grad_norm = norm(gradient)
    scale = torch.where(grad_norm > max_norm, max_norm / grad_norm, torch.ones_like(grad_norm))
    return dict(zip(gradient, torch._foreach_mul(list(gradient.values()), scale), strict=True))


def layerwise_lr_scales(names: Iterable[str], decay: float) -> dict[str, float]:
    """Of the learning rate, what each parameter has: the head all of it, and each layer `decay` times the one above."""
    indices = {name: layer_index(name) for name in names}
    if decay != 1 and not any(indices.values()):
        raise InputError(
            "optim.layer_decay is for an encoder with numbered layers, which this model has not; leave it out"
        )
    num_layers = max((depth for depth in indices.values() if depth is not None), default=0) + 1
    return {name: decay ** (num_layers - (num_layers if depth is None else depth)) for name, depth in indices.items()}


def layer_index(name: str) -> int | None:
    """The number of the layer that a parameter is of, from 1; 0 for embeddings, None for what is above all layers."""
    layer_match = re.search(r"(?:^|\.)layers?\.(\d+)\.", name)
    return int(layer_match[1]) + 1 if layer_match else 0 if "embed" in name else None


def param_groups(params: Params, decay: float, rate: Any) -> tuple[list[dict[str, Any]], list[float]]:
    """Parameters in groups of one learning rate each, and the share of the rate that each has."""
    scales = layerwise_lr_scales(params, decay)
    groups = {
        scale: [params[name] for name in params if scales[name] == scale] for scale in dict.fromkeys(scales.values())
    }
    rates = (rate.clone() if isinstance(rate, Tensor) else rate for _ in groups)
    return [{"params": group, "lr": lr} for group, lr in zip(groups.values(), rates, strict=True)], list(groups)


class Stepper:
    """An optimizer over θ that takes its gradient as an argument."""

    def __init__(self, params: Params, optim: Optim, *, lr: float | None = None) -> None:
        self.params, self.optim = params, optim
        self.lr = optim.lr if lr is None else lr
        l2 = optim.weight_decay if optim.weight_decay_mode == "l2" else 0.0
        device = next(iter(params.values())).device
        on_gpu = device.type == "cuda"  # there one kernel steps all parameters, and reads the rate on the device
        rate = torch.full((), self.lr, device=device) if on_gpu else self.lr
        groups, self.lr_scales = param_groups(params, optim.layer_decay, rate)
        self.optimizer: torch.optim.Optimizer
        if optim.name == "adam":
            self.optimizer = torch.optim.Adam(groups, lr=rate, weight_decay=l2, fused=on_gpu, capturable=on_gpu)
        else:
            nesterov = optim.nesterov and optim.momentum > 0
            self.optimizer = torch.optim.SGD(
                groups, lr=rate, momentum=optim.momentum, nesterov=nesterov, weight_decay=l2, fused=on_gpu
            )

    def __call__(self, gradient: Params, factor: Tensor) -> None:
        """θ ← θ − opt(gradient), at `factor` times the learning rate."""
        for group, lr_scale in zip(self.optimizer.param_groups, self.lr_scales, strict=True):
            if isinstance(group["lr"], Tensor):
                torch.mul(factor, self.lr * lr_scale, out=group["lr"])
            else:
                group["lr"] = self.lr * lr_scale * float(factor)
        gradient = clip_gradient(gradient, self.optim.max_grad_norm)
        for name, p in self.params.items():
            g = gradient[name]
            p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)  # as one kernel for all needs it
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def apply_weight_decay(self) -> None:
        """θ ← (1 − wd) θ, once a training step, where the decay is decoupled."""
        if self.optim.weight_decay_mode == "decoupled" and self.optim.weight_decay:
            torch._foreach_mul_([p.detach() for p in self.params.values()], 1 - self.optim.weight_decay)

    def state_dict(self) -> Params:
        """The moments, as named tensors."""
        states = self.optimizer.state_dict()["state"]
        return {f"{i}.{key}": value for i, s in states.items() for key, value in s.items() if isinstance(value, Tensor)}

    def load_state_dict(self, tensors: Params) -> None:
        """Take the moments over, into those there are, since a recorded step goes on with them."""
        current = self.state_dict()
        if current.keys() == tensors.keys():
            for name, value in tensors.items():
                current[name].copy_(value)
            return
        states: dict[int, dict[str, Tensor]] = {}
        ordered_params = [p for group in self.optimizer.param_groups for p in group["params"]]
        for name, value in tensors.items():
            index, _, key = name.partition(".")
            p = ordered_params[int(index)]  # a file holds no order of memory, and one kernel for all needs that of the parameters
            needs_relayout = value.shape == p.shape and value.stride() != p.stride()
            states.setdefault(int(index), {})[key] = torch.empty_like(p).copy_(value) if needs_relayout else value
        self.optimizer.load_state_dict({"state": states, "param_groups": self.optimizer.state_dict()["param_groups"]})
