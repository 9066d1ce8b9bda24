"""Adam and SGD with the paper's schedules, stepped by gradients that are handed over (Algorithm 1, lines 6 and 11)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from l2i.batch import Params
from l2i.config import Optim
from l2i.shares import resolved


def rate_factor(optim: Optim, step: int, steps: int) -> float:
    """The learning rate at `step`, as a share of the one at the start."""
    if optim.schedule == "step":
        return math.prod(optim.gamma for milestone in optim.milestones if step >= resolved(milestone, steps))
    if optim.schedule == "cosine":
        return math.cos(7 * math.pi * step / (16 * steps))
    return 1.0


class Stepper:
    """An optimizer over θ that takes its gradient as an argument."""

    def __init__(self, params: Params, optim: Optim, *, lr: float | None = None) -> None:
        self.params, self.optim = params, optim
        self.lr = optim.lr if lr is None else lr
        values, l2 = list(params.values()), optim.weight_decay if optim.decay == "l2" else 0.0
        on_gpu = values[0].is_cuda  # there one kernel steps all parameters, and reads the rate on the device
        rate = torch.full((), self.lr, device=values[0].device) if on_gpu else self.lr
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
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                torch.mul(factor, self.lr, out=group["lr"])
            else:
                group["lr"] = self.lr * float(factor)
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
        for name, value in tensors.items():
            index, _, key = name.partition(".")
            states.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": states, "param_groups": self.optimizer.state_dict()["param_groups"]})
