"""Virtual adversarial training (Miyato et al., 2018): consistency in the adversarial direction."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.methods.base import OneForward, View
from l2i.tasks import Task


@dataclass(frozen=True, kw_only=True)
class VAT(OneForward):
    """z is the prediction on x, learned at x + r; r is found by one power iteration.

    The divergence is Miyato's, KL(prediction on x ‖ prediction at x + r). MixMatch's code for its
    VAT baseline has its arguments the other way round.
    """

    name: ClassVar[str] = "vat"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs_input_noise: ClassVar[bool] = True

    epsilon: float = 6.0
    """Norm ε of the perturbation r, in units of the network's inputs."""
    xi: float = 1e-3
    """Norm ξ of the power iteration's step. The paper's 1e-6 is close to float32 rounding; the
    direction is the same."""
    entropy: float = 0.0
    """Weight of entropy minimisation on x, without ramp-up (VAT + EntMin)."""
    student_view: View = "weak"
    """View that the student sees, perturbed; labels are imputed on it unperturbed."""

    @property
    def views(self) -> tuple[View, ...]:
        return ("weak",)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        def divergence(outputs: Tensor, imputed: Imputed) -> Tensor:
            entropy = _compute_entropy(task.to_logits(imputed.z))
            return (task.sample_losses(outputs, imputed.z) - entropy).mean()

        perturbation = self.compute_perturbation(task, net, batch)
        return Student(batch.unlabeled.weak + perturbation, divergence)

    def extra_cost(self, task: Task, net: Net, batch: Batch) -> Tensor | None:
        if not self.entropy:
            return None
        return self.entropy * _compute_entropy(net(batch.unlabeled.weak)).mean()

    def compute_perturbation(self, task: Task, net: Net, batch: Batch) -> Tensor:
        """Return r: the gradient of the divergence at a small random step, scaled to length ε."""
        assert batch.unlabeled.noise is not None
        x = batch.unlabeled.weak.detach()
        with torch.no_grad():
            z = task.to_label(net(x))
        probe = (self.xi * _normalize(batch.unlabeled.noise)).requires_grad_()
        with torch.enable_grad():
            (direction,) = torch.autograd.grad(task.sample_losses(net(x + probe), z).sum(), probe)
        return self.epsilon * _normalize(direction)


def _normalize(direction: Tensor) -> Tensor:
    """Scale each sample's direction to length 1, by its maximum first: squares may underflow."""
    flat = direction.flatten(1)
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    return F.normalize(flat, dim=1).view_as(direction)


def _compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction, [B]."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
