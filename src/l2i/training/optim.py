"""Adam and SGD with the paper's schedules, stepped by gradients that are handed over (Algorithm 1, lines 6 and 11)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from l2i.batch import Params
from l2i.bilevel.outer import norm
from l2i.config import Optim
from l2i.errors import InputError
from l2i.shares import resolved


def rate_factor(optim: Optim, step: int, steps: int) -> float:
    """The learning rate at `step`, as a share of the one that the run is given."""
    warmup = resolved(optim.warmup, steps)
    if step < warmup:
        return step / warmup
    if optim.schedule == "linear":
        return 1 - step / steps
    if optim.schedule == "step":
        return math.prod(optim.gamma for milestone in optim.milestones if step >= resolved(milestone, steps))
    if optim.schedule == "cosine":
        return math.cos(7 * math.pi * step / (16 * steps))
    return 1.0


def clipped(gradient: Params, most: float) -> Params:
    """A gradient of norm at most `most`; of any norm where that is 0."""
    if not most:
        return gradient
    size = norm(gradient)
    scale = torch.where(size > most, most / size, torch.ones_like(size))
    return dict(zip(gradient, torch._foreach_mul(list(gradient.values()), scale), strict=True))


def shares_of(names: Iterable[str], decay: float) -> dict[str, float]:
    """Of the learning rate, what each parameter has: the head all of it, and each layer `decay` times the one above."""
    found = {name: depth_of(name) for name in names}
    if decay != 1 and not any(found.values()):
        raise InputError(
            "optim.layer_decay is for an encoder with numbered layers, which this model has not; leave it out"
        )
    top = max((depth for depth in found.values() if depth is not None), default=0) + 1
    return {name: decay ** (top - (top if depth is None else depth)) for name, depth in found.items()}


def depth_of(name: str) -> int | None:
    """The number of the layer that a parameter is of, from 1; 0 for embeddings, None for what is above all layers."""
    numbered = re.search(r"(?:^|\.)layers?\.(\d+)\.", name)
    return int(numbered[1]) + 1 if numbered else 0 if "embed" in name else None


def grouped(params: Params, decay: float, rate: Any) -> tuple[list[dict[str, Any]], list[float]]:
    """Parameters in groups of one learning rate each, and the share of the rate that each has."""
    shares = shares_of(params, decay)
    groups = {
        share: [params[name] for name in params if shares[name] == share] for share in dict.fromkeys(shares.values())
    }
    rates = (rate.clone() if isinstance(rate, Tensor) else rate for _ in groups)
    return [{"params": group, "lr": lr} for group, lr in zip(groups.values(), rates, strict=True)], list(groups)


class Stepper:
    """An optimizer over θ that takes its gradient as an argument."""

    def __init__(self, params: Params, optim: Optim, *, lr: float | None = None) -> None:
        self.params, self.optim = params, optim
        self.lr = optim.lr if lr is None else lr
        l2 = optim.weight_decay if optim.decay == "l2" else 0.0
        device = next(iter(params.values())).device
        on_gpu = device.type == "cuda"  # there one kernel steps all parameters, and reads the rate on the device
        rate = torch.full((), self.lr, device=device) if on_gpu else self.lr
        values, self.shares = grouped(params, optim.layer_decay, rate)
        self.optimizer: torch.optim.Optimizer
        if optim.name == "adam":
            self.optimizer = torch.optim.Adam(values, lr=rate, weight_decay=l2, fused=on_gpu, capturable=on_gpu)
        else:
            nesterov = optim.nesterov and optim.momentum > 0
            self.optimizer = torch.optim.SGD(
                values, lr=rate, momentum=optim.momentum, nesterov=nesterov, weight_decay=l2, fused=on_gpu
            )

    def __call__(self, gradient: Params, factor: Tensor) -> None:
        """θ ← θ − opt(gradient), at `factor` times the learning rate."""
        for group, share in zip(self.optimizer.param_groups, self.shares, strict=True):
            if isinstance(group["lr"], Tensor):
                torch.mul(factor, self.lr * share, out=group["lr"])
            else:
                group["lr"] = self.lr * share * float(factor)
        gradient = clipped(gradient, self.optim.clip)
        for name, p in self.params.items():
            g = gradient[name]
            p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)  # as one kernel for all needs it
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def decay(self) -> None:
        """θ ← (1 − wd) θ, once a training step, where the decay is decoupled."""
        if self.optim.decay == "decoupled" and self.optim.weight_decay:
            torch._foreach_mul_([p.detach() for p in self.params.values()], 1 - self.optim.weight_decay)

    def state(self) -> Params:
        """The moments, as named tensors."""
        states = self.optimizer.state_dict()["state"]
        return {f"{i}.{key}": value for i, s in states.items() for key, value in s.items() if isinstance(value, Tensor)}

    def load(self, tensors: Params) -> None:
        """Take the moments over, into those there are, since a recorded step goes on with them."""
        mine = self.state()
        if mine.keys() == tensors.keys():
            for name, value in tensors.items():
                mine[name].copy_(value)
            return
        states: dict[int, dict[str, Tensor]] = {}
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        for name, value in tensors.items():
            index, _, key = name.partition(".")
            p = held[int(index)]  # a file holds no order of memory, and one kernel for all needs that of the parameters
            alike = value.shape == p.shape and value.stride() != p.stride()
            states.setdefault(int(index), {})[key] = torch.empty_like(p).copy_(value) if alike else value
        self.optimizer.load_state_dict({"state": states, "param_groups": self.optimizer.state_dict()["param_groups"]})
