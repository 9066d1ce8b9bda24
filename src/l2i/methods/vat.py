"""Virtual adversarial training (Miyato et al., 2018): the prediction must hold where it would change the most."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2i.batch import Batch, Imputed, Net, Student
from l2i.lanes import IN_TURN, Lanes
from l2i.methods.base import Costs, Method, View
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class VAT(Method):
    """z is the prediction on x, learned at x + r, where r is the adversarial direction of one power iteration."""

    name: ClassVar[str] = "vat"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    searches_input: ClassVar[bool] = True

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
            return (task.losses(outputs, imputed.z) - entropy_of(task.logits(imputed.z))).mean()

        return Student(batch.unlabeled.weak + self.adversarial(task, net, batch), divergence)

    def costs(self, task: Task, net: Net, imputer: Net, batch: Batch, lanes: Lanes = IN_TURN) -> Costs:
        """The entropy is no part of what λ ramps up: it goes with C^T."""
        costs = super().costs(task, net, imputer, batch, lanes)
        if not self.entropy:
            return costs
        with lanes("labeled"):
            return costs._replace(c_t=costs.c_t + self.entropy * entropy_of(net(batch.unlabeled.weak)).mean())

    def adversarial(self, task: Task, net: Net, batch: Batch) -> Tensor:
        """r: the gradient of the divergence at a small random step, made ε long; no gradient goes through it."""
        assert batch.unlabeled.noise is not None
        x = batch.unlabeled.weak.detach()
        with torch.no_grad():
            z = task.label(net(x))
        probe = (self.xi * unit(batch.unlabeled.noise)).requires_grad_()
        with torch.enable_grad():
            (direction,) = torch.autograd.grad(task.losses(net(x + probe), z).sum(), probe)
        return self.epsilon * unit(direction)


def unit(direction: Tensor) -> Tensor:
    """Each sample's direction at length 1; scaled by its largest value first, since squares of small ones vanish."""
    flat = direction.flatten(1)
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return F.normalize(flat, dim=1).view_as(direction)


def entropy_of(logits: Tensor) -> Tensor:
    """H of each prediction, [B]."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
