"""What the outer step imputes and how the student is held to it, whatever the method does (appendix)."""

from dataclasses import dataclass

import torch

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.errors import InputError
from l2i.methods.base import Method, make_weighted_cost
from l2i.methods.pi_model import PiModel
from l2i.tasks.base import Task

TEMPERATURE, THRESHOLD = 0.5, 0.95  # of labels that are sharpened, and of those that count


@dataclass(frozen=True, kw_only=True)
class SquashedPiModel(PiModel):
    """Both sides of the distance squashed by tanh, as the released code has it in the look-ahead for landmarks."""

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        cost = make_weighted_cost(lambda y, z: (torch.tanh(task.to_label(y)) - torch.tanh(z)).square().mean(dim=1))
        return Student(batch.unlabeled.views[self.student_view], cost)


@dataclass(frozen=True, kw_only=True)
class CrossEntropyPiModel(PiModel):
    """Cross-entropy in place of the squared distance, to labels that stay soft."""

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(task.sample_losses))


@dataclass(frozen=True, kw_only=True)
class SharpenedPiModel(PiModel):
    """Labels sharpened: what is likely becomes likelier still."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        z = task.to_label(net(batch.unlabeled.weak))
        return Imputed.unmasked(task.to_label(task.to_logits(z) / TEMPERATURE))


@dataclass(frozen=True, kw_only=True)
class MaskedPiModel(PiModel):
    """Soft labels, of which only the confident ones count."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        z = task.to_label(net(batch.unlabeled.weak))
        return Imputed(z, task.harden(z, THRESHOLD).weight)


@dataclass(frozen=True, kw_only=True)
class LogitPiModel(PiModel):
    """Outputs before the softmax: no label is so sure that nothing moves it."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        return Imputed.unmasked(net(batch.unlabeled.weak))

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        cost = make_weighted_cost(lambda outputs, z: (outputs - z).square().mean(dim=1))
        return Student(batch.unlabeled.views[self.student_view], cost)


OUTER_TARGETS: dict[str, type[PiModel]] = {
    "soft": PiModel,
    "tanh": SquashedPiModel,
    "cross_entropy": CrossEntropyPiModel,
    "sharpened": SharpenedPiModel,
    "masked": MaskedPiModel,
    "logits": LogitPiModel,
}
CLASSIFICATION_ONLY = ("cross_entropy", "sharpened", "masked", "logits")


def make_outer_method(name: str, method: Method, task: Task) -> Method:
    """What imputes in the outer step of a run with this method."""
    if task.kind != "classification" and name in CLASSIFICATION_ONLY:
        raise InputError(f"l2i.outer_target='{name}' is for classes, and this is a regression; use 'soft'")
    return method if name == "method" else OUTER_TARGETS[name](student_view=method.student_view)
