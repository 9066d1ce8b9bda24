"""Regression: squared loss on standardised targets, which may be landmarks (Experiment 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from l2i.bilevel.problem import Imputed
from l2i.data.transforms.geometry import AffineMap
from l2i.errors import InputError
from l2i.tasks.base import Task

FAILURE_THRESHOLD = 10.0  # per cent of the distance between the eyes


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """Targets of one or more coordinates; the network sees (y − mean) / std."""

    kind: ClassVar[str] = "regression"

    mean: Tensor  # [D]
    std: Tensor  # [D]
    points: bool = False
    """Targets are points x, y, x, y, … in pixels, which move with the image."""
    eyes: tuple[int, int] | None = None
    """Indices of the eyes, if errors are measured in units of their distance."""

    @property
    def chance_loss(self) -> float:
        return 1.0  # of predicting the mean

    @staticmethod
    def from_targets(
        y: Tensor, *, points: bool = False, eyes: tuple[int, int] | None = None
    ) -> Regression:
        """Standardise by the labels `y` [N, D]; a constant coordinate keeps its units."""
        if y.ndim != 2 or (points and y.shape[1] % 2):
            raise InputError(
                f"regression targets of shape {list(y.shape)} do not fit; "
                "use [N, D], with D even for points x, y, …"
            )
        std = y.std(dim=0, correction=0)
        safe_std = torch.where(std > 0, std, torch.ones_like(std))
        return Regression(
            num_outputs=y.shape[1], mean=y.mean(dim=0), std=safe_std, points=points, eyes=eyes
        )

    def sample_losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target).square().mean(dim=1)

    def to_label(self, outputs: Tensor) -> Tensor:
        return outputs

    def to_logits(self, z: Tensor) -> Tensor:
        return z

    def harden(self, z: Tensor, threshold: float) -> Imputed:
        return Imputed.unmasked(z)

    def to_target(self, y: Tensor) -> Tensor:
        return y

    def encode(self, y: Tensor) -> Tensor:
        return (y - self.mean) / self.std

    def decode(self, outputs: Tensor) -> Tensor:
        """Convert standardised targets to the data set's units."""
        return outputs * self.std + self.mean

    def transport_label(self, z: Tensor, affine_map: AffineMap | None) -> Tensor:
        if affine_map is None or not self.points:
            return z
        return self.encode(affine_map.apply(self.decode(z)))

    @property
    def uses_std_units(self) -> bool:
        """Whether errors are in standard deviations: several targets may have different units."""
        return self.num_outputs > 1 and not self.points

    @property
    def metric_name(self) -> str:
        return "RMSE" if self.eyes is None else "error (%)"

    @property
    def metric_description(self) -> str:
        if self.eyes is not None:
            share = "as a share of the distance between the eyes"
            return f"mean distance of landmarks from the truth, {share}"
        std_units = "the targets' spreads among the labelled samples"
        unit = std_units if self.uses_std_units else "the targets' units"
        return f"root of the mean squared error, in {unit}"

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        predicted = self.decode(outputs)
        if self.eyes is None:
            unit = self.std.double() if self.uses_std_units else 1.0
            return {self.metric_name: ((predicted - y).double() / unit).square().mean().sqrt()}
        errors = 100 * self.compute_landmark_errors(predicted, y)
        return {
            self.metric_name: errors.mean(),
            "failure rate (%)": 100 * (errors > FAILURE_THRESHOLD).double().mean(),
        }

    def compute_landmark_errors(self, predicted: Tensor, y: Tensor) -> Tensor:
        """Return each face's mean landmark error, in units of its eyes' distance, [B]."""
        assert self.eyes is not None
        points, truth = (coords.double().reshape(len(y), -1, 2) for coords in (predicted, y))
        eye_distance = (truth[:, self.eyes[0]] - truth[:, self.eyes[1]]).norm(dim=1)
        errors: Tensor = (points - truth).norm(dim=2).mean(dim=1) / eye_distance
        return errors
