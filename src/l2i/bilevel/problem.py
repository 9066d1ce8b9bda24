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
    """Hold imputed labels and how much each of them counts."""

    z: Tensor
    """Labels, [B, C] probabilities or [B, D] targets; they carry the imputing net's gradient."""
    weight: Tensor
    """Weight of each label in the cost, [B], detached: a confidence mask, or ones."""

    @staticmethod
    def unmasked(z: Tensor) -> Imputed:
        """Return labels that all count, with weight 1."""
        return Imputed(z, torch.ones_like(z[:, 0]))

    def detach(self) -> Imputed:
        """Return the labels without their graph."""
        return Imputed(self.z.detach(), self.weight.detach())


class Activations(NamedTuple):
    """Hold the features and outputs of some inputs at θ."""

    features: Tensor  # Φ^f(x), [B, F]
    outputs: Tensor  # Φ(x), [B, C]


class Student(NamedTuple):
    """Describe what is trained towards z: inputs, and a cost of their outputs.

    The hypergradients rely on one rule: `inputs` do not depend on z, and z enters only `cost`.
    """

    inputs: Tensor
    """Inputs of the network, [B, ...]."""
    cost: Callable[[Tensor, Imputed], Tensor]
    """Function of the outputs and the imputed labels that returns a mean over the samples."""

    def cost_of(self, net: Net, imputed: Imputed) -> Tensor:
        """Return the cost of the outputs that `net` gives for the inputs."""
        return self.cost(net(self.inputs), imputed)

    def concat(self, other: Student) -> Student:
        """Return a student with both inputs in one forward, and the sum of both costs."""
        sizes = [len(self.inputs), len(other.inputs)]

        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            own_outputs, other_outputs = outputs.split(sizes)
            return self.cost(own_outputs, imputed) + other.cost(other_outputs, imputed)

        return Student(torch.cat([self.inputs, other.inputs]), cost)


@dataclass(frozen=True)
class Problem:
    """Pose C^H(θ*) as a function of the imputed labels z.

    θ* = θ − η ∇_θ C(θ, z), where C is the cost of the student, plus C^T if `c_t` is given.
    """

    model: nn.Module
    """Network Φ."""
    params: Params
    """Parameters θ that the look-ahead moves; see `trainable`."""
    student: Student
    """What is trained towards the imputed labels."""
    imputed: Imputed
    """Imputed labels z of the unlabelled samples."""
    c_h: Cost
    """Hold-out cost C^H, a function of the network."""
    c_t: Cost | None = None
    """Labelled cost C^T in the inner step, a function of the network; None leaves it out."""
    eta: float | Tensor | None = None
    """Inner learning rate η. None takes the limit of small η: there is no inner step, and the
    derivative is per unit of η."""
    inner_steps: int = 1
    """Number of inner steps; the last-layer rules take one."""
    head: nn.Linear | str | None = None
    """Head of the last-layer rules; the model's last nn.Linear by default."""
    lookahead_params: Literal["head", "all"] = "head"
    """Parameters that take the inner step under the last-layer rules."""
    activations: Activations | None = None
    """Activations of the student's inputs at θ, if an earlier forward computed them."""
    repeats_forward: bool = False
    """Give repeated forwards the same dropout masks although there is no inner step."""

    @property
    def target(self) -> Imputed:
        """Return the imputed labels without their graph."""
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
