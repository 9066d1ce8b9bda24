"""BatchNorm's running statistics, where two forwards of a step move them side by side (see docs/performance.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import torch
from torch import Tensor, nn

from l2i.batch import Params
from l2i.bilevel.inner import leaves, moving_layers, standing_in
from l2i.bilevel.outer import added
from l2i.ranks import ALONE, Ranks


class Moving:
    """Φ at θ in forwards that move its statistics, once they are settled; each has leaves of its own, for its lane."""

    def __init__(self, statistics: Statistics, params: Params) -> None:
        self.statistics, self.params = statistics, params
        self.passes: list[Params] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.passes.append(leaves(self.params))
        with standing_in(self.statistics.model, self.passes[-1]), self.statistics.away():
            return self.statistics.model(x)  # type: ignore[no-any-return]

    def gradient(self, cost: Tensor) -> Params:
        """∇ of a cost that some of the forwards led to."""
        grads = iter(torch.autograd.grad(cost, [p for theta in self.passes for p in theta.values()], allow_unused=True))
        found = [{name: next(grads) for name in theta} for theta in self.passes]
        used = [part for part in found if any(g is not None for g in part.values())]
        parts = [{n: torch.zeros_like(self.params[n]) if g is None else g for n, g in part.items()} for part in used]
        return reduce(added, parts)


class Statistics:
    """Each forward moves statistics of its own, from nothing; then the model's take the moves one after the other.

    With r ← (1 − m) r + m b a forward, a move from nothing is m b, and the result is that of forwards in turn.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.layers = model, moving_layers(model)
        self.apart = False
        """Whether forwards move them side by side, which `watch` finds out; until then they are moved in turn."""
        self.moves: list[list[Tensor]] = []
        self.moved: list[str] = []
        """Buffers that are not these layers' and that a forward moves."""

    def watch(self, forward: Callable[[], object]) -> None:
        """Look at a forward: side by side is for BatchNorm with a momentum, used once, where nothing else moves."""
        calls: Counter[int] = Counter()
        hooks = [layer.register_forward_pre_hook(lambda m, _: calls.update([id(m)])) for layer in self.layers]
        seen: list[dict[str, tuple[Tensor, int]]] = []  # before and after
        hooks.append(self.model.register_forward_pre_hook(lambda m, _: seen.append(self.others())))
        hooks.append(self.model.register_forward_hook(lambda *_: seen.append(self.others())))
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()
        once = all(calls[id(layer)] == 1 and layer.momentum is not None for layer in self.layers)
        before, after = seen[0], seen[-1]
        self.moved = [n for n in before if before[n][0] is not after[n][0] or before[n][1] != after[n][1]]
        self.apart = once and not self.moved

    def others(self) -> dict[str, tuple[Tensor, int]]:
        """Buffers that are not these layers', such as positions of words, each with how often it was written to."""
        mine = {id(b) for layer in self.layers for b in layer.buffers()}
        return {name: (b, b._version) for name, b in self.model.named_buffers() if id(b) not in mine}

    @contextmanager
    def away(self) -> Iterator[None]:
        """Statistics in a place of their own."""
        if not self.apart or not self.layers:
            yield
            return
        own = [dict(layer._buffers) for layer in self.layers]
        running = self.running()
        sizes = [len(r) for r in running]
        move = list(torch.zeros(sum(sizes), device=running[0].device, dtype=running[0].dtype).split(sizes))
        for layer, mean, var in zip(self.layers, move[::2], move[1::2], strict=True):
            layer._buffers.update(running_mean=mean, running_var=var, num_batches_tracked=None)
        self.moves.append(move)
        try:
            yield
        finally:
            for layer, buffers in zip(self.layers, own, strict=True):
                layer._buffers.update(buffers)

    def running(self) -> list[Tensor]:
        """The model's own, mean and variance of each layer in turn."""
        found = [(layer.running_mean, layer.running_var) for layer in self.layers]
        return [r for pair in found for r in pair if r is not None]

    @torch.no_grad()
    def settle(self, ranks: Ranks = ALONE) -> None:
        """Take the moves in; what moved otherwise is averaged over the processes."""
        left = [1 - float(layer.momentum or 0) for layer in self.layers for _ in range(2)]
        for move in self.moves:
            torch._foreach_mul_(self.running(), left)
            torch._foreach_add_(self.running(), move)
        counts = [layer.num_batches_tracked for layer in self.layers if layer.num_batches_tracked is not None]
        if counts and self.moves:
            torch._foreach_add_(counts, len(self.moves))
        self.moves.clear()
        if ranks.group is not None:
            own = {name: self.model.get_buffer(name) for name in self.moved}
            for name, mean in ranks.mean_of({n: b for n, b in own.items() if b.is_floating_point()}).items():
                own[name].copy_(mean)
