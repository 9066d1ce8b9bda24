"""The outer step: from ∂C^H/∂z to an update of θ (Algorithm 1, lines 7 to 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import Net, Params, detach_params, gradient, lookahead
from l2i.bilevel.hypergradient import Hypergradient, last_layer
from l2i.bilevel.problem import Cost, Imputed, Problem, Student
from l2i.distributed import current_group
from l2i.errors import InputError

MIN_PROBABILITY = 1e-8


def labels_to_logits(z: Tensor) -> Tensor:
    """Return logits whose softmax is z."""
    return z.clamp_min(MIN_PROBABILITY).log()


def logits_to_labels(logits: Tensor) -> Tensor:
    """Return the softmax of logits."""
    return logits.softmax(dim=1)


class Labels(Protocol):
    """Turn ∂C^H/∂z into g_outer, a gradient for θ."""

    def gradient(
        self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor
    ) -> Params: ...


@dataclass(frozen=True)
class OutputLabels:
    """Treat z as the model's output (O): d_z flows back through it to θ."""

    def gradient(
        self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor
    ) -> Params:
        if not imputed.z.requires_grad:
            raise InputError(
                "labels='output' needs imputed labels with a gradient, and an argmax has none; "
                "use soft labels, or labels='learnable'"
            )
        grads = torch.autograd.grad(imputed.z, list(params.values()), d_z, materialize_grads=True)
        return dict(zip(params, grads, strict=True))


@dataclass(frozen=True)
class LearnableLabels:
    """Treat z as learnable (L): it takes one step along −d_z in logits, and θ follows it.

    The gradient for θ is that of the student's cost towards the new labels.
    """

    label_lr: float = 1.0
    """Step size η_z of the labels."""
    normalized: bool = False
    """Scale the step so that its norm is η_z times the number of labels."""
    to_logits: Callable[[Tensor], Tensor] = labels_to_logits
    """Map from labels to the logits that take the step."""
    to_label: Callable[[Tensor], Tensor] = logits_to_labels
    """Map from logits back to labels."""

    def step_labels(self, z: Tensor, d_z: Tensor) -> Tensor:
        """Return the labels after their step."""
        logits = self.to_logits(z.detach()).requires_grad_()
        d_z = current_group().rescale_local_grad(d_z)
        with torch.enable_grad():
            (d_logits,) = torch.autograd.grad(self.to_label(logits), logits, d_z)
        if self.normalized:
            grad_norm, count = current_group().global_norm(d_logits), len(z) * current_group().size
            # nothing to learn: nothing moves
            d_logits = d_logits * torch.where(grad_norm > 0, count / grad_norm, grad_norm)
        return self.to_label(logits.detach() - self.label_lr * d_logits)

    def gradient(
        self, model: nn.Module, params: Params, student: Student, imputed: Imputed, d_z: Tensor
    ) -> Params:
        target = Imputed(self.step_labels(imputed.z, d_z), imputed.weight.detach())
        return gradient(lambda theta: student.cost_of(lookahead(model, theta), target), params)


class OuterGradient(NamedTuple):
    """Hold the result of an outer step."""

    gradient: Params
    """Gradient g_outer for θ, by name."""
    c_h: Tensor
    """Hold-out cost C^H(θ*), for the log."""


@dataclass(frozen=True, kw_only=True)
class OuterStep:
    """Compute ∂C^H/∂θ through the imputed labels, in any loop and for any `nn.Module`."""

    hypergradient: Hypergradient = last_layer
    """Function that computes ∂C^H/∂z."""
    labels: Labels = field(default_factory=OutputLabels)
    """Labels as the model's output (`OutputLabels`) or as parameters (`LearnableLabels`)."""

    def __call__(self, problem: Problem, *, mixed_c_t: Student | None = None) -> OuterGradient:
        """Return the outer gradient of a problem.

        Args:
            problem: The bilevel problem of a step; its imputed labels must carry the live model's
                gradient.
            mixed_c_t: C^T as a student, for methods that mix z into its targets.

        Returns:
            The gradient for θ, and C^H(θ*).

        """
        c_h_values: list[Tensor] = []
        student = problem.student if mixed_c_t is None else mixed_c_t.concat(problem.student)
        d_z = self.hypergradient(
            replace(
                problem,
                params=detach_params(problem.params),
                student=student,
                activations=problem.activations if mixed_c_t is None else None,
                c_h=_record_values(problem.c_h, c_h_values),
            )
        )
        gradient = self.labels.gradient(
            problem.model, problem.params, problem.student, problem.imputed, d_z
        )
        torch.rand((), device=d_z.device)  # past the replayed dropout masks
        return OuterGradient(gradient, c_h_values[-1].detach())


def _record_values(cost: Cost, values: list[Tensor]) -> Cost:
    """Wrap a cost so that it also appends its values to a list."""

    def recording_cost(net: Net) -> Tensor:
        values.append(cost(net))
        return values[-1]

    return recording_cost


def norm(gradient: Params) -> Tensor:
    """Return the norm ‖g‖ over all parameters; the value stays on the device."""
    norms = torch.stack(torch._foreach_norm(list(gradient.values())))
    total_norm: Tensor = torch.linalg.vector_norm(norms)
    return total_norm


def _compute_scale(
    reference_norm: Tensor, current_norm: Tensor, *, ratio: float | Tensor
) -> Tensor:
    """Return what scales a gradient to `ratio` times a norm; 0 if it vanished."""
    return torch.where(current_norm > 0, ratio * reference_norm / current_norm, current_norm)


def add_gradients(left: Params, right: Params) -> Params:
    """Return the sum of two gradients."""
    sums = torch._foreach_add(list(left.values()), [right[name] for name in left])
    return dict(zip(left, sums, strict=True))


def combine_normalized(
    base: Tensor, outer: Tensor, *, rho: float | Tensor, preserve_norm: bool = False
) -> Tensor:
    """Return g_base + ρ·‖g_base‖/‖g_outer‖·g_outer.

    Args:
        base: Flat gradient g_base of the base method.
        outer: Flat outer gradient g_outer.
        rho: Weight ρ of the outer gradient.
        preserve_norm: Rescale the sum to ‖g_base‖, so that g_outer changes only its direction.

    Returns:
        The combined gradient, for one optimizer step.

    """
    base_norm = base.norm()
    total = torch.addcmul(base, outer, _compute_scale(base_norm, outer.norm(), ratio=rho))
    return total * _compute_scale(base_norm, total.norm(), ratio=1.0) if preserve_norm else total


def normalized_sum(base: Params, outer: Params, *, rho: float) -> Params:
    """Apply `combine_normalized` to gradients by name, for one optimizer step."""
    flat_base, flat_outer = (torch.cat([g[name].flatten() for name in base]) for g in (base, outer))
    sizes = [g.numel() for g in base.values()]
    pieces = combine_normalized(flat_base, flat_outer, rho=rho).split(sizes)
    return {name: piece.view_as(base[name]) for name, piece in zip(base, pieces, strict=True)}
