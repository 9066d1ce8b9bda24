"""What the outer step imputes and how the student is held to it, whatever the method does (appendix)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from l2i.batch import Batch, Imputed, Net, Student
from l2i.errors import InputError
from l2i.methods.base import Method, weighted_mean
from l2i.methods.pi_model import PiModel
from l2i.tasks.base import Task

TEMPERATURE, THRESHOLD = 0.5, 0.95  # of labels that are sharpened, and of those that count


@dataclass(frozen=True, kw_only=True)
class SquashedPiModel(PiModel):
    """Both sides of the distance squashed by tanh, as the released code has it in the look-ahead for landmarks."""

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(
            batch.unlabeled.views[self.student_view],
            weighted_mean(lambda outputs, z: (torch.tanh(task.label(outputs)) - torch.tanh(z)).square().mean(dim=1)),
        )


@dataclass(frozen=True, kw_only=True)
class DivergingPiModel(PiModel):
    """Cross-entropy in place of the squared distance, to labels that stay soft."""

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(batch.unlabeled.views[self.student_view], weighted_mean(task.losses))


@dataclass(frozen=True, kw_only=True)
class SharpenedPiModel(PiModel):
    """Labels sharpened: what is likely becomes likelier still."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        z = task.label(net(batch.unlabeled.weak))
        return Imputed.whole(task.label(task.logits(z) / TEMPERATURE))


@dataclass(frozen=True, kw_only=True)
class MaskedPiModel(PiModel):
    """Soft labels, of which only the confident ones count."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        z = task.label(net(batch.unlabeled.weak))
        return Imputed(z, task.commit(z, THRESHOLD).weight)


@dataclass(frozen=True, kw_only=True)
class LogitPiModel(PiModel):
    """Outputs before the softmax: no label is so sure that nothing moves it."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        return Imputed.whole(net(batch.unlabeled.weak))

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(
            batch.unlabeled.views[self.student_view],
            weighted_mean(lambda outputs, z: (outputs - z).square().mean(dim=1)),
        )


TARGETS: dict[str, type[PiModel]] = {
    "soft": PiModel,
    "tanh": SquashedPiModel,
    "cross_entropy": DivergingPiModel,
    "sharpened": SharpenedPiModel,
    "masked": MaskedPiModel,
    "logits": LogitPiModel,
}
FOR_CLASSES = ("cross_entropy", "sharpened", "masked", "logits")


def outer_method(name: str, method: Method, task: Task) -> Method:
    """What imputes in the outer step of a run with this method."""
    if task.kind != "classification" and name in FOR_CLASSES:
        raise InputError(f"l2i.outer_target='{name}' is for classes, and this is a regression; use 'soft'")
    return method if name == "method" else TARGETS[name](student_view=method.student_view)
