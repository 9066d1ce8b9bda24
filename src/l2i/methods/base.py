"""What a semi-supervised method says: how it imputes (ψ), what it trains towards z (ℓ^u), and λ (section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from l2i.batch import Batch, Imputed, Net, Student
from l2i.lanes import IN_TURN, Lanes
from l2i.shares import resolved
from l2i.tasks.base import Task

View = Literal["weak", "weak2", "strong"]


class Costs(NamedTuple):
    """C^T and C^U of a base step."""

    c_t: Tensor
    c_u: Tensor
    counted: Tensor | None = None  # [C], the share of imputed labels that count, by class; where a mask leaves some out
    one_forward: bool = False  # whether both hang on one forward, so that one backward is for both


@dataclass(frozen=True, kw_only=True)
class Method:
    """Plain consistency between two views, the paper's general form; a method overrides what it does differently.

    The dataclass is its configuration. Nothing is drawn here: all randomness is in the batch.
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    imputer: ClassVar[Literal["model", "teacher"]] = "model"
    mixes_labels: ClassVar[bool] = False
    """Whether C^T's targets hold z as well: then both costs are one student in the inner step."""
    imputes: ClassVar[bool] = True
    masks: ClassVar[bool] = False
    """Whether only confident classes count."""
    searches_input: ClassVar[bool] = False
    """Whether the student's inputs are looked for from a random direction."""

    weight: float = 1.0
    """λ, the weight of the unsupervised cost once ramped up."""
    rampup: int | float = 0
    """Steps over which λ grows linearly from 0, or a share of the run such as 0.4; 0 for none."""
    student_view: View = "weak2"
    """The view that the student sees; labels are imputed on the weak one."""

    @property
    def views(self) -> tuple[View, ...]:
        """The views of an unlabelled sample that a step needs."""
        return ("weak", self.student_view)

    @property
    def mix_alpha(self) -> float | None:
        """The parameter of MixUp's Beta draws, where the method mixes samples."""
        return None

    def weight_at(self, step: int, steps: int) -> float:
        """λ(t) in a run of `steps`."""
        ramp = resolved(self.rampup, steps)
        return self.weight if ramp == 0 else self.weight * min(1.0, step / ramp)

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        """ψ: the label of the weak view, carried to the student's."""
        return Imputed.whole(self.carried(task, task.label(net(batch.unlabeled.weak)), batch))

    def counts(self, task: Task) -> bool:
        """Whether a step measures which of its imputed labels count."""
        return self.masks and task.kind == "classification"

    def carried(self, task: Task, z: Tensor, batch: Batch) -> Tensor:
        """A label of the weak view as a label of the student's."""
        return z if self.student_view == "weak" else task.move(z, batch.unlabeled.frame)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        """ℓ^u on the student's view; `net`, whose statistics stay, is there to look for inputs with."""
        return Student(batch.unlabeled.views[self.student_view], weighted_mean(task.distance))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        """C^T, a student too: its targets are known, but a method may mix z into them."""
        return Student(batch.labeled.x, lambda outputs, _: task.loss(outputs, batch.labeled.y))

    def costs(self, task: Task, net: Net, imputer: Net, batch: Batch, lanes: Lanes = IN_TURN) -> Costs:
        """C^T and C^U of the base step: no gradient reaches the imputed labels."""
        with lanes("impute"), torch.no_grad():
            imputed = self.impute(task, imputer, batch)
        with lanes("labeled"):
            supervised = self.supervised(task, net, batch)
            outputs = net(supervised.inputs)
            if self.mixes_labels:
                lanes.wait("impute")
            c_t = supervised.cost(outputs, imputed)
        with lanes("student"):
            student = self.student(task, imputer, batch)
            outputs = net(student.inputs)
            lanes.wait("impute")  # the student is passed while labels are imputed: its inputs are free of them
            c_u = student.cost(outputs, imputed)
        lanes.keep(imputed)
        with lanes("impute"):  # beside the student
            return Costs(c_t, c_u, self.counted(task, imputed))

    def counted(self, task: Task, imputed: Imputed) -> Tensor | None:
        """The labels that count, by class; nothing where all count."""
        return (imputed.weight.unsqueeze(1) * imputed.z).mean(dim=0) if self.counts(task) else None


def weighted_mean(distance: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Imputed], Tensor]:
    """The cost made of a distance a sample: its mean, each sample counted by its weight."""
    return lambda outputs, imputed: (imputed.weight * distance(outputs, imputed.z)).mean()
