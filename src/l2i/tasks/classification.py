"""Classification: softmax and cross-entropy, squared distance between distributions (section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2i.bilevel.outer import labels_to_logits, logits_to_labels
from l2i.bilevel.problem import Imputed
from l2i.data.transforms.geometry import AffineMap
from l2i.tasks.base import Task

MAX_CLASSES_WITHOUT_TOP5 = 10  # above, the top-5 error is informative


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """One class per sample; y holds class numbers, z distributions."""

    kind: ClassVar[str] = "classification"
    metric_name: ClassVar[str] = "error (%)"
    metric_description: ClassVar[str] = "share of samples given a wrong class"

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
