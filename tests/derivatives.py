"""Derivatives of functions of x, weight and bias, for tests of fused layers."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from problems import relative

Inputs = tuple[Tensor, Tensor, Tensor]


def leaves(inputs: Inputs, **to: object) -> Inputs:
    x, weight, bias = (value.detach().to(**to).requires_grad_() for value in inputs)
    return x, weight, bias


def directional(
    function: object, inputs: Inputs, dots: Inputs, which: tuple[bool, ...] = (True,) * 3
) -> Tensor:
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(p, t) if on else p
            for p, t, on in zip(inputs, dots, which, strict=True)
        ]
        return forward_ad.unpack_dual(function(*duals)).tangent


def flat(values: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([value.flatten() for value in values])


def gradient_of(function: object, dy: Tensor) -> object:
    """The gradient of ⟨function, dy⟩ in x and weight."""
    return lambda x, weight, bias: flat(
        torch.autograd.grad((function(x, weight, bias) * dy).sum(), (x, weight))
    )


def agree_in_forward_mode(
    fused: object, reference: object, inputs: Inputs, which: tuple[bool, ...]
) -> bool:
    """Whether two functions have the same derivative along random directions of some inputs."""
    dots = tuple(torch.randn_like(value) for value in inputs)
    actual, wanted = (directional(f, inputs, dots, which).detach() for f in (fused, reference))
    return relative(actual, wanted) < 1e-10


def agree_in_second_derivatives(fused: object, reference: object, inputs: Inputs) -> bool:
    """Reverse or forward over reverse, and reverse over forward: one Hessian-vector product."""
    dy, dots = (
        torch.randn_like(reference(*inputs)),
        tuple(torch.randn_like(value) for value in inputs),
    )
    wanted = twice(reference, inputs, dy, dots)
    over_reverse = directional(gradient_of(fused, dy), inputs, dots).detach()
    over_forward = flat(torch.autograd.grad(directional(fused, inputs, dots), inputs[:2], dy))
    actual = (twice(fused, inputs, dy, dots), over_reverse, over_forward)
    return all(relative(each, wanted) < 1e-10 for each in actual)


def twice(function: object, inputs: Inputs, dy: Tensor, v: Inputs) -> Tensor:
    """The Hessian of ⟨function, dy⟩ in x and weight times v, by two backward passes."""
    first = torch.autograd.grad(function(*inputs), inputs[:2], dy, create_graph=True)
    return flat(torch.autograd.grad(first, inputs[:2], v[:2]))
