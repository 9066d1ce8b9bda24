"""Π-model (Laine and Aila, 2017): squared distance between the predictions on two views."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from l2i.batch import Batch, Net, Student
from l2i.methods.base import Method, weighted_mean
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class PiModel(Method):
    """The general form as it stands: z is the model's own prediction on another view."""

    name: ClassVar[str] = "pi-model"


@dataclass(frozen=True, kw_only=True)
class SquashedPiModel(PiModel):
    """Both sides of the distance squashed by tanh, as the released code has it in the look-ahead for landmarks."""

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(
            batch.unlabeled.views[self.student_view],
            weighted_mean(lambda outputs, z: (torch.tanh(task.label(outputs)) - torch.tanh(z)).square().mean(dim=1)),
        )
