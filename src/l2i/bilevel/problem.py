"""What flows through a step: the batch of T, U and H, the imputed labels Z, and their student (section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Net = Callable[[Tensor], Tensor]
"""The network at some given parameters."""

Params = dict[str, Tensor]
"""Named parameters: θ, θ*, or a direction in their space."""


class Imputed(NamedTuple):
    """Imputed labels and how much each one counts."""

    z: Tensor  # [B, C] or [B, D], differentiable where the net is
    weight: Tensor  # [B], detached: a confidence mask, or ones

    @staticmethod
    def unmasked(z: Tensor) -> Imputed:
        """Labels that all count."""
        return Imputed(z, torch.ones_like(z[:, 0]))

    def detach(self) -> Imputed:
        return Imputed(self.z.detach(), self.weight.detach())


class Activations(NamedTuple):
    """What the net at θ has made of some inputs."""

    features: Tensor  # Φ^f(x), [B, F]
    outputs: Tensor  # Φ(x), [B, C]


class Student(NamedTuple):
    """What is trained towards z. The rule: `inputs` are free of z, and z enters in `cost` alone."""

    inputs: Tensor
    cost: Callable[[Tensor, Imputed], Tensor]  # of outputs and imputed labels, a mean
    activations: Activations | None = None  # where the net at θ has passed the inputs before, so that it need not again

    def cost_of(self, net: Net, imputed: Imputed) -> Tensor:
        return self.cost(net(self.inputs), imputed)

    def scale_cost(self, weight: float) -> Student:
        return self._replace(cost=lambda outputs, imputed: weight * self.cost(outputs, imputed))

    def concat(self, other: Student) -> Student:
        """Both students as one: their inputs in one forward, the sum of their costs."""
        sizes = [len(self.inputs), len(other.inputs)]

        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            own_outputs, other_outputs = outputs.split(sizes)
            return self.cost(own_outputs, imputed) + other.cost(other_outputs, imputed)

        return Student(torch.cat([self.inputs, other.inputs]), cost)
