"""The outer step: re-impute, look ahead, and turn ∂C^H/∂z into a gradient for θ (Algorithm 1, lines 7 to 11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.batch import Imputed, Net, Params, Student
from l2i.bilevel.hypergradient import Cost, Hypergradient, last_layer
from l2i.bilevel.inner import detached
from l2i.bilevel.labels import Labels, OutputLabels


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
        seen: list[Tensor] = []
        inner = student.weighted(self.inner_weight)
        d_z = self.hypergradient(
            model,
            detached(params),
            inner if mixed_c_t is None else mixed_c_t.joined(inner),
            imputed,
            _remembered(c_h, seen),
            eta=self.eta,
            inner_steps=self.inner_steps,
            c_t=c_t,
            head=self.head,
        )
        gradient = self.labels.gradient(model, params, student, imputed, d_z)
        torch.rand((), device=d_z.device)  # moves the generator on, past the dropout masks that were replayed
        return OuterGradient(gradient, seen[-1].detach())


def _remembered(cost: Cost, seen: list[Tensor]) -> Cost:
    """The same cost, its values kept in `seen`."""

    def remembering(net: Net) -> Tensor:
        seen.append(cost(net))
        return seen[-1]

    return remembering


def norm(gradient: Params) -> Tensor:
    """‖g‖ over all parameters, without leaving the device."""
    size: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradient.values()))))
    return size


def scale_of(size: Tensor, own: Tensor, *, ratio: float | Tensor) -> Tensor:
    """What brings a gradient of norm `own` to `ratio` times `size`; nothing, where it has vanished."""
    return torch.where(own > 0, ratio * size / own, own)


def added(one: Params, other: Params) -> Params:
    """The sum of two gradients."""
    return dict(zip(one, torch._foreach_add(list(one.values()), [other[name] for name in one]), strict=True))


def normalized_sum(base: Params, outer: Params, *, rho: float) -> Params:
    """g_base + ρ · ‖g_base‖/‖g_outer‖ · g_outer: both gradients in one optimizer step, at a fixed ratio."""
    scale = scale_of(norm(base), norm(outer), ratio=rho)
    return added(base, dict(zip(outer, torch._foreach_mul(list(outer.values()), scale), strict=True)))
