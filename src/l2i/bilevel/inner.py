"""The inner problem: Φ at other parameters, C^T + C^U as their function, opt-SGD (eq. opt1a, Algorithm 1 line 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from l2i.batch import Imputed, Net, Params, Student


def trainable(model: nn.Module) -> Params:
    """θ: the named parameters that take gradients."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def detached(params: Params) -> Params:
    """The same values, cut off from any graph."""
    return {name: p.detach() for name, p in params.items()}


def lookahead(model: nn.Module, params: Params) -> Net:
    """Φ at `params`; nothing of `model` itself moves."""

    def net(x: Tensor) -> Tensor:
        # cloned: the look-ahead must not move running statistics
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return functional_call(model, {**params, **buffers}, (x,))  # type: ignore[no-any-return]

    return net


def gradient(cost: Callable[[Params], Tensor], params: Params, wrt: Iterable[str] | None = None) -> Params:
    """∇ of `cost` at `params`, in the coordinates `wrt` (all of them by default)."""
    names = list(params if wrt is None else wrt)
    leaves = detached(params)
    for name in names:
        leaves[name].requires_grad_()
    with torch.enable_grad():
        value = cost(leaves)
        grads = torch.autograd.grad(value, [leaves[n] for n in names], materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def inner_step(
    cost: Callable[[Params], Tensor], params: Params, *, eta: float, wrt: Iterable[str] | None = None
) -> Params:
    """θ* = θ − η ∇C(θ), for the parameters in `wrt`; the others stay."""
    grads = gradient(cost, params, wrt)
    return {**detached(params), **{name: params[name].detach() - eta * g for name, g in grads.items()}}


@dataclass(frozen=True)
class Inner:
    """The inner cost C(θ, z) with z fixed: the student's cost, and C^T where it takes part."""

    model: nn.Module
    student: Student
    imputed: Imputed
    c_t: Callable[[Net], Tensor] | None = None

    def outputs(self, params: Params) -> Tensor:
        """The student's outputs f as a function of θ, for forward mode: no graph is kept."""
        with self.replayed(params), torch.no_grad():
            return lookahead(self.model, params)(self.student.inputs)

    def cost(self, params: Params) -> Tensor:
        net = lookahead(self.model, params)
        with self.replayed(params):
            cost = self.student.evaluate(net, self.imputed)
            return cost if self.c_t is None else cost + self.c_t(net)

    def held_cost(self, c_h: Callable[[Net], Tensor], params: Params) -> Tensor:
        """C^H at `params`."""
        with self.replayed(params):
            return c_h(lookahead(self.model, params))

    @staticmethod
    def replayed(params: Params) -> AbstractContextManager[None]:
        """Every forward of the inner problem sees the same dropout masks: leaving the fork rewinds the generator."""
        devices = {p.device for p in params.values() if p.device.type == "cuda"}
        return torch.random.fork_rng(sorted(devices, key=str))
