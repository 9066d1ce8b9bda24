"""Imputed labels as the model's output (O) or as learnable parameters (L): where d_z goes (section 4, «Discussion»)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from l2i.batch import Imputed, Params, Student
from l2i.bilevel.inner import gradient, lookahead
from l2i.errors import InputError
from l2i.ranks import here

TINY = 1e-8


def log_labels(z: Tensor) -> Tensor:
    """Label logits of a distribution: their softmax is z."""
    return z.clamp_min(TINY).log()


def softmax_labels(logits: Tensor) -> Tensor:
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

    eta_z: float = 1.0
    normalized: bool = False
    """Scale the step so that its norm is η_z times the number of labels."""
    to_logits: Callable[[Tensor], Tensor] = log_labels
    to_label: Callable[[Tensor], Tensor] = softmax_labels

    def moved(self, z: Tensor, d_z: Tensor) -> Tensor:
        """The labels after their step."""
        logits = self.to_logits(z.detach()).requires_grad_()
        with torch.enable_grad():
            (d_logits,) = torch.autograd.grad(self.to_label(logits), logits, here().of_whole(d_z))
        if self.normalized:
            size, count = here().norm(d_logits), len(z) * here().size
            d_logits = d_logits * torch.where(size > 0, count / size, size)  # nothing to learn: nothing moves
        return self.to_label(logits.detach() - self.eta_z * d_logits)

    def gradient(self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor) -> Params:
        target = Imputed(self.moved(imputed.z, d_z), imputed.weight.detach())
        return gradient(lambda theta: student.evaluate(lookahead(model, theta), target), params)
