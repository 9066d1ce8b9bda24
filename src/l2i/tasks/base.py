"""What a task knows: its loss ℓ, its labels, the distance d between an output and a label, and its figure of merit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2i.batch import Imputed
from l2i.data.frames import Frame


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task turns outputs into labels and compares the two. All costs are means."""

    kind: ClassVar[str]

    outputs: int
    """The width of the network's output: classes, or target coordinates."""

    @abstractmethod
    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """ℓ, a value a sample [B]; the target is encoded labels or imputed ones."""

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """ℓ, a mean."""
        return self.losses(outputs, target).mean()

    @abstractmethod
    def label(self, outputs: Tensor) -> Tensor:
        """The label that an output stands for, differentiable."""

    @abstractmethod
    def logits(self, z: Tensor) -> Tensor:
        """The inverse of `label`: the learnable parameters behind z."""

    @abstractmethod
    def commit(self, z: Tensor, threshold: float) -> Imputed:
        """The label as one would write it down (an argmax), counted where it is confident."""

    @abstractmethod
    def target(self, y: Tensor) -> Tensor:
        """Encoded labels in the form of z."""

    def distance(self, outputs: Tensor, z: Tensor) -> Tensor:
        """d, the squared distance between the label of an output and z: a mean over classes or coordinates, [B]."""
        return (self.label(outputs) - z).square().mean(dim=1)

    @abstractmethod
    def encode(self, y: Tensor) -> Tensor:
        """Labels as the data set gives them, in the form that the network is trained on."""

    @abstractmethod
    def move(self, z: Tensor, frame: Frame | None) -> Tensor:
        """A label of one view, carried to another."""

    @abstractmethod
    def figures(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Figures of merit over a whole set, by name, the main one first; lower is better; y as the set gives it."""

    @property
    @abstractmethod
    def figure_name(self) -> str:
        """The name of the main figure."""

    @property
    @abstractmethod
    def meaning(self) -> str:
        """What the main figure says, in words."""

    @property
    @abstractmethod
    def guess(self) -> float:
        """ℓ of an output that knows nothing of its input."""

    def figure(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The main figure."""
        return self.figures(outputs, y)[self.figure_name]
