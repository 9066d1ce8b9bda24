"""Pseudo-label (Lee, 2013): a confident prediction is taken for the true label."""

from dataclasses import dataclass
from typing import ClassVar

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.methods.base import OneForward, make_weighted_cost
from l2i.tasks import Task


@dataclass(frozen=True, kw_only=True)
class PseudoLabel(OneForward):
    """A hard label (regression: the prediction) on one view, the task's loss on another.

    Lee trains on the view that was labelled, `student_view="weak"`. The default transports labels
    to another view, as the paper does for landmarks: on one view a regression learns nothing.
    """

    name: ClassVar[str] = "pseudo-label"
    uses_confidence_mask: ClassVar[bool] = True

    threshold: float = 0.95
    """Minimum confidence of a label that is trained on."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        imputed = task.harden(task.to_label(net(batch.unlabeled.weak)), self.threshold)
        return imputed._replace(z=self.transport(task, imputed.z, batch))

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        view = batch.unlabeled.views[self.student_view]
        return Student(view, make_weighted_cost(task.sample_losses))
