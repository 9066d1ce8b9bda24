"""BatchNorm's running statistics when forwards of a step run concurrently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import (
    Params,
    find_tracking_batchnorms,
    make_leaf_params,
    swap_parameters,
)
from l2i.bilevel.outer import add_gradients
from l2i.distributed import current_group


class TrainingNet:
    """Φ at θ, with forwards that update the running statistics through `DeferredBatchNorm`.

    Every forward has leaves of its own, so that its backward can run on its own stream; or all have
    `shared_leaves`, and keep their graph for another gradient.
    """

    def __init__(
        self, batchnorm: DeferredBatchNorm, params: Params, shared_leaves: Params | None = None
    ) -> None:
        self.batchnorm, self.params, self.shared_leaves = batchnorm, params, shared_leaves
        self.passes: list[Params] = [] if shared_leaves is None else [shared_leaves]

    def __call__(self, x: Tensor) -> Tensor:
        if self.shared_leaves is None:
            self.passes.append(make_leaf_params(self.params))
        with swap_parameters(self.batchnorm.model, self.passes[-1]), self.batchnorm.redirect():
            return self.batchnorm.model(x)  # type: ignore[no-any-return]

    def gradient(self, cost: Tensor) -> Params:
        """Return the gradient of a cost that some of the forwards led to."""
        leaves = [p for theta in self.passes for p in theta.values()]
        is_shared = self.shared_leaves is not None
        grads = iter(torch.autograd.grad(cost, leaves, allow_unused=True, retain_graph=is_shared))
        grads_by_pass = [{name: next(grads) for name in theta} for theta in self.passes]
        parts = [
            {n: torch.zeros_like(self.params[n]) if g is None else g for n, g in part.items()}
            for part in grads_by_pass
            if any(g is not None for g in part.values())
        ]
        return reduce(add_gradients, parts)


class DeferredBatchNorm:
    """Collect the updates of running statistics from zero, and apply them one after the other.

    A forward does r ← (1 − m) r + m b, so from zero it leaves m b, and the result is the same as
    that of forwards in sequence.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.layers = model, find_tracking_batchnorms(model)
        self.concurrent = False
        """Whether updates are deferred; `inspect_forward` decides."""
        self.pending_updates: list[list[Tensor]] = []
        self.unknown_buffers: list[str] = []
        """Buffers of other layers that a forward changes."""

    def inspect_forward(self, forward: Callable[[], object]) -> None:
        """Defer updates if a forward uses every BatchNorm once and changes no other buffer."""
        calls: Counter[int] = Counter()
        snapshots: list[dict[str, tuple[Tensor, int]]] = []  # before and after
        hooks = [
            self.model.register_forward_pre_hook(lambda *_: snapshots.append(self._snapshot())),
            self.model.register_forward_hook(lambda *_: snapshots.append(self._snapshot())),
        ]
        for layer in self.layers:
            hooks.append(layer.register_forward_pre_hook(lambda m, _: calls.update([id(m)])))
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()
        before, after = snapshots[0], snapshots[-1]
        self.unknown_buffers = [
            n for n in before if before[n][0] is not after[n][0] or before[n][1] != after[n][1]
        ]
        deferrable = all(calls[id(la)] == 1 and la.momentum is not None for la in self.layers)
        self.concurrent = deferrable and not self.unknown_buffers

    def _snapshot(self) -> dict[str, tuple[Tensor, int]]:
        """Return the buffers of other layers, such as token positions, with their versions."""
        own_ids = {id(b) for layer in self.layers for b in layer.buffers()}
        buffers = self.model.named_buffers()
        return {name: (b, b._version) for name, b in buffers if id(b) not in own_ids}

    @contextmanager
    def redirect(self) -> Iterator[None]:
        """Let a forward write its statistics to a pending update, if updates are deferred."""
        if not self.concurrent or not self.layers:
            yield
            return
        original_buffers = [dict(layer._buffers) for layer in self.layers]
        running = self._get_running_stats()
        sizes = [len(r) for r in running]
        update = list(running[0].new_zeros(sum(sizes)).split(sizes))
        for layer, mean, var in zip(self.layers, update[::2], update[1::2], strict=True):
            layer._buffers.update(running_mean=mean, running_var=var, num_batches_tracked=None)
        self.pending_updates.append(update)
        try:
            yield
        finally:
            for layer, buffers in zip(self.layers, original_buffers, strict=True):
                layer._buffers.update(buffers)

    def _get_running_stats(self) -> list[Tensor]:
        """Return mean and variance of every layer in turn."""
        stats = [(layer.running_mean, layer.running_var) for layer in self.layers]
        return [r for pair in stats for r in pair if r is not None]

    @torch.no_grad()
    def apply_updates(self) -> None:
        """Apply pending updates, and average the other changed buffers over the processes."""
        keep_factors = [1 - float(layer.momentum or 0) for layer in self.layers for _ in range(2)]
        for update in self.pending_updates:
            torch._foreach_mul_(self._get_running_stats(), keep_factors)
            torch._foreach_add_(self._get_running_stats(), update)
        counts = [layer.num_batches_tracked for layer in self.layers]
        batch_counts = [count for count in counts if count is not None]
        if batch_counts and self.pending_updates:
            torch._foreach_add_(batch_counts, len(self.pending_updates))
        self.pending_updates.clear()
        if current_group().size > 1:
            buffers = {name: self.model.get_buffer(name) for name in self.unknown_buffers}
            floats = {name: b for name, b in buffers.items() if b.is_floating_point()}
            for name, mean in current_group().average_tensors(floats).items():
                buffers[name].copy_(mean)
