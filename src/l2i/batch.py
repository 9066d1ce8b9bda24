"""What flows through a step: the batch of T, U and H, the imputed labels Z, and their student (section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from l2i.data.frames import Frame

Net = Callable[[Tensor], Tensor]
"""The network at some given parameters."""

Params = dict[str, Tensor]
"""Named parameters: θ, θ*, or a direction in their space."""


class Labeled(NamedTuple):
    """A mini-batch with labels, as the task encodes them."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B] classes or [B, D] standardised targets


class Unlabeled(NamedTuple):
    """The views of an unlabelled mini-batch; only those that the method asks for are drawn."""

    views: Mapping[str, Tensor]  # name -> [B, ...]
    frame: Frame | None = None  # takes a label on `weak` to the student's view; None for samples that are no images
    noise: Tensor | None = None  # [B, ...], a random direction for methods that search their inputs

    @property
    def weak(self) -> Tensor:
        return self.views["weak"]

    @property
    def weak2(self) -> Tensor:
        return self.views["weak2"]

    @property
    def strong(self) -> Tensor:
        return self.views["strong"]

    def first(self, count: int) -> Unlabeled:
        """The first samples."""
        frame = None if self.frame is None else Frame(*(part[:count] for part in self.frame))
        noise = None if self.noise is None else self.noise[:count]
        return Unlabeled({name: view[:count] for name, view in self.views.items()}, frame, noise)


class Mix(NamedTuple):
    """MixUp's draws for the labelled and unlabelled rows together."""

    order: Tensor  # [N], a permutation
    share: Tensor  # [N], Beta(alpha, alpha)


class Batch(NamedTuple):
    """Everything random that a step needs, drawn before it."""

    labeled: Labeled
    unlabeled: Unlabeled
    mix: Mix | None = None
    holdout: Labeled | None = None  # drawn only where there is an outer step
    progress: Tensor | None = None  # [], the share of the run that is over


class Imputed(NamedTuple):
    """Imputed labels and how much each one counts."""

    z: Tensor  # [B, C] or [B, D], differentiable where the net is
    weight: Tensor  # [B], detached: a confidence mask, or ones

    @staticmethod
    def whole(z: Tensor) -> Imputed:
        """Labels that all count."""
        return Imputed(z, torch.ones_like(z[:, 0]))

    def detached(self) -> Imputed:
        return Imputed(self.z.detach(), self.weight.detach())


class Seen(NamedTuple):
    """What the net at θ has made of some inputs."""

    features: Tensor  # Φ^f(x), [B, F]
    outputs: Tensor  # Φ(x), [B, C]


class Student(NamedTuple):
    """What is trained towards z. The rule: `inputs` are free of z, and z enters in `cost` alone."""

    inputs: Tensor
    cost: Callable[[Tensor, Imputed], Tensor]  # of outputs and imputed labels, a mean
    seen: Seen | None = None  # where the net at θ has passed the inputs before, so that it need not again

    def evaluate(self, net: Net, imputed: Imputed) -> Tensor:
        return self.cost(net(self.inputs), imputed)

    def weighted(self, weight: float) -> Student:
        return self._replace(cost=lambda outputs, imputed: weight * self.cost(outputs, imputed))

    def joined(self, other: Student) -> Student:
        """Both students as one: their inputs in one forward, the sum of their costs."""
        sizes = [len(self.inputs), len(other.inputs)]

        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            mine, others = outputs.split(sizes)
            return self.cost(mine, imputed) + other.cost(others, imputed)

        return Student(torch.cat([self.inputs, other.inputs]), cost)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors within, as those of a batch."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
