"""FixMatch (Sohn et al., 2020): hard labels of weak views, learned on strong ones (section 3)."""

from dataclasses import dataclass
from typing import ClassVar

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.methods.base import OneForward, View, make_weighted_cost
from l2i.tasks import Task


@dataclass(frozen=True, kw_only=True)
class FixMatch(OneForward):
    """Cross-entropy on the strong view to the argmax of the weak one, masked by confidence."""

    name: ClassVar[str] = "fixmatch"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    uses_confidence_mask: ClassVar[bool] = True

    threshold: float = 0.95
    """Minimum confidence of a label that is trained on."""
    student_view: View = "strong"
    """View that the student sees; labels are imputed on the weak one."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        return task.harden(task.to_label(net(batch.unlabeled.weak)), self.threshold)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        view = batch.unlabeled.views[self.student_view]
        return Student(view, make_weighted_cost(task.sample_losses))
