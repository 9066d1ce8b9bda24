"""What a task knows: its loss ℓ, its labels, the distance d between an output and a label, and its figure of merit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2i.bilevel.problem import Imputed
from l2i.data.transforms.geometry import AffineMap


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task turns outputs into labels and compares the two. All costs are means."""

    kind: ClassVar[str]

    num_outputs: int
    """The width of the network's output: classes, or target coordinates."""

    @abstractmethod
    def sample_losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """ℓ, a value a sample [B]; the target is encoded labels or imputed ones."""

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """ℓ, a mean."""
        return self.sample_losses(outputs, target).mean()

    @abstractmethod
    def to_label(self, outputs: Tensor) -> Tensor:
        """The label that an output stands for, differentiable."""

    @abstractmethod
    def to_logits(self, z: Tensor) -> Tensor:
        """The inverse of `label`: the learnable parameters behind z."""

    @abstractmethod
    def harden(self, z: Tensor, threshold: float) -> Imputed:
        """The label as one would write it down (an argmax), counted where it is confident."""

    @abstractmethod
    def to_target(self, y: Tensor) -> Tensor:
        """Encoded labels in the form of z."""

    def distance(self, outputs: Tensor, z: Tensor) -> Tensor:
        """d, the squared distance between the label of an output and z: a mean over classes or coordinates, [B]."""
        return (self.to_label(outputs) - z).square().mean(dim=1)

    @abstractmethod
    def encode(self, y: Tensor) -> Tensor:
        """Labels as the data set gives them, in the form that the network is trained on."""

    @abstractmethod
    def transport_label(self, z: Tensor, affine_map: AffineMap | None) -> Tensor:
        """A label of one view, carried to another."""

    @abstractmethod
    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Figures of merit over a whole set, by name, the main one first; lower is better; y as the set gives it."""

    @property
    @abstractmethod
    def metric_name(self) -> str:
        """The name of the main figure."""

    @property
    @abstractmethod
    def metric_description(self) -> str:
        """What the main figure says, in words."""

    @property
    @abstractmethod
    def chance_loss(self) -> float:
        """ℓ of an output that knows nothing of its input."""

    def metric(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The main figure."""
        return self.metrics(outputs, y)[self.metric_name]
