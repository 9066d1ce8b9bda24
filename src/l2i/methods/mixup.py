"""MixUp (Zhang et al., 2018) as the semi-supervised baseline of the MixMatch paper: each set mixed within itself."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.methods.base import Method, View
from l2i.methods.mixmatch import interpolate_rows
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class MixUp(Method):
    """Mixed labelled rows with mixed labels; mixed unlabelled rows with mixed predictions; cross-entropy for both."""

    name: ClassVar[str] = "mixup"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    alpha: float = 0.5
    """The Beta distribution of the mixing share."""
    student_view: View = "weak"
    """The view that is mixed; labels are imputed on it as it is."""

    @property
    def views(self) -> tuple[View, ...]:
        return ("weak",)

    @property
    def mix_alpha(self) -> float:
        return self.alpha

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        start, size = len(batch.labeled.x), len(batch.unlabeled.weak)

        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            return task.loss(outputs, mix_within(imputed.z, batch, start, size))

        return Student(mix_within(batch.unlabeled.weak, batch, start, size), cost)

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        size = len(batch.labeled.x)
        target = mix_within(task.to_target(batch.labeled.y), batch, 0, size)
        return Student(mix_within(batch.labeled.x, batch, 0, size), lambda outputs, _: task.loss(outputs, target))


def mix_within(rows: Tensor, batch: Batch, start: int, size: int) -> Tensor:
    """Each row mixed with the one as far from the other end: the order of a batch is random already."""
    assert batch.mix is not None
    return interpolate_rows(rows, rows.flip(0), batch.mix.ratio[start : start + size])
