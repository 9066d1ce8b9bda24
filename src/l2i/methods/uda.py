"""UDA (Xie et al., 2019): sharpened confident labels learned on a strong view, and training-signal annealing."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.distributed import current_group
from l2i.methods.base import OneForward, View, make_weighted_cost
from l2i.tasks.base import Task

STEEPNESS = 5.0  # of the logarithmic and exponential annealing


@dataclass(frozen=True, kw_only=True)
class UDA(OneForward):
    """Divergence on the strong view from the sharpened prediction on the weak one, where that is confident."""

    name: ClassVar[str] = "uda"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    uses_confidence_mask: ClassVar[bool] = True

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
        z = task.to_label(net(batch.unlabeled.weak))
        mask = task.harden(z, self.threshold).weight
        return Imputed(task.to_label(task.to_logits(z) / self.temperature), mask)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def divergence(outputs: Tensor, z: Tensor) -> Tensor:
            return task.sample_losses(outputs, z) - task.sample_losses(task.to_logits(z), z)  # less the entropy of z

        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(divergence))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        if self.annealing == "none":
            return super().supervised(task, net, batch)

        def cost(outputs: Tensor, _: Imputed) -> Tensor:
            losses = task.sample_losses(outputs, batch.labeled.y)
            is_learned = torch.exp(-losses.detach()) > self.compute_tsa_threshold(task, batch)  # what is well learned no longer counts
            num_counted = current_group().all_reduce_mean((~is_learned).sum().to(losses.dtype))  # of a process, on average
            return (losses * ~is_learned).sum() / num_counted.clamp_min(1 / current_group().size)

        return Student(batch.labeled.x, cost)

    def compute_tsa_threshold(self, task: Task, batch: Batch) -> Tensor:
        """η_t, from 1/C at the start to 1."""
        assert batch.progress is not None
        t = (batch.progress / self.annealing_share).clamp_max(1)
        annealed = {
            "linear": t,
            "log": 1 - torch.exp(-STEEPNESS * t),
            "exp": torch.exp(STEEPNESS * (t - 1)),
        }[self.annealing]
        return annealed * (1 - 1 / task.num_outputs) + 1 / task.num_outputs
