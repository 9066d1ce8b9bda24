"""Classification: softmax and cross-entropy, squared distance between distributions (section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2i.batch import Imputed
from l2i.bilevel.labels import log_labels, softmax_labels
from l2i.data.frames import Frame
from l2i.tasks.base import Task

MANY = 10  # classes, above which the top-5 error says something


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """One class a sample; y holds class numbers, z a distribution."""

    kind: ClassVar[str] = "classification"
    figure_name: ClassVar[str] = "error (%)"
    meaning: ClassVar[str] = "share of samples given a wrong class"

    @property
    def guess(self) -> float:
        return math.log(self.outputs)

    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target, reduction="none")

    def label(self, outputs: Tensor) -> Tensor:
        return softmax_labels(outputs)

    def logits(self, z: Tensor) -> Tensor:
        return log_labels(z)

    def commit(self, z: Tensor, threshold: float) -> Imputed:
        confidence, choice = z.detach().max(dim=1)
        hard = F.one_hot(choice, self.outputs).to(z.dtype)
        return Imputed(hard, (confidence >= threshold).to(z.dtype))

    def target(self, y: Tensor) -> Tensor:
        return F.one_hot(y, self.outputs).to(torch.get_default_dtype())

    def encode(self, y: Tensor) -> Tensor:
        return y

    def move(self, z: Tensor, frame: Frame | None) -> Tensor:
        return z

    def figures(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        found = {self.figure_name: 100 * (outputs.argmax(dim=1) != y).double().mean()}
        if self.outputs > MANY:
            missed = (outputs.topk(5, dim=1).indices != y.unsqueeze(1)).all(dim=1)
            found["top-5 error (%)"] = 100 * missed.double().mean()
        return found
