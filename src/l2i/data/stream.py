"""Image files decoded ahead by worker processes and copied to the device while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from l2i.data.folders import Files
from l2i.errors import InputError

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WORKERS = min(8, CORES)
PREFETCH = 2  # batches a worker has ready
Item = Tensor | InputError  # an error travels as a value: raised in a worker, its message would be a traceback


class Stream:
    """The rows `rows(step)` of files, step by step; another step than the next starts the workers anew."""

    def __init__(
        self,
        files: Files,
        rows: Callable[[int], Tensor],
        *,
        device: torch.device,
        steps: int,
        workers: int = WORKERS,
    ) -> None:
        self.batches = Decoded(files, rows)
        self.device, self.steps, self.workers = device, steps, workers
        self.step = 0
        self.items: Iterator[Item] | None = None

    def __call__(self, step: int) -> Tensor:
        """The step's images on the device, uint8 [B, 3, S, S]."""
        assert 0 <= step < self.steps
        if self.items is None or step != self.step:
            self.close()  # before the new workers start, so that there are never twice as many
            self.items = moved(self.loader(step), self.device)
        self.step = step + 1
        item = next(self.items)
        if isinstance(item, InputError):
            self.close()
            raise item
        return item

    def loader(self, start: int) -> DataLoader[Item]:
        workers = min(self.workers, CORES, self.steps - start)
        return DataLoader(
            self.batches,
            batch_size=None,
            sampler=range(start, self.steps),
            num_workers=workers,
            prefetch_factor=PREFETCH if workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=leave_group,
            generator=torch.Generator(),  # of its own: a draw from the global one would move the run's
        )

    def close(self) -> None:
        """Ends the workers; the stream may be asked for a step again."""
        self.items = None  # the iterator's last reference: it joins its workers as it goes


class Decoded(Dataset[Item]):
    """The batch of each step, decoded where it is asked for."""

    def __init__(self, files: Files, rows: Callable[[int], Tensor]) -> None:
        self.files, self.rows = files, rows

    def __getitem__(self, step: int) -> Item:
        try:
            return self.files.read(self.rows(step))
        except InputError as error:
            return error


def leave_group(_: int) -> None:
    """Ctrl-C and signals to the whole group are the run's to answer: it saves its state, then ends its workers."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()


def moved(items: Iterable[Item], device: torch.device) -> Iterator[Item]:
    """Items on the device; with CUDA each is copied on a stream of its own while the one before is in use."""
    if device.type != "cuda":
        yield from items
        return
    side = torch.cuda.Stream(device)
    copies = (copied(item, device, side) for item in items)
    ahead = next(copies, None)
    while ahead is not None:
        item, done = ahead
        ahead = next(copies, None)
        yield received(item, done, device)


def copied(item: Item, device: torch.device, side: torch.cuda.Stream) -> tuple[Item, torch.cuda.Event]:
    """A copy under way from pinned memory, and the event of its end."""
    with torch.cuda.stream(side):
        copy = item.to(device, non_blocking=True) if isinstance(item, Tensor) else item
        return copy, side.record_event()


def received(item: Item, done: torch.cuda.Event, device: torch.device) -> Item:
    """The copy, for use on the current stream: its work waits for the copy, and its memory for that work."""
    current = torch.cuda.current_stream(device)
    current.wait_event(done)
    if isinstance(item, Tensor):
        item.record_stream(current)
    return item


@dataclass(frozen=True)
class Chunks:
    """The rows of each chunk of `size`, in order."""

    count: int
    size: int

    def __call__(self, step: int) -> Tensor:
        return torch.arange(step * self.size, min((step + 1) * self.size, self.count))


def batches(files: Files, size: int, *, device: torch.device, workers: int = WORKERS) -> Iterator[Tensor]:
    """All rows in order, `size` at a time."""
    steps = -(-len(files) // size)
    stream = Stream(files, Chunks(len(files), size), device=device, steps=steps, workers=workers)
    try:
        for step in range(steps):
            yield stream(step)
    finally:
        stream.close()
