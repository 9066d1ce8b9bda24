"""∂C^H/∂z, what every outer step starts from: one signature, several ways to it (eqs. updopt, sod and approx).

With θ* = θ − η ∇_θ C(θ, z) and v = ∇C^H(θ*), d_z = −η ∇_z ⟨∇_θ C(θ, z), v⟩ = −η (∂²C/∂f ∂z)ᵀ (J_f v): one directional
derivative of the student's outputs f, and a mixed derivative that lives on [B, C] tensors.

`eta=None` stands for the limit of small η: θ* is θ, no inner step is taken, and d_z is returned per unit of η.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from l2i.bilevel.forward_mode import (
    DirectionalDerivative,
    central_difference,
    forward_mode,
    use_math_attention,
    use_same_attention,
)
from l2i.bilevel.functional import InnerProblem, compute_mean_gradient, detach_params, inner_step, lookahead
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Activations, Imputed, Net, Params, Student
from l2i.distributed import current_group
from l2i.errors import InputError

Cost = Callable[[Net], Tensor]


class Hypergradient(Protocol):
    """The signature they share: the model at θ, the student and its imputed labels, C^H, and the inner step."""

    def __call__(
        self,
        model: nn.Module,
        params: Params,
        student: Student,
        imputed: Imputed,
        c_h: Cost,
        *,
        eta: float | Tensor | None,
        inner_steps: int = 1,
        c_t: Cost | None = None,
        head: nn.Linear | str | None = None,
    ) -> Tensor: ...


def exact(
    model: nn.Module,
    params: Params,
    student: Student,
    imputed: Imputed,
    c_h: Cost,
    *,
    eta: float | Tensor | None,
    inner_steps: int = 1,
    c_t: Cost | None = None,
    head: nn.Linear | str | None = None,
) -> Tensor:
    """Through all parameters, by forward mode: no double backward, no Hessian, no retained graph."""
    inner = InnerProblem(model, student, imputed.detach(), c_t, repeats_forward=eta is not None)
    return _backpropagate_adjoint(forward_mode, inner, params, c_h, eta=eta, inner_steps=inner_steps)


def finite_difference(
    model: nn.Module,
    params: Params,
    student: Student,
    imputed: Imputed,
    c_h: Cost,
    *,
    eta: float | Tensor | None,
    inner_steps: int = 1,
    c_t: Cost | None = None,
    head: nn.Linear | str | None = None,
) -> Tensor:
    """Through all parameters, by differences of two plain forwards, for networks without forward mode."""
    inner = InnerProblem(model, student, imputed.detach(), c_t)
    return _backpropagate_adjoint(central_difference, inner, params, c_h, eta=eta, inner_steps=inner_steps)


def _backpropagate_adjoint(
    directional: DirectionalDerivative, inner: InnerProblem, params: Params, c_h: Cost, *, eta: float | Tensor | None, inner_steps: int
) -> Tensor:
    """The reverse recursion over θ_0 … θ_K: λ_K = ∇C^H(θ_K), then d_z and λ_k = λ_{k+1} − η ∇²C(θ_k) λ_{k+1}."""
    thetas = [detach_params(params)]
    rate = 1.0 if eta is None else eta
    with use_same_attention(inner.model) if directional is forward_mode else nullcontext():
        for _ in range(inner_steps if eta is not None else 0):
            thetas.append(inner_step(inner.compute_cost, thetas[-1], eta=rate))
    adjoint = compute_mean_gradient(partial(inner.holdout_cost, c_h), thetas[-1])
    d_z = torch.zeros_like(inner.imputed.z)
    for k in reversed(range(max(1, len(thetas) - 1))):
        outputs, tangent = directional(inner.compute_outputs, thetas[k], adjoint)
        d_z = d_z - rate * _compute_mixed_derivative(inner, outputs, tangent)
        if k > 0:
            curvature = _compute_hvp(directional, inner, thetas[k], adjoint)
            adjoint = {name: adjoint[name] - rate * curvature[name] for name in adjoint}
    return d_z


def _compute_hvp(directional: DirectionalDerivative, inner: InnerProblem, params: Params, v: Params) -> Params:
    """∇²C(θ) v, as the directional derivative of the gradient."""
    names = list(params)

    def flat_gradient(theta: Params) -> Tensor:
        with torch.enable_grad():
            grads = torch.autograd.grad(inner.compute_cost(theta), [theta[n] for n in names], materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])

    _, product = directional(flat_gradient, params, v)
    pieces = current_group().all_reduce_mean(product).split([params[n].numel() for n in names])
    return {n: piece.view_as(params[n]) for n, piece in zip(names, pieces, strict=True)}


def _compute_mixed_derivative(inner: InnerProblem, outputs: Tensor, tangent: Tensor) -> Tensor:
    """(∂²C/∂f ∂z)ᵀ · tangent: how the cost's gradient at the outputs changes with z."""
    f = outputs.detach().requires_grad_()
    z = inner.imputed.z.detach().requires_grad_()
    with torch.enable_grad():
        cost = inner.student.cost(f, inner.imputed._replace(z=z))
        (slope,) = torch.autograd.grad(cost, f, create_graph=True)
        (d_z,) = torch.autograd.grad(slope, z, tangent.detach(), materialize_grads=True)
    return d_z


def last_layer(
    model: nn.Module,
    params: Params,
    student: Student,
    imputed: Imputed,
    c_h: Cost,
    *,
    eta: float | Tensor | None,
    inner_steps: int = 1,
    c_t: Cost | None = None,
    head: nn.Linear | str | None = None,
    moves: Literal["head", "all"] = "head",
) -> Tensor:
    """The same formula with v restricted to the head, in closed form: J_f v = Φ^f(x_u) V_Wᵀ + v_b.

    `moves` says what takes the look-ahead step: the head alone, or all of θ before the closed form is applied.
    """
    inner = InnerProblem(model, student, imputed.detach(), c_t, repeats_forward=eta is not None)
    outputs, tangent = _compute_head_tangent(
        inner, params, c_h, Head.from_model(model, head), eta=eta, inner_steps=inner_steps, moves=moves
    )
    return -(1.0 if eta is None else eta) * _compute_mixed_derivative(inner, outputs, tangent)


def last_layer_paper(
    model: nn.Module,
    params: Params,
    student: Student,
    imputed: Imputed,
    c_h: Cost,
    *,
    eta: float | Tensor | None,
    inner_steps: int = 1,
    c_t: Cost | None = None,
    head: nn.Linear | str | None = None,
    moves: Literal["head", "all"] = "head",
) -> Tensor:
    """Eq. approx to the letter: η Σ_h (Φ(x_h) − y_h) ⟨Φ^f(x_h), Φ^f(x_u)⟩, whatever the distance."""
    inner = InnerProblem(model, student, imputed.detach(), c_t, repeats_forward=eta is not None)
    _, tangent = _compute_head_tangent(inner, params, c_h, Head.from_model(model, head), eta=eta, inner_steps=inner_steps, moves=moves)
    if tangent.shape != imputed.z.shape:
        raise InputError("'last_layer_paper' needs one student output a label; use hypergradient='last_layer'")
    return (1.0 if eta is None else eta) / len(tangent) * inner.imputed.weight.unsqueeze(1) * tangent


def _compute_head_tangent(
    inner: InnerProblem,
    params: Params,
    c_h: Cost,
    head: Head,
    *,
    eta: float | Tensor | None,
    inner_steps: int,
    moves: Literal["head", "all"],
) -> tuple[Tensor, Tensor]:
    """The student's outputs, and their derivative along V = ∇_head C^H(θ*)."""
    if inner_steps != 1:
        raise InputError(f"inner_steps={inner_steps} needs hypergradient='exact'; the last layer takes one step")
    features, outputs = _get_activations(inner, params, head)

    def head_cost(theta: Params) -> Tensor:
        """C(θ, z) where only the head moves: the encoder's features are shared by θ and θ*."""
        cost = inner.student.cost(head.apply(features, theta), inner.imputed)
        with inner.replay_rng(theta):
            return cost if inner.c_t is None else cost + inner.c_t(lookahead(inner.model, theta))

    theta_star = detach_params(params)
    if eta is not None and moves == "head":
        theta_star = inner_step(head_cost, params, eta=eta, wrt=head.names)
    elif eta is not None:
        theta_star = inner_step(inner.compute_cost, params, eta=eta)
    v = compute_mean_gradient(partial(inner.holdout_cost, c_h), theta_star, head.names)
    return outputs, head.apply(features, v)


def _get_activations(inner: InnerProblem, params: Params, head: Head) -> Activations:
    """What θ makes of the student's inputs."""
    if inner.student.activations is not None:
        return inner.student.activations
    with inner.replay_rng(params), torch.no_grad():
        return head.forward_with_features(lookahead(inner.model, detach_params(params)), inner.student.inputs)


def unrolled(
    model: nn.Module,
    params: Params,
    student: Student,
    imputed: Imputed,
    c_h: Cost,
    *,
    eta: float | Tensor | None,
    inner_steps: int = 1,
    c_t: Cost | None = None,
    head: nn.Linear | str | None = None,
) -> Tensor:
    """The oracle: automatic differentiation through the inner steps, graph and all. Slow; for tests."""
    if eta is None:
        raise InputError("'unrolled' takes real inner steps; give it an eta")
    z = imputed.z.detach().requires_grad_()
    inner = InnerProblem(model, student, Imputed(z, imputed.weight.detach()), c_t)
    with torch.enable_grad(), use_math_attention():
        theta = {name: p.requires_grad_() for name, p in detach_params(params).items()}
        for _ in range(inner_steps):
            grads = torch.autograd.grad(
                inner.compute_cost(theta), list(theta.values()), create_graph=True, materialize_grads=True
            )
            theta = {name: p - eta * g for (name, p), g in zip(theta.items(), grads, strict=True)}
        (d_z,) = torch.autograd.grad(inner.holdout_cost(c_h, theta), z)
    return d_z


HYPERGRADIENTS: dict[str, Hypergradient] = {
    "exact": exact,
    "last_layer": last_layer,
    "last_layer_paper": last_layer_paper,
    "finite_difference": finite_difference,
    "unrolled": unrolled,
}
