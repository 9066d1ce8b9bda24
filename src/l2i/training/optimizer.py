"""Adam and SGD with schedules, and the scalars of a step (Algorithm 1, lines 6 and 11)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from l2i.bilevel.functional import Params
from l2i.bilevel.outer import norm
from l2i.config import Optim, Run
from l2i.errors import InputError
from l2i.quantity import resolve_count

MOMENTUM = 0.9  # of SGD
STEP_GAMMA = 0.1  # factor of the "step" schedule at every milestone
PARAM_ALIGNMENT = 64  # values between parameter starts, so that kernels can use vector loads


class FlatParameters:
    """Parameters in one buffer, `values`, so that an operation on all of them takes one kernel.

    They keep their names, shapes and strides.
    """

    def __init__(self, params: Params) -> None:
        self.layout, self.size = {}, 0
        for name, p in params.items():
            dense = torch.empty_like(p.detach())  # without the gaps of an expanded one
            self.layout[name] = (p.shape, dense.stride(), self.size)  # as as_strided takes them
            self.size += -(-p.numel() // PARAM_ALIGNMENT) * PARAM_ALIGNMENT
        first = next(iter(params.values()))
        self.values = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        for name, view in self.split(self.values).items():
            view.copy_(params[name].detach())
            params[name].data = view

    def check_storage(self, params: Params) -> None:
        """Check that parameters still lie here: the model may have moved, or have two trainers."""
        name = next(iter(params))
        offset = self.layout[name][-1] * self.values.element_size()
        if params[name].data_ptr() != self.values.data_ptr() + offset:
            problem = "the model was moved, or passed to another trainer"
            raise InputError(f"{problem}; create a new trainer with it")

    def split(self, flat: Tensor) -> Params:
        """Return the named views of a buffer."""
        return {name: flat.as_strided(*view) for name, view in self.layout.items()}

    def flatten(self, named: Params) -> Tensor:
        """Copy named tensors to a buffer, one kernel per type; zeros for missing names."""
        flat = torch.zeros_like(self.values)
        views = self.split(flat)
        for dtype in dict.fromkeys(value.dtype for value in named.values()):
            names = [name for name, value in named.items() if value.dtype == dtype]
            torch._foreach_copy_([views[name] for name in names], [named[name] for name in names])
        return flat


def compute_lr_factor(optim: Optim, step: int, steps: int) -> float:
    """Return the learning rate at `step` as a fraction of the configured one."""
    warmup = resolve_count(optim.warmup, steps)
    if step < warmup:
        return step / warmup
    if optim.schedule == "linear":
        return 1 - step / steps
    if optim.schedule == "step":
        milestones = [resolve_count(milestone, steps) for milestone in optim.milestones]
        return math.prod(STEP_GAMMA for milestone in milestones if step >= milestone)
    if optim.schedule == "cosine":
        return math.cos(7 * math.pi * step / (16 * steps))
    return 1.0


def clip_gradient(gradient: Params, max_norm: float) -> Params:
    """Clip a gradient to norm `max_norm`; 0 leaves it as it is."""
    if not max_norm:
        return gradient
    grad_norm = norm(gradient)
    scale = torch.where(grad_norm > max_norm, max_norm / grad_norm, torch.ones_like(grad_norm))
    return dict(zip(gradient, torch._foreach_mul(list(gradient.values()), scale), strict=True))


def compute_layerwise_lr_scales(names: Iterable[str], decay: float) -> dict[str, float]:
    """Return each parameter's share of the rate: 1 for the head, times `decay` per layer below."""
    depths: dict[str, int | None] = {}  # from 1; 0 for embeddings, None above all layers
    for name in names:
        layer_match = re.search(r"(?:^|\.)layers?\.(\d+)\.", name)
        top = 0 if "embed" in name else None
        depths[name] = int(layer_match[1]) + 1 if layer_match else top
    if decay != 1 and not any(depths.values()):
        problem = "needs an encoder with numbered layers"
        raise InputError(f"optim.layer_decay {problem}; leave it out")
    num_layers = max((depth for depth in depths.values() if depth is not None), default=0) + 1
    return {name: 1.0 if d is None else decay ** (num_layers - d) for name, d in depths.items()}


class Stepper:
    """An optimizer over θ that takes its gradient as an argument."""

    def __init__(self, params: Params, optim: Optim) -> None:
        self.params, self.optim = params, optim
        device = next(iter(params.values())).device
        on_gpu = device.type == "cuda"  # one kernel steps all parameters, reading the rate there
        rate = torch.full((), optim.lr, device=device) if on_gpu else optim.lr
        scales = compute_layerwise_lr_scales(params, optim.layer_decay)
        self.lr_scales = list(dict.fromkeys(scales.values()))
        groups: list[dict[str, Any]] = [
            {
                "params": [params[name] for name in params if scales[name] == scale],
                "lr": rate.clone() if isinstance(rate, Tensor) else rate,
            }
            for scale in self.lr_scales
        ]
        l2 = optim.weight_decay if optim.weight_decay_mode == "l2" else 0.0
        common: dict[str, Any] = {"lr": rate, "weight_decay": l2, "fused": on_gpu}
        self.optimizer: torch.optim.Optimizer
        if optim.name == "adam":
            self.optimizer = torch.optim.Adam(groups, capturable=on_gpu, **common)
        else:
            self.optimizer = torch.optim.SGD(
                groups, momentum=MOMENTUM, nesterov=optim.nesterov, **common
            )

    def __call__(self, gradient: Params, factor: Tensor) -> None:
        """θ ← θ − opt(gradient), at `factor` times the learning rate."""
        for group, lr_scale in zip(self.optimizer.param_groups, self.lr_scales, strict=True):
            lr = self.optim.lr * lr_scale
            if isinstance(group["lr"], Tensor):
                torch.mul(factor, lr, out=group["lr"])
            else:
                group["lr"] = lr * float(factor)
        gradient = clip_gradient(gradient, self.optim.max_grad_norm)
        for name, p in self.params.items():
            p.grad = _match_strides(gradient[name], p)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def apply_weight_decay(self) -> None:
        """θ ← (1 − wd) θ, once per training step, if the decay is decoupled."""
        if self.optim.weight_decay_mode == "decoupled" and self.optim.weight_decay:
            params = [p.detach() for p in self.params.values()]
            torch._foreach_mul_(params, 1 - self.optim.weight_decay)

    def state_dict(self) -> Params:
        """Return the moments as named tensors."""
        states = self.optimizer.state_dict()["state"]
        values = {f"{i}.{key}": v for i, state in states.items() for key, v in state.items()}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def load_state_dict(self, tensors: Params) -> None:
        """Load the moments, into the existing ones if possible: a captured step uses those."""
        current = self.state_dict()
        if current.keys() == tensors.keys():
            for name, value in tensors.items():
                current[name].copy_(value)
            return
        states: dict[int, dict[str, Tensor]] = {}
        ordered_params = [p for group in self.optimizer.param_groups for p in group["params"]]
        for name, value in tensors.items():
            index, _, key = name.partition(".")
            p = ordered_params[int(index)]
            moment = _match_strides(value, p) if value.shape == p.shape else value
            states.setdefault(int(index), {})[key] = moment
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})


def _match_strides(value: Tensor, p: Tensor) -> Tensor:
    """Copy a tensor to the memory format of its parameter, which fused kernels need."""
    return value if value.stride() == p.stride() else torch.empty_like(p).copy_(value)


class StepScalars:
    """λ(t), the learning rate's factor, η, ρ and the teacher's update rate at a step."""

    def __init__(self, run: Run, device: torch.device, dtype: torch.dtype) -> None:
        self.run = run
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        zeros = torch.zeros(5, dtype=dtype, device=device)
        self.weight, self.lr_factor, self.eta, self.rho, self.ema_weight = zeros.unbind()
        self.last_values: dict[str, float] = {}

    def set_step(self, t: int) -> None:
        """Set the scalars of step t; they are kernel arguments, so nothing synchronises."""
        run, paper = self.run, self.run.l2i.paper
        lr_factor = compute_lr_factor(run.optim, t, run.steps)
        values: dict[str, float] = {
            "step": t,
            "weight": run.method.compute_weight(t, run.steps),
            "lr_factor": lr_factor,
            "rho": run.l2i.rho,
            "ema_weight": max(1 / (t + 1), 1 - run.optim.ema_decay),
        }
        if paper.inner_rate is not None:
            values["eta"] = paper.inner_rate * (lr_factor if paper.eta_schedule == "rate" else 1.0)
        for name, value in values.items():
            if self.last_values.get(name) != value:
                getattr(self, name).fill_(value)
        self.last_values = values
