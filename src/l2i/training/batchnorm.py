"""BatchNorm's running statistics, where two forwards of a step move them side by side (see docs/performance.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import make_leaf_params, swap_parameters, trainable_batchnorms
from l2i.bilevel.outer import add_gradients
from l2i.bilevel.problem import Params
from l2i.distributed import SINGLE_PROCESS, ProcessGroup


class TrainingNet:
    """Φ at θ in forwards that move its statistics, once they are settled; each has leaves of its own, for its lane."""

    def __init__(self, batchnorm: DeferredBatchNorm, params: Params) -> None:
        self.batchnorm, self.params = batchnorm, params
        self.passes: list[Params] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.passes.append(make_leaf_params(self.params))
        with swap_parameters(self.batchnorm.model, self.passes[-1]), self.batchnorm.redirect():
            return self.batchnorm.model(x)  # type: ignore[no-any-return]

    def gradient(self, cost: Tensor) -> Params:
        """∇ of a cost that some of the forwards led to."""
        grads = iter(torch.autograd.grad(cost, [p for theta in self.passes for p in theta.values()], allow_unused=True))
        grads_by_pass = [{name: next(grads) for name in theta} for theta in self.passes]
        used = [part for part in grads_by_pass if any(g is not None for g in part.values())]
        parts = [{n: torch.zeros_like(self.params[n]) if g is None else g for n, g in part.items()} for part in used]
        return reduce(add_gradients, parts)


class DeferredBatchNorm:
    """Each forward moves statistics of its own, from nothing; then the model's take the moves one after the other.

    With r ← (1 − m) r + m b a forward, a move from nothing is m b, and the result is that of forwards in turn.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.layers = model, trainable_batchnorms(model)
        self.concurrent = False
        """Whether forwards move them side by side, which `watch` finds out; until then they are moved in turn."""
        self.pending_updates: list[list[Tensor]] = []
        self.unknown_buffers: list[str] = []
        """Buffers that are not these layers' and that a forward moves."""

    def inspect_forward(self, forward: Callable[[], object]) -> None:
        """Look at a forward: side by side is for BatchNorm with a momentum, used once, where nothing else moves."""
        calls: Counter[int] = Counter()
        hooks = [layer.register_forward_pre_hook(lambda m, _: calls.update([id(m)])) for layer in self.layers]
        snapshots: list[dict[str, tuple[Tensor, int]]] = []  # before and after
        hooks.append(self.model.register_forward_pre_hook(lambda m, _: snapshots.append(self.foreign_buffers())))
        hooks.append(self.model.register_forward_hook(lambda *_: snapshots.append(self.foreign_buffers())))
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()
        used_once = all(calls[id(layer)] == 1 and layer.momentum is not None for layer in self.layers)
        before, after = snapshots[0], snapshots[-1]
        self.unknown_buffers = [n for n in before if before[n][0] is not after[n][0] or before[n][1] != after[n][1]]
        self.concurrent = used_once and not self.unknown_buffers

    def foreign_buffers(self) -> dict[str, tuple[Tensor, int]]:
        """Buffers that are not these layers', such as positions of words, each with how often it was written to."""
        known_ids = {id(b) for layer in self.layers for b in layer.buffers()}
        return {name: (b, b._version) for name, b in self.model.named_buffers() if id(b) not in known_ids}

    @contextmanager
    def redirect(self) -> Iterator[None]:
        """Statistics in a place of their own."""
        if not self.concurrent or not self.layers:
            yield
            return
        original_buffers = [dict(layer._buffers) for layer in self.layers]
        running = self.get_running_stats()
        sizes = [len(r) for r in running]
        update = list(torch.zeros(sum(sizes), device=running[0].device, dtype=running[0].dtype).split(sizes))
        for layer, mean, var in zip(self.layers, update[::2], update[1::2], strict=True):
            layer._buffers.update(running_mean=mean, running_var=var, num_batches_tracked=None)
        self.pending_updates.append(update)
        try:
            yield
        finally:
            for layer, buffers in zip(self.layers, original_buffers, strict=True):
                layer._buffers.update(buffers)

    def get_running_stats(self) -> list[Tensor]:
        """The model's own, mean and variance of each layer in turn."""
        stats = [(layer.running_mean, layer.running_var) for layer in self.layers]
        return [r for pair in stats for r in pair if r is not None]

    @torch.no_grad()
    def apply_updates(self, ranks: ProcessGroup = SINGLE_PROCESS) -> None:
        """Take the moves in; what moved otherwise is averaged over the processes."""
        keep_factors = [1 - float(layer.momentum or 0) for layer in self.layers for _ in range(2)]
        for update in self.pending_updates:
            torch._foreach_mul_(self.get_running_stats(), keep_factors)
            torch._foreach_add_(self.get_running_stats(), update)
        batch_counts = [layer.num_batches_tracked for layer in self.layers if layer.num_batches_tracked is not None]
        if batch_counts and self.pending_updates:
            torch._foreach_add_(batch_counts, len(self.pending_updates))
        self.pending_updates.clear()
        if ranks.device_group is not None:
            buffers = {name: self.model.get_buffer(name) for name in self.unknown_buffers}
            for name, mean in ranks.average_tensors({n: b for n, b in buffers.items() if b.is_floating_point()}).items():
                buffers[name].copy_(mean)
