"""A task: its loss ℓ, its labels, the distance d between output and label, and its metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2i.bilevel.problem import Imputed
from l2i.data.transforms.geometry import AffineMap


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Turns outputs into labels and compares the two. All costs are means."""

    kind: ClassVar[str]

    num_outputs: int
    """Width of the network's output: classes, or target coordinates."""

    @abstractmethod
    def sample_losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return ℓ per sample, [B]; the target is encoded or imputed labels."""

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean of ℓ."""
        return self.sample_losses(outputs, target).mean()

    @abstractmethod
    def to_label(self, outputs: Tensor) -> Tensor:
        """Return the label that an output stands for; differentiable."""

    @abstractmethod
    def to_logits(self, z: Tensor) -> Tensor:
        """Invert `to_label`: return the learnable parameters behind z."""

    @abstractmethod
    def harden(self, z: Tensor, threshold: float) -> Imputed:
        """Return the hard label (an argmax), which counts if it is confident."""

    @abstractmethod
    def to_target(self, y: Tensor) -> Tensor:
        """Return encoded labels in the form of z."""

    def distance(self, outputs: Tensor, z: Tensor) -> Tensor:
        """Return d, the mean squared difference of an output's label and z, per sample, [B]."""
        return (self.to_label(outputs) - z).square().mean(dim=1)

    @abstractmethod
    def encode(self, y: Tensor) -> Tensor:
        """Encode labels of the data set for training."""

    @abstractmethod
    def transport_label(self, z: Tensor, affine_map: AffineMap | None) -> Tensor:
        """Turn a label of one view into that of another."""

    @abstractmethod
    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return metrics over a set by name, the main one first; lower is better."""

    @property
    @abstractmethod
    def metric_name(self) -> str:
        """The name of the main metric."""

    @property
    @abstractmethod
    def metric_description(self) -> str:
        """The main metric in words."""

    @property
    @abstractmethod
    def chance_loss(self) -> float:
        """ℓ of an output that does not depend on its input."""

    def metric(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the main metric."""
        return self.metrics(outputs, y)[self.metric_name]
