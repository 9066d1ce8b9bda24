"""MixMatch (Berthelot et al., 2019): sharpened mean predictions, MixUp of all rows (section 3)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.methods.base import OneForward, View
from l2i.tasks import Task


@dataclass(frozen=True, kw_only=True)
class MixMatch(OneForward):
    """z enters both costs, since every row's target is mixed with another row's."""

    name: ClassVar[str] = "mixmatch"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    mixes_targets: ClassVar[bool] = True

    weight: float = 75.0
    """λ, the weight of the unsupervised cost after its ramp-up."""
    temperature: float = 0.5
    """Sharpening temperature of the mean prediction; 1 for none."""
    alpha: float = 0.75
    """Parameter of the Beta distribution of mixing ratios."""

    @property
    def views(self) -> tuple[View, ...]:
        return ("weak", "weak2", self.student_view)

    @property
    def mix_alpha(self) -> float:
        return self.alpha

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        views = (batch.unlabeled.weak, batch.unlabeled.weak2)
        first, second = (task.to_label(net(view)) for view in views)
        mean_logits = task.to_logits((first + second) / 2)
        return Imputed.unmasked(task.to_label(mean_logits / self.temperature))  # mean^(1/T)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            targets = _mix_targets(task, batch, imputed.z)[len(batch.labeled.x) :]
            return task.distance(outputs, targets).mean()

        return Student(_mix_inputs(batch)[len(batch.labeled.x) :], cost)

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            return task.loss(outputs, _mix_targets(task, batch, imputed.z)[: len(batch.labeled.x)])

        return Student(_mix_inputs(batch)[: len(batch.labeled.x)], cost)


def _mix_inputs(batch: Batch) -> Tensor:
    """Mix the labelled rows and both views of the unlabelled ones."""
    return _mix_rows([batch.labeled.x, batch.unlabeled.weak, batch.unlabeled.weak2], batch)


def _mix_targets(task: Task, batch: Batch, z: Tensor) -> Tensor:
    """Mix their labels in the same way."""
    return _mix_rows([task.to_target(batch.labeled.y).to(z.dtype), z, z], batch)


def _mix_rows(parts: list[Tensor], batch: Batch) -> Tensor:
    """Mix each row with a partner drawn among all rows."""
    assert batch.mix is not None
    rows = torch.cat(parts)
    return interpolate_rows(rows, rows[batch.mix.permutation], batch.mix.ratio)


def interpolate_rows(rows: Tensor, partners: Tensor, ratio: Tensor) -> Tensor:
    """Apply MixUp, with a row's own share being the larger."""
    ratio = torch.maximum(ratio, 1 - ratio).to(rows.dtype).view(-1, *[1] * (rows.ndim - 1))
    return ratio * rows + (1 - ratio) * partners
