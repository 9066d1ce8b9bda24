"""Checkpoints written beside the steps: these go on as soon as the state is copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from l2i.batch import Params
from l2i.errors import NonFiniteCost
from l2i.training.checkpoint import KEEP, save_checkpoint
from l2i.training.meter import check_finite

Task = Callable[[], None]


def nothing() -> None:
    """Nothing is to be done first."""


class Saver:
    """Writes one after another, in order. What goes wrong with one is raised when they are next spoken of."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="l2i checkpoints")
        self.under_way: deque[Future[None]] = deque()

    def save(
        self, folder: Path, step: int, tensors: Params, meta: dict[str, Any], *, keep: int = KEEP, first: Task = nothing
    ) -> None:
        """Save the tensors as they are now, after what is to be on disk `first`; waits for the one before the last."""
        while len(self.under_way) > 1:
            self.under_way.popleft().result()
        device = next((t.device for t in tensors.values() if t.is_cuda), None)
        with nullcontext() if device is None else torch.cuda.device(device):
            copies = {name: t.detach().clone() for name, t in tensors.items() if not t.is_cuda}
            copies |= fetched({name: t.detach() for name, t in tensors.items() if t.is_cuda})
            there = None if device is None else torch.cuda.current_stream().record_event()

        def write() -> None:
            if there is not None:
                there.synchronize()
            check_good(step, copies)
            first()
            save_checkpoint(folder, step, copies, meta, keep=keep)

        self.under_way.append(self.thread.submit(write))

    def check(self) -> None:
        """Raise what went wrong, where that is known by now."""
        while self.under_way and self.under_way[0].done():
            self.under_way.popleft().result()

    def wait(self) -> None:
        """Until all is whole, and on disk."""
        while self.under_way:
            self.under_way.popleft().result()

    def close(self) -> None:
        self.thread.shutdown()


def check_good(step: int, copies: Params) -> None:
    """Raise where a state holds what is no number."""
    if "meter.first_bad" in copies:
        check_finite(copies["meter.first_bad"])
    for name, tensor in copies.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")


def fetched(tensors: Params) -> Params:
    """Copies of a GPU's tensors that are on their way: those of one kind travel in one piece, and nothing waits."""
    found: Params = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
        mine = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        piece = torch.cat([tensor.reshape(-1) for tensor in mine.values()]).to("cpu", non_blocking=True)
        parts = piece.split([tensor.numel() for tensor in mine.values()])
        found |= {name: part.view(mine[name].shape) for name, part in zip(mine, parts, strict=True)}
    return found
