"""Hypergradients: several ways to compute ∂C^H/∂z (eqs. updopt, sod and approx).

With θ* = θ − η ∇_θ C(θ, z) and v = ∇C^H(θ*),
d_z = −η ∇_z ⟨∇_θ C(θ, z), v⟩ = −η (∂²C/∂f ∂z)ᵀ (J_f v): one directional derivative of the student's
outputs f, and a mixed derivative that lives on [B, C] tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from l2i.bilevel.forward_mode import (
    DirectionalDerivative,
    central_difference,
    forward_mode,
    use_math_attention,
    use_same_attention,
)
from l2i.bilevel.functional import (
    Params,
    compute_mean_gradient,
    detach_params,
    inner_step,
    lookahead,
    make_leaf_params,
)
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Activations, Imputed, Problem
from l2i.distributed import current_group
from l2i.errors import InputError

Hypergradient = Callable[[Problem], Tensor]
"""From a problem to ∂C^H/∂z, in the shape of z."""


def exact(problem: Problem) -> Tensor:
    """Differentiate through all parameters by forward-mode autodiff.

    It needs no double backward, no Hessian and no retained graph. With `inner_steps` > 1 the
    adjoint is propagated by Hessian-vector products.

    Args:
        problem: The bilevel problem of a step.

    Returns:
        ∂C^H/∂z, in the shape of z.

    """
    return _backpropagate_adjoint(forward_mode, problem)


def finite_difference(problem: Problem) -> Tensor:
    """Differentiate through all parameters by two forwards, for networks without forward mode.

    In float32 it is accurate to a few per cent; do not use it in bf16.

    Args:
        problem: The bilevel problem of a step.

    Returns:
        ∂C^H/∂z, in the shape of z.

    """
    return _backpropagate_adjoint(central_difference, replace(problem, repeats_forward=True))


def _backpropagate_adjoint(derivative: DirectionalDerivative, problem: Problem) -> Tensor:
    """Run the recursion λ_K = ∇C^H(θ_K), λ_k = λ_{k+1} − η ∇²C(θ_k) λ_{k+1} over θ_K … θ_0."""
    thetas = [detach_params(problem.params)]
    eta = _inner_rate(problem)
    with use_same_attention(problem.model) if derivative is forward_mode else nullcontext():
        for _ in range(problem.inner_steps if problem.eta is not None else 0):
            thetas.append(inner_step(problem.compute_cost, thetas[-1], eta=eta))
    adjoint = compute_mean_gradient(problem.compute_holdout_cost, thetas[-1])
    d_z = torch.zeros_like(problem.target.z)
    for k in reversed(range(max(1, len(thetas) - 1))):
        outputs, tangent = derivative(problem.compute_outputs, thetas[k], adjoint)
        d_z = d_z - eta * _compute_mixed_derivative(problem, outputs, tangent)
        if k > 0:
            curvature = _compute_hvp(derivative, problem, thetas[k], adjoint)
            adjoint = {name: adjoint[name] - eta * curvature[name] for name in adjoint}
    return d_z


def _compute_hvp(
    derivative: DirectionalDerivative, problem: Problem, params: Params, v: Params
) -> Params:
    """Return ∇²C(θ) v, as the directional derivative of the gradient."""
    names = list(params)

    def flat_gradient(theta: Params) -> Tensor:
        with torch.enable_grad():
            cost = problem.compute_cost(theta)
            grads = torch.autograd.grad(cost, [theta[n] for n in names], materialize_grads=True)
        return torch.cat([g.flatten() for g in grads])

    _, product = derivative(flat_gradient, params, v)
    pieces = current_group().all_reduce_mean(product).split([params[n].numel() for n in names])
    return {n: piece.view_as(params[n]) for n, piece in zip(names, pieces, strict=True)}


def _compute_mixed_derivative(problem: Problem, outputs: Tensor, tangent: Tensor) -> Tensor:
    """Return (∂²C/∂f ∂z)ᵀ · tangent: how the cost's gradient at the outputs changes with z."""
    f = outputs.detach().requires_grad_()
    z = problem.imputed.z.detach().requires_grad_()
    with torch.enable_grad():
        cost = problem.student.cost(f, problem.target._replace(z=z))
        (slope,) = torch.autograd.grad(cost, f, create_graph=True)
        (d_z,) = torch.autograd.grad(slope, z, tangent.detach(), materialize_grads=True)
    return d_z


def last_layer(problem: Problem) -> Tensor:
    """Differentiate through the head alone, in closed form: J_f v = Φ^f(x_u) V_Wᵀ + v_b.

    Args:
        problem: The bilevel problem of a step, with one inner step.

    Returns:
        ∂C^H/∂z, in the shape of z.

    Raises:
        InputError: If the head is frozen or shares its weights, or is not the model's last layer.

    """
    outputs, tangent = _compute_head_tangent(problem)
    return -_inner_rate(problem) * _compute_mixed_derivative(problem, outputs, tangent)


def last_layer_paper(problem: Problem) -> Tensor:
    """Apply the paper's eq. approx literally: η Σ_h (Φ(x_h) − y_h) ⟨Φ^f(x_h), Φ^f(x_u)⟩.

    It ignores the derivative of the distance in use, which `last_layer` includes.

    Args:
        problem: The bilevel problem of a step, with one inner step.

    Returns:
        An approximation of ∂C^H/∂z, in the shape of z.

    """
    _, tangent = _compute_head_tangent(problem)
    if tangent.shape != problem.imputed.z.shape:
        raise InputError(
            "'last_layer_paper' needs one student output per label; use hypergradient='last_layer'"
        )
    return _inner_rate(problem) / len(tangent) * problem.target.weight.unsqueeze(1) * tangent


def _compute_head_tangent(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the student's outputs and their derivative along V = ∇_head C^H(θ*)."""
    if problem.inner_steps != 1:
        raise InputError(
            f"inner_steps={problem.inner_steps} needs hypergradient='exact'; "
            "'last_layer' takes one step"
        )
    head = Head.from_model(problem.model, problem.head)
    features, outputs = _get_activations(problem, head)

    def compute_head_cost(theta: Params) -> Tensor:
        """Return C(θ, z) if only the head moves: θ and θ* share the encoder's features."""
        cost = problem.student.cost(head.apply(features, theta), problem.target)
        with problem.replay_rng(theta):
            net = lookahead(problem.model, theta)
            return cost if problem.c_t is None else cost + problem.c_t(net)

    theta_star = detach_params(problem.params)
    if problem.eta is not None and problem.lookahead_params == "head":
        theta_star = inner_step(compute_head_cost, problem.params, eta=problem.eta, wrt=head.names)
    elif problem.eta is not None:
        theta_star = inner_step(problem.compute_cost, problem.params, eta=problem.eta)
    v = compute_mean_gradient(problem.compute_holdout_cost, theta_star, head.names)
    return outputs, head.apply(features, v)


def _get_activations(problem: Problem, head: Head) -> Activations:
    """Return the student's features and outputs at θ, from an earlier forward if there was one."""
    if problem.activations is not None:
        return problem.activations
    with problem.replay_rng(problem.params), torch.no_grad():
        net = lookahead(problem.model, detach_params(problem.params))
        return head.forward_with_features(net, problem.student.inputs)


def unrolled(problem: Problem) -> Tensor:
    """Differentiate through the inner steps by autograd: slow, an oracle for tests.

    Args:
        problem: The bilevel problem of a step, with an `eta`.

    Returns:
        ∂C^H/∂z, in the shape of z.

    """
    if problem.eta is None:
        raise InputError("'unrolled' takes inner steps of size eta; set eta")
    z = problem.imputed.z.detach().requires_grad_()
    target = Imputed(z, problem.imputed.weight.detach())
    with torch.enable_grad(), use_math_attention():
        theta = make_leaf_params(problem.params)
        for _ in range(problem.inner_steps):
            cost = problem.compute_cost(theta, target)
            names, values = list(theta), list(theta.values())
            grads = torch.autograd.grad(cost, values, create_graph=True, materialize_grads=True)
            theta = {n: theta[n] - problem.eta * g for n, g in zip(names, grads, strict=True)}
        (d_z,) = torch.autograd.grad(problem.compute_holdout_cost(theta), z)
    return d_z


def _inner_rate(problem: Problem) -> float | Tensor:
    return 1.0 if problem.eta is None else problem.eta


HYPERGRADIENTS: dict[str, Hypergradient] = {
    "exact": exact,
    "last_layer": last_layer,
    "last_layer_paper": last_layer_paper,
    "finite_difference": finite_difference,
    "unrolled": unrolled,
}
