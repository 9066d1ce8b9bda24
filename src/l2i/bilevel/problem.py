"""The bilevel problem of a step: student, imputed labels, costs C and C^H (section 3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import Net, Params, lookahead

Cost = Callable[[Net], Tensor]


class Imputed(NamedTuple):
    """Imputed labels and how much each one counts."""

    z: Tensor  # [B, C] or [B, D], differentiable where the net is
    weight: Tensor  # [B], detached: a confidence mask, or ones

    @staticmethod
    def unmasked(z: Tensor) -> Imputed:
        """Return labels that all count."""
        return Imputed(z, torch.ones_like(z[:, 0]))

    def detach(self) -> Imputed:
        """Cut the labels off from their graph."""
        return Imputed(self.z.detach(), self.weight.detach())


class Activations(NamedTuple):
    """Features and outputs of some inputs at θ."""

    features: Tensor  # Φ^f(x), [B, F]
    outputs: Tensor  # Φ(x), [B, C]


class Student(NamedTuple):
    """What is trained towards z. The rule: `inputs` are free of z, and z enters `cost` alone."""

    inputs: Tensor
    cost: Callable[[Tensor, Imputed], Tensor]  # of outputs and imputed labels, a mean

    def cost_of(self, net: Net, imputed: Imputed) -> Tensor:
        """Pass the inputs through `net` and return the cost."""
        return self.cost(net(self.inputs), imputed)

    def concat(self, other: Student) -> Student:
        """Join two students: one forward of both inputs, the sum of both costs."""
        sizes = [len(self.inputs), len(other.inputs)]

        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            own_outputs, other_outputs = outputs.split(sizes)
            return self.cost(own_outputs, imputed) + other.cost(other_outputs, imputed)

        return Student(torch.cat([self.inputs, other.inputs]), cost)


@dataclass(frozen=True)
class Problem:
    """C^H(θ*) as a function of z: θ* = θ − η ∇_θ C(θ, z), C the student's cost and maybe C^T."""

    model: nn.Module
    params: Params
    """θ: the parameters that the look-ahead moves."""
    student: Student
    imputed: Imputed
    c_h: Cost
    c_t: Cost | None = None
    eta: float | Tensor | None = None
    """Inner rate. None is the limit of small η: no inner step, and the derivative per unit of η."""
    inner_steps: int = 1
    head: nn.Linear | str | None = None
    """Head of the last-layer rules; the model's last nn.Linear by default."""
    lookahead_params: Literal["head", "all"] = "head"
    """What takes the inner step under the last-layer rules."""
    activations: Activations | None = None
    """Activations of the student's inputs at θ, if they are known already."""
    repeats_forward: bool = False
    """Whether samples pass more than once without an inner step and need the same dropout masks."""

    @property
    def target(self) -> Imputed:
        """The imputed labels, fixed."""
        return self.imputed.detach()

    def compute_outputs(self, params: Params) -> Tensor:
        """Return the student's outputs at `params`, without a graph."""
        with self.replay_rng(params), torch.no_grad():
            return lookahead(self.model, params)(self.student.inputs)

    def compute_cost(self, params: Params, imputed: Imputed | None = None) -> Tensor:
        """Return the inner cost C at `params`."""
        net = lookahead(self.model, params)
        with self.replay_rng(params):
            cost = self.student.cost_of(net, self.target if imputed is None else imputed)
            return cost if self.c_t is None else cost + self.c_t(net)

    def compute_holdout_cost(self, params: Params) -> Tensor:
        """Return C^H at `params`."""
        with self.replay_rng(params):
            return self.c_h(lookahead(self.model, params))

    def replay_rng(self, params: Params) -> AbstractContextManager[None]:
        """Give every forward the same dropout masks: leaving the fork rewinds the generator."""
        devices = {p.device for p in params.values() if p.device.type == "cuda"}
        repeats = self.repeats_forward or self.eta is not None
        if not repeats or (devices and torch.cuda.is_current_stream_capturing()):
            return nullcontext()  # only networks without dropout are captured
        return torch.random.fork_rng(sorted(devices, key=str))
