"""MixMatch (Berthelot et al., 2019): sharpened mean predictions, MixUp over all rows (section 3)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.methods.base import OneForward, View
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class MixMatch(OneForward):
    """z enters both costs, since every row's target is mixed with another row's."""

    name: ClassVar[str] = "mixmatch"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    mixes_targets: ClassVar[bool] = True

    weight: float = 75.0
    """λ, the weight of the unsupervised cost once ramped up."""
    temperature: float = 0.5
    """Sharpening of the mean prediction; 1 leaves it as it is."""
    alpha: float = 0.75
    """The Beta distribution of the mixing share."""

    @property
    def views(self) -> tuple[View, ...]:
        return ("weak", "weak2", self.student_view)

    @property
    def mix_alpha(self) -> float:
        return self.alpha

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        mean_label = (task.to_label(net(batch.unlabeled.weak)) + task.to_label(net(batch.unlabeled.weak2))) / 2
        return Imputed.unmasked(task.to_label(task.to_logits(mean_label) / self.temperature))  # mean^(1/T), safe for small T

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            return task.distance(outputs, self.mix_targets(task, batch, imputed.z)[len(batch.labeled.x) :]).mean()

        return Student(self.mix_inputs(batch)[len(batch.labeled.x) :], cost)

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            return task.loss(outputs, self.mix_targets(task, batch, imputed.z)[: len(batch.labeled.x)])

        return Student(self.mix_inputs(batch)[: len(batch.labeled.x)], cost)

    def mix_inputs(self, batch: Batch) -> Tensor:
        """The labelled rows and both views of the unlabelled ones, mixed."""
        return mix_rows(torch.cat([batch.labeled.x, batch.unlabeled.weak, batch.unlabeled.weak2]), batch)

    def mix_targets(self, task: Task, batch: Batch, z: Tensor) -> Tensor:
        """Their labels, mixed the same way."""
        return mix_rows(torch.cat([task.to_target(batch.labeled.y).to(z.dtype), z, z]), batch)


def mix_rows(rows: Tensor, batch: Batch) -> Tensor:
    """Each row with its partner's, drawn among all rows."""
    assert batch.mix is not None
    return interpolate_rows(rows, rows[batch.mix.permutation], batch.mix.ratio)


def interpolate_rows(rows: Tensor, partners: Tensor, ratio: Tensor) -> Tensor:
    """MixUp with a row's own share being the larger."""
    ratio = torch.maximum(ratio, 1 - ratio).to(rows.dtype).view(-1, *[1] * (rows.ndim - 1))
    return ratio * rows + (1 - ratio) * partners
