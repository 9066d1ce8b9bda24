"""Pseudo-label (Lee, 2013): the predicted label is taken for true where it is confident."""

from dataclasses import dataclass
from typing import ClassVar

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.methods.base import Method, make_weighted_cost
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class PseudoLabel(Method):
    """A hard label (regression: the prediction) on one view, the task's loss on another.

    Lee trains on the view that was labelled, `student_view="weak"`; the paper's landmarks are carried to another
    crop, and on one view a regression would have nothing to learn, so that is the default.
    """

    name: ClassVar[str] = "pseudo-label"
    uses_confidence_mask: ClassVar[bool] = True

    threshold: float = 0.95
    """Confidence from which a label counts."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        imputed = task.harden(task.to_label(net(batch.unlabeled.weak)), self.threshold)
        return imputed._replace(z=self.transport(task, imputed.z, batch))

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(task.sample_losses))
