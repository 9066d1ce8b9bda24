"""FixMatch (Sohn et al., 2020): a confident hard label of a weak view, learned on a strong one (section 3)."""

from dataclasses import dataclass
from typing import ClassVar

from l2i.batch import Batch, Imputed, Net, Student
from l2i.methods.base import View, weighted_mean
from l2i.methods.one_forward import OneForward
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class FixMatch(OneForward):
    """Cross-entropy on the strong view to the argmax of the weak one, masked by confidence."""

    name: ClassVar[str] = "fixmatch"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    masks: ClassVar[bool] = True

    threshold: float = 0.95
    """Confidence from which a label counts."""
    student_view: View = "strong"
    """The view that the student sees; labels are imputed on the weak one."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        return task.commit(task.label(net(batch.unlabeled.weak)), self.threshold)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(batch.unlabeled.views[self.student_view], weighted_mean(task.losses))
