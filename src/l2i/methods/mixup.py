"""MixUp (Zhang et al., 2018) as the MixMatch paper's baseline: each set mixed within itself."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.methods.base import Method, View
from l2i.methods.mixmatch import interpolate_rows
from l2i.tasks import Task


@dataclass(frozen=True, kw_only=True)
class MixUp(Method):
    """Cross-entropy on mixed labelled rows, and on mixed unlabelled rows with mixed predictions."""

    name: ClassVar[str] = "mixup"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    alpha: float = 0.5
    """Parameter of the Beta distribution of mixing ratios."""
    student_view: View = "weak"
    """View to mix; labels are imputed on it before mixing."""

    @property
    def views(self) -> tuple[View, ...]:
        return ("weak",)

    @property
    def mix_alpha(self) -> float:
        return self.alpha

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        start = len(batch.labeled.x)

        def cost(outputs: Tensor, imputed: Imputed) -> Tensor:
            return task.loss(outputs, _mix_within(imputed.z, batch, start))

        return Student(_mix_within(batch.unlabeled.weak, batch, start), cost)

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        target = _mix_within(task.to_target(batch.labeled.y), batch, 0)
        inputs = _mix_within(batch.labeled.x, batch, 0)
        return Student(inputs, lambda outputs, _: task.loss(outputs, target))


def _mix_within(rows: Tensor, batch: Batch, start: int) -> Tensor:
    """Mix each row with its mirror image in the batch, whose order is random already."""
    assert batch.mix is not None
    return interpolate_rows(rows, rows.flip(0), batch.mix.ratio[start : start + len(rows)])
