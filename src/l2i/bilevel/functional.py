"""The inner problem: Φ at other parameters, C^T + C^U as their function, opt-SGD (eq. opt1a, Algorithm 1 line 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.problem import Imputed, Net, Params, Student
from l2i.distributed import current_group
from l2i.errors import InputError

KNOWN_BATCHNORM = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def trainable(model: nn.Module) -> Params:
    """θ: the named parameters that take gradients."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def detach_params(params: Params) -> Params:
    """The same values, cut off from any graph."""
    return {name: p.detach() for name, p in params.items()}


def make_leaf_params(params: Params) -> Params:
    """The same values, as tensors that take gradients of their own."""
    return {name: p.detach().requires_grad_() for name, p in params.items()}


def lookahead(model: nn.Module, params: Params) -> Net:
    """Φ at `params`; nothing of `model` itself moves."""

    def net(x: Tensor) -> Tensor:
        with swap_parameters(model, params), freeze_buffers(model):
            return model(x)  # type: ignore[no-any-return]

    return net


@contextmanager
def swap_parameters(model: nn.Module, params: Params) -> Iterator[None]:
    """`params` in the places of the model's own, as `torch.func.functional_call` has it but a tenth of its cost."""
    unknown = params.keys() - dict(model.named_parameters())
    if unknown:
        raise InputError(
            f"{type(model).__name__} has no parameter '{min(unknown)}'; name those of model.named_parameters()"
        )
    replaced: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter | None]] = []
    names = {id(p): name for name, p in model.named_parameters()}
    for module in model.modules():
        for key, original in module._parameters.items():
            replacement = None if original is None else params.get(names[id(original)])
            if replacement is not None and replacement is not original:
                replaced.append((module._parameters, key, original))
                module._parameters[key] = replacement  # type: ignore[assignment]
    try:
        yield
    finally:
        for param_dict, key, original in replaced:
            param_dict[key] = original


@contextmanager
def freeze_buffers(model: nn.Module) -> Iterator[None]:
    """A forward of `model` that moves none of its buffers: statistics in training need no past, others are copied."""
    layers = trainable_batchnorms(model)
    layer_ids = {id(layer) for layer in layers}
    other_buffers = [(m._buffers, key, b) for m in model.modules() if id(m) not in layer_ids for key, b in m._buffers.items()]
    for layer in layers:
        layer.track_running_stats = False
    for buffer_dict, key, buffer in other_buffers:
        buffer_dict[key] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
        for buffer_dict, key, buffer in other_buffers:
            buffer_dict[key] = buffer


def trainable_batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """BatchNorm in training, of the kinds that are known to leave their statistics where they do not track them."""
    return [
        m
        for m in model.modules()
        if isinstance(m, _BatchNorm)
        and (type(m).forward in KNOWN_BATCHNORM or getattr(m, "moves_where_tracked", False))
        and m.training
        and m.track_running_stats
    ]


def gradient(cost: Callable[[Params], Tensor], params: Params, wrt: Iterable[str] | None = None) -> Params:
    """∇ of `cost` at `params`, in the coordinates `wrt` (all of them by default)."""
    names = list(params if wrt is None else wrt)
    theta = detach_params(params)
    for name in names:
        theta[name].requires_grad_()
    with torch.enable_grad():
        value = cost(theta)
        grads = torch.autograd.grad(value, [theta[n] for n in names], materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def compute_mean_gradient(cost: Callable[[Params], Tensor], params: Params, wrt: Iterable[str] | None = None) -> Params:
    """∇ of the mean cost of all processes, where several share the batch."""
    return current_group().average_tensors(gradient(cost, params, wrt))


def inner_step(
    cost: Callable[[Params], Tensor], params: Params, *, eta: float | Tensor, wrt: Iterable[str] | None = None
) -> Params:
    """θ* = θ − η ∇C(θ), for the parameters in `wrt`; the others stay."""
    grads = compute_mean_gradient(cost, params, wrt)
    return {**detach_params(params), **{name: params[name].detach() - eta * g for name, g in grads.items()}}


@dataclass(frozen=True)
class InnerProblem:
    """The inner cost C(θ, z) with z fixed: the student's cost, and C^T where it takes part."""

    model: nn.Module
    student: Student
    imputed: Imputed
    c_t: Callable[[Net], Tensor] | None = None
    repeats_forward: bool = True
    """Whether samples are passed more than once, and have to meet the same dropout masks each time."""

    def compute_outputs(self, params: Params) -> Tensor:
        """The student's outputs f as a function of θ, for forward mode: no graph is kept."""
        with self.replay_rng(params), torch.no_grad():
            return lookahead(self.model, params)(self.student.inputs)

    def compute_cost(self, params: Params) -> Tensor:
        net = lookahead(self.model, params)
        with self.replay_rng(params):
            cost = self.student.cost_of(net, self.imputed)
            return cost if self.c_t is None else cost + self.c_t(net)

    def holdout_cost(self, c_h: Callable[[Net], Tensor], params: Params) -> Tensor:
        """C^H at `params`."""
        with self.replay_rng(params):
            return c_h(lookahead(self.model, params))

    def replay_rng(self, params: Params) -> AbstractContextManager[None]:
        """Every forward of the inner problem sees the same dropout masks: leaving the fork rewinds the generator."""
        devices = {p.device for p in params.values() if p.device.type == "cuda"}
        if not self.repeats_forward or (devices and torch.cuda.is_current_stream_capturing()):
            return nullcontext()  # where passes repeat, only networks that draw nothing are recorded
        return torch.random.fork_rng(sorted(devices, key=str))
