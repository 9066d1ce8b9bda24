"""The outer step: re-impute, look ahead, and turn ∂C^H/∂z into a gradient for θ (Algorithm 1, lines 7 to 11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import detach_params
from l2i.bilevel.hypergradient import Cost, Hypergradient, last_layer
from l2i.bilevel.labels import Labels, OutputLabels
from l2i.bilevel.problem import Imputed, Net, Params, Student


class OuterGradient(NamedTuple):
    """What an outer step gives: a gradient for θ, and C^H(θ*) for the log."""

    gradient: Params
    c_h: Tensor


@dataclass(frozen=True, kw_only=True)
class OuterStep:
    """How to take ∂C^H/∂θ through the imputed labels. Usable in any loop with any `nn.Module`."""

    hypergradient: Hypergradient = last_layer
    labels: Labels = field(default_factory=OutputLabels)
    eta: float | Tensor | None = None
    """Inner rate; None for the limit of small η."""
    inner_steps: int = 1
    inner_weight: float = 1.0
    """Weight of C^U in the inner step."""
    head: nn.Linear | str | None = None

    def __call__(
        self,
        model: nn.Module,
        params: Params,
        student: Student,
        imputed: Imputed,
        c_h: Cost,
        *,
        c_t: Cost | None = None,
        mixed_c_t: Student | None = None,
    ) -> OuterGradient:
        """g_outer at `params`. `imputed` comes from the live model there, with its gradient.

        C^T takes part in the inner step as `c_t` or, where its targets hold z as well, as the student `mixed_c_t`.
        """
        c_h_values: list[Tensor] = []
        inner_student = student.scale_cost(self.inner_weight)
        d_z = self.hypergradient(
            model,
            detach_params(params),
            inner_student if mixed_c_t is None else mixed_c_t.concat(inner_student),
            imputed,
            _record_values(c_h, c_h_values),
            eta=self.eta,
            inner_steps=self.inner_steps,
            c_t=c_t,
            head=self.head,
        )
        gradient = self.labels.gradient(model, params, student, imputed, d_z)
        torch.rand((), device=d_z.device)  # moves the generator on, past the dropout masks that were replayed
        return OuterGradient(gradient, c_h_values[-1].detach())


def _record_values(cost: Cost, values: list[Tensor]) -> Cost:
    """The same cost, its values kept in `seen`."""

    def recording_cost(net: Net) -> Tensor:
        values.append(cost(net))
        return values[-1]

    return recording_cost


def norm(gradient: Params) -> Tensor:
    """‖g‖ over all parameters, without leaving the device."""
    total_norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradient.values()))))
    return total_norm


def compute_scale(reference_norm: Tensor, current_norm: Tensor, *, ratio: float | Tensor) -> Tensor:
    """What brings a gradient of norm `own` to `ratio` times `size`; nothing, where it has vanished."""
    return torch.where(current_norm > 0, ratio * reference_norm / current_norm, current_norm)


def add_gradients(left: Params, right: Params) -> Params:
    """The sum of two gradients."""
    return dict(zip(left, torch._foreach_add(list(left.values()), [right[name] for name in left]), strict=True))


def normalized_sum(base: Params, outer: Params, *, rho: float) -> Params:
    """g_base + ρ · ‖g_base‖/‖g_outer‖ · g_outer: both gradients in one optimizer step, at a fixed ratio."""
    scale = compute_scale(norm(base), norm(outer), ratio=rho)
    return add_gradients(base, dict(zip(outer, torch._foreach_mul(list(outer.values()), scale), strict=True)))
