"""Regression: squared loss on standardised targets, and labels that may be points of an image (Experiment 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from l2i.batch import Imputed
from l2i.data.frames import Frame
from l2i.errors import InputError
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """Targets of one or more coordinates; the network sees (y − mean) / std."""

    kind: ClassVar[str] = "regression"
    figure_name: ClassVar[str] = "RMSE"

    mean: Tensor  # [D]
    std: Tensor  # [D]
    points: bool = False
    """Whether targets are points x, y, x, y, … in pixels, which move with the image."""

    @staticmethod
    def standardized(y: Tensor, *, points: bool = False) -> Regression:
        """The task for labels `y` [N, D], with their mean and spread; a constant coordinate keeps its units."""
        if y.ndim != 2 or (points and y.shape[1] % 2):
            raise InputError(
                f"regression targets of shape {list(y.shape)} do not fit; use [N, D], with D even for points x, y, …"
            )
        std = y.std(dim=0, correction=0)
        spread = torch.where(std > 0, std, torch.ones_like(std))
        return Regression(outputs=y.shape[1], mean=y.mean(dim=0), std=spread, points=points)

    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target).square().mean(dim=1)

    def label(self, outputs: Tensor) -> Tensor:
        return outputs

    def logits(self, z: Tensor) -> Tensor:
        return z

    def commit(self, z: Tensor, threshold: float) -> Imputed:
        return Imputed.whole(z)

    def target(self, y: Tensor) -> Tensor:
        return y

    def encode(self, y: Tensor) -> Tensor:
        return (y - self.mean) / self.std

    def decode(self, outputs: Tensor) -> Tensor:
        """Standardised targets back in the data set's units."""
        return outputs * self.std + self.mean

    def move(self, z: Tensor, frame: Frame | None) -> Tensor:
        return z if frame is None or not self.points else self.encode(frame.apply(self.decode(z)))

    def figure(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (self.decode(outputs) - y).double().square().mean().sqrt()
