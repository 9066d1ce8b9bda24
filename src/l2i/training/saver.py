"""Checkpoints written beside the steps: these go on as soon as the state is copied."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from l2i.batch import Params
from l2i.errors import NonFiniteCost
from l2i.training.checkpoint import save_checkpoint
from l2i.training.meter import check_finite


class Saver:
    """One checkpoint at a time. What goes wrong with one is raised when it is next spoken of."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="l2i checkpoints")
        self.under_way: Future[None] | None = None

    def save(self, step: int, tensors: Params, meta: dict[str, Any], *, first: Callable[[], None]) -> None:
        """Save the state as it is now, after what is to be on disk `first`; waits for the checkpoint before alone."""
        self.wait()
        copies = {name: t.detach().clone() for name, t in tensors.items() if not t.is_cuda}
        copies |= fetched({name: t.detach() for name, t in tensors.items() if t.is_cuda})
        there = torch.cuda.Event() if any(t.is_cuda for t in tensors.values()) else None
        if there is not None:
            there.record()
        self.under_way = self.thread.submit(self.written, step, copies, there, meta, first)

    def written(
        self, step: int, copies: Params, there: torch.cuda.Event | None, meta: dict[str, Any], first: Callable[[], None]
    ) -> None:
        """Write a state that is known to be good."""
        if there is not None:
            there.synchronize()
        check_finite(copies["meter.first_bad"])
        for name, tensor in copies.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")
        first()
        save_checkpoint(self.folder, step, copies, meta, keep=self.keep)

    def check(self) -> None:
        """Raise what went wrong, where that is known by now."""
        if self.under_way is not None and self.under_way.done():
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is whole, and on disk."""
        pending, self.under_way = self.under_way, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self.thread.shutdown()


def fetched(tensors: Params) -> Params:
    """Copies of a GPU's tensors that are on their way: those of one kind travel in one piece, and nothing waits."""
    found: Params = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
        mine = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        piece = torch.cat([tensor.reshape(-1) for tensor in mine.values()]).to("cpu", non_blocking=True)
        parts = piece.split([tensor.numel() for tensor in mine.values()])
        found |= {name: part.view(mine[name].shape) for name, part in zip(mine, parts, strict=True)}
    return found
