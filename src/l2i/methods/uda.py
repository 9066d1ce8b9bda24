"""UDA (Xie et al., 2019): sharpened labels on a strong view, training-signal annealing."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.distributed import current_group
from l2i.methods.base import OneForward, View, make_weighted_cost
from l2i.tasks import Task

STEEPNESS = 5.0  # of the logarithmic and exponential annealing


@dataclass(frozen=True, kw_only=True)
class UDA(OneForward):
    """Divergence on the strong view from the sharpened, confident prediction on the weak one."""

    name: ClassVar[str] = "uda"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    uses_confidence_mask: ClassVar[bool] = True

    threshold: float = 0.8
    """Minimum confidence, before sharpening, of a label that is trained on."""
    temperature: float = 0.4
    """Sharpening temperature of the prediction; 1 for none."""
    annealing: Literal["none", "linear", "log", "exp"] = "linear"
    """Training-signal annealing: schedule, from 1/C to 1, of the confidence above which a labelled
    sample is ignored."""
    annealing_share: float = 1.0
    """Fraction of the run over which annealing takes place."""
    student_view: View = "strong"
    """View that the student sees; labels are imputed on the weak one."""

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        z = task.to_label(net(batch.unlabeled.weak))
        mask = task.harden(z, self.threshold).weight
        return Imputed(task.to_label(task.to_logits(z) / self.temperature), mask)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def divergence(outputs: Tensor, z: Tensor) -> Tensor:
            entropy = task.sample_losses(task.to_logits(z), z)
            return task.sample_losses(outputs, z) - entropy

        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(divergence))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        if self.annealing == "none":
            return super().supervised(task, net, batch)

        def cost(outputs: Tensor, _: Imputed) -> Tensor:
            losses, group = task.sample_losses(outputs, batch.labeled.y), current_group()
            threshold = self.compute_tsa_threshold(task, batch)
            is_learned = torch.exp(-losses.detach()) > threshold  # such samples do not count
            mean_count = group.all_reduce_mean((~is_learned).sum().to(losses.dtype))
            return (losses * ~is_learned).sum() / mean_count.clamp_min(1 / group.size)

        return Student(batch.labeled.x, cost)

    def compute_tsa_threshold(self, task: Task, batch: Batch) -> Tensor:
        """Return η_t, which grows from 1/C to 1."""
        assert batch.progress is not None
        t = (batch.progress / self.annealing_share).clamp_max(1)
        annealed = {
            "linear": t,
            "log": 1 - torch.exp(-STEEPNESS * t),
            "exp": torch.exp(STEEPNESS * (t - 1)),
        }[self.annealing]
        return annealed * (1 - 1 / task.num_outputs) + 1 / task.num_outputs
