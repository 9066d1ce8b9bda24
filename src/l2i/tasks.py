"""Tasks: the loss ℓ, labels, the distance d between output and label, and metrics (section 3).

Classification has a softmax and cross-entropy; regression a squared loss on standardised targets,
which may be landmarks (Experiment 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2i.bilevel.outer import labels_to_logits, logits_to_labels
from l2i.bilevel.problem import Imputed
from l2i.data.batch import AffineMap
from l2i.errors import InputError

MAX_CLASSES_WITHOUT_TOP5 = 10  # above, the top-5 error is informative
ROUNDING_ERROR = 1e-14  # of float64, relative: the std of a constant
FAILURE_THRESHOLD = 10.0  # per cent of the distance between the eyes


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
        """Encode labels of the dataset for training."""

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


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """One class per sample; y holds class numbers, z distributions."""

    kind: ClassVar[str] = "classification"
    metric_name: ClassVar[str] = "error (%)"
    metric_description: ClassVar[str] = "percentage of misclassified samples"

    @property
    def chance_loss(self) -> float:
        return math.log(self.num_outputs)

    def sample_losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target, reduction="none")

    def to_label(self, outputs: Tensor) -> Tensor:
        return logits_to_labels(outputs)

    def to_logits(self, z: Tensor) -> Tensor:
        return labels_to_logits(z)

    def harden(self, z: Tensor, threshold: float) -> Imputed:
        confidence, predicted_class = z.detach().max(dim=1)
        hard_label = F.one_hot(predicted_class, self.num_outputs).to(z.dtype)
        return Imputed(hard_label, (confidence >= threshold).to(z.dtype))

    def to_target(self, y: Tensor) -> Tensor:
        return F.one_hot(y, self.num_outputs).to(torch.get_default_dtype())

    def encode(self, y: Tensor) -> Tensor:
        return y

    def transport_label(self, z: Tensor, affine_map: AffineMap | None) -> Tensor:
        return z

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        values = {self.metric_name: 100 * (outputs.argmax(dim=1) != y).double().mean()}
        if self.num_outputs > MAX_CLASSES_WITHOUT_TOP5:
            missed = (outputs.topk(5, dim=1).indices != y.unsqueeze(1)).all(dim=1)
            values["top-5 error (%)"] = 100 * missed.double().mean()
        return values


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
        y: Tensor,
        *,
        weight: Tensor | None = None,
        points: bool = False,
        eyes: tuple[int, int] | None = None,
    ) -> Regression:
        """Standardise by the labels `y` [N, D], weighted; a constant coordinate keeps its units."""
        if y.ndim != 2 or (points and y.shape[1] % 2):
            raise InputError(
                f"regression targets have shape {list(y.shape)}; "
                "use [N, D], with D even for points x, y, …"
            )
        # squares of float32 overflow, or vanish, at the square root of its range
        exact = y.double()
        mean, std = exact.mean(dim=0), exact.std(dim=0, correction=0)
        if weight is not None:
            share = (weight.double() / weight.double().sum()).unsqueeze(1)  # [N, 1]
            mean = (share * exact).sum(dim=0)
            std = (share * (exact - mean).square()).sum(dim=0).sqrt()
        is_constant = std <= ROUNDING_ERROR * exact.abs().amax(dim=0)
        std = torch.where(is_constant, 1.0, std)
        return Regression(
            num_outputs=y.shape[1],
            mean=mean.to(y.dtype),
            std=std.to(y.dtype),
            points=points,
            eyes=eyes,
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
        """Convert standardised targets to the dataset's units."""
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
            return "mean landmark error, normalised by the distance between the eyes"
        std_units = "standard deviations of the labelled targets"
        unit = std_units if self.uses_std_units else "the targets' units"
        return f"root mean squared error, in {unit}"

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
