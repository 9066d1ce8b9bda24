"""UDA (Xie et al., 2019): sharpened confident labels learned on a strong view, and training-signal annealing."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from l2i.batch import Batch, Imputed, Net, Student
from l2i.methods.base import View, weighted_mean
from l2i.methods.one_forward import OneForward
from l2i.ranks import here
from l2i.tasks.base import Task

STEEPNESS = 5.0  # of the logarithmic and exponential annealing


@dataclass(frozen=True, kw_only=True)
class UDA(OneForward):
    """Divergence on the strong view from the sharpened prediction on the weak one, where that is confident."""

    name: ClassVar[str] = "uda"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    masks: ClassVar[bool] = True

    threshold: float = 0.8
    """Confidence, before sharpening, from which a label counts."""
    temperature: float = 0.4
    """Sharpening of the prediction; 1 leaves it as it is."""
    annealing: Literal["none", "linear", "log", "exp"] = "linear"
    """How the confidence below which a labelled sample still counts grows from 1/C to 1 (TSA); none: all count."""
    annealing_share: float = 1.0
    """The share of the run over which it grows."""
    student_view: View = "strong"
    """The view that the student sees; labels are imputed on the weak one."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        z = task.label(net(batch.unlabeled.weak))
        confident = task.commit(z, self.threshold).weight
        return Imputed(task.label(task.logits(z) / self.temperature), confident)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def divergence(outputs: Tensor, z: Tensor) -> Tensor:
            return task.losses(outputs, z) - task.losses(task.logits(z), z)  # less the entropy of z

        return Student(batch.unlabeled.views[self.student_view], weighted_mean(divergence))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        if self.annealing == "none":
            return super().supervised(task, net, batch)

        def cost(outputs: Tensor, _: Imputed) -> Tensor:
            losses = task.losses(outputs, batch.labeled.y)
            known = torch.exp(-losses.detach()) > self.limit(task, batch)  # what is well learned no longer counts
            left = here().mean((~known).sum().to(losses.dtype))  # of a process, on average
            return (losses * ~known).sum() / left.clamp_min(1 / here().size)

        return Student(batch.labeled.x, cost)

    def limit(self, task: Task, batch: Batch) -> Tensor:
        """η_t, from 1/C at the start to 1."""
        assert batch.progress is not None
        t = (batch.progress / self.annealing_share).clamp_max(1)
        share = {
            "linear": t,
            "log": 1 - torch.exp(-STEEPNESS * t),
            "exp": torch.exp(STEEPNESS * (t - 1)),
        }[self.annealing]
        return share * (1 - 1 / task.outputs) + 1 / task.outputs
