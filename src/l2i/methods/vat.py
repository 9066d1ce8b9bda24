"""Virtual adversarial training (Miyato et al., 2018): the prediction must hold where it would change the most."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.methods.base import Costs, Method, View
from l2i.streams import SEQUENTIAL, StreamSchedule
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class VAT(Method):
    """z is the prediction on x, learned at x + r, where r is the adversarial direction of one power iteration."""

    name: ClassVar[str] = "vat"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs_input_noise: ClassVar[bool] = True

    epsilon: float = 6.0
    """The length of r, in units of the network's inputs."""
    xi: float = 1e-3
    """The length of the probing step. The paper's 1e-6 is at the rounding of float32; the direction is the same."""
    entropy: float = 0.0
    """Weight of the entropy of the predictions on x, from the first step on (VAT + EntMin)."""
    student_view: View = "weak"
    """The view that the student sees, perturbed; labels are imputed on it as it is."""

    @property
    def views(self) -> tuple[View, ...]:
        return ("weak",)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def divergence(outputs: Tensor, imputed: Imputed) -> Tensor:
            return (task.sample_losses(outputs, imputed.z) - compute_entropy(task.to_logits(imputed.z))).mean()

        return Student(batch.unlabeled.weak + self.compute_perturbation(task, net, batch), divergence)

    def compute_costs(self, task: Task, net: Net, imputer: Net, batch: Batch, streams: StreamSchedule = SEQUENTIAL) -> Costs:
        """The entropy is no part of what λ ramps up: it goes with C^T."""
        costs = super().compute_costs(task, net, imputer, batch, streams)
        if not self.entropy:
            return costs
        with streams("labeled"):
            return costs._replace(c_t=costs.c_t + self.entropy * compute_entropy(net(batch.unlabeled.weak)).mean())

    def compute_perturbation(self, task: Task, net: Net, batch: Batch) -> Tensor:
        """r: the gradient of the divergence at a small random step, made ε long; no gradient goes through it."""
        assert batch.unlabeled.noise is not None
        x = batch.unlabeled.weak.detach()
        with torch.no_grad():
            z = task.to_label(net(x))
        probe = (self.xi * normalize_direction(batch.unlabeled.noise)).requires_grad_()
        with torch.enable_grad():
            (direction,) = torch.autograd.grad(task.sample_losses(net(x + probe), z).sum(), probe)
        return self.epsilon * normalize_direction(direction)


def normalize_direction(direction: Tensor) -> Tensor:
    """Each sample's direction at length 1; scaled by its largest value first, since squares of small ones vanish."""
    flat = direction.flatten(1)
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return F.normalize(flat, dim=1).view_as(direction)


def compute_entropy(logits: Tensor) -> Tensor:
    """H of each prediction, [B]."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
