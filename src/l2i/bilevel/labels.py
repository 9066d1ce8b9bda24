"""Imputed labels as the model's output (O) or as learnable parameters (L): where d_z goes (section 4, «Discussion»)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import gradient, lookahead
from l2i.bilevel.problem import Imputed, Params, Student
from l2i.distributed import current_group
from l2i.errors import InputError

MIN_PROBABILITY = 1e-8


def labels_to_logits(z: Tensor) -> Tensor:
    """Label logits of a distribution: their softmax is z."""
    return z.clamp_min(MIN_PROBABILITY).log()


def logits_to_labels(logits: Tensor) -> Tensor:
    """The distribution that logits stand for."""
    return logits.softmax(dim=1)


class Labels(Protocol):
    """From ∂C^H/∂z to g_outer, a gradient for θ."""

    def gradient(self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor) -> Params: ...


@dataclass(frozen=True)
class OutputLabels:
    """O: z is the model's output, so d_z flows back through it to θ."""

    def gradient(self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor) -> Params:
        if not imputed.z.requires_grad:
            raise InputError(
                "these imputed labels have no gradient (an argmax has none), so they cannot be learned as the model's "
                "output; use outer_target='soft' or labels='learnable'"
            )
        grads = torch.autograd.grad(imputed.z, list(params.values()), d_z, materialize_grads=True)
        return dict(zip(params, grads, strict=True))


@dataclass(frozen=True)
class LearnableLabels:
    """L: z is moved once along −d_z in logits, and θ takes the gradient of the student's cost to the new labels."""

    label_lr: float = 1.0
    normalized: bool = False
    """Scale the step so that its norm is η_z times the number of labels."""
    to_logits: Callable[[Tensor], Tensor] = labels_to_logits
    to_label: Callable[[Tensor], Tensor] = logits_to_labels

    def step_labels(self, z: Tensor, d_z: Tensor) -> Tensor:
        """The labels after their step."""
        logits = self.to_logits(z.detach()).requires_grad_()
        with torch.enable_grad():
            (d_logits,) = torch.autograd.grad(self.to_label(logits), logits, current_group().rescale_local_grad(d_z))
        if self.normalized:
            grad_norm, count = current_group().global_norm(d_logits), len(z) * current_group().size
            d_logits = d_logits * torch.where(grad_norm > 0, count / grad_norm, grad_norm)  # nothing to learn: nothing moves
        return self.to_label(logits.detach() - self.label_lr * d_logits)

    def gradient(self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor) -> Params:
        target = Imputed(self.step_labels(imputed.z, d_z), imputed.weight.detach())
        return gradient(lambda theta: student.cost_of(lookahead(model, theta), target), params)
