"""Image files decoded ahead by worker processes and copied to the device while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from l2i.errors import InputError
from l2i.files.images import ImageFiles

NUM_CORES = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)
PREFETCH_BATCHES = 2  # per worker
# an error travels as a value: raised in a worker, its message would be a traceback
BatchOrError = Tensor | InputError
RowsByStep = Callable[[int], Tensor]


class ImageStream:
    """The rows `rows(step)` of files, step by step; a jump to another step restarts the workers."""

    def __init__(
        self, files: ImageFiles, rows: RowsByStep, *, device: torch.device, steps: int, workers: int
    ) -> None:
        self.dataset = DecodedBatches(files, rows)
        self.device, self.steps, self.workers = device, steps, workers
        self.next_step = 0
        self.items: Iterator[BatchOrError] | None = None

    def __call__(self, step: int) -> Tensor:
        """Return the images of a step on the device, uint8 [B, 3, S, S]."""
        assert 0 <= step < self.steps
        if self.items is None or step != self.next_step:
            self.close()  # before the new workers start, so that there are never twice as many
            self.items = _prefetch(self._make_loader(step), self.device)
        self.next_step = step + 1
        item = next(self.items)
        if isinstance(item, InputError):
            self.close()
            raise item
        return item

    def _make_loader(self, start: int) -> DataLoader[BatchOrError]:
        workers = min(self.workers, NUM_CORES, self.steps - start)
        return DataLoader(
            self.dataset,
            batch_size=None,
            sampler=range(start, self.steps),
            num_workers=workers,
            prefetch_factor=PREFETCH_BATCHES if workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_detach_from_signals,
            generator=torch.Generator(),  # its own: a draw from the global one would move the run's
        )

    def close(self) -> None:
        """End the workers; a later call starts them again."""
        self.items = None  # the iterator's last reference: it joins its workers as it goes


class DecodedBatches(Dataset[BatchOrError]):
    """The batch of each step, decoded by whoever asks for it."""

    def __init__(self, files: ImageFiles, rows: RowsByStep) -> None:
        self.files, self.rows = files, rows

    def __getitem__(self, step: int) -> BatchOrError:
        try:
            return self.files.read(self.rows(step))
        except InputError as error:
            return error


def _detach_from_signals(_: int) -> None:
    """Leave Ctrl-C to the main process, which saves its state before it ends its workers."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()


def _prefetch(items: Iterable[BatchOrError], device: torch.device) -> Iterator[BatchOrError]:
    """Yield items on the device; with CUDA, copy the next one while the current one is in use."""
    if device.type != "cuda":
        yield from items
        return
    copy_stream = torch.cuda.Stream(device)

    def start_copy(item: BatchOrError) -> tuple[BatchOrError, torch.cuda.Event]:
        with torch.cuda.stream(copy_stream):
            copy = item.to(device, non_blocking=True) if isinstance(item, Tensor) else item
            return copy, copy_stream.record_event()

    copies = map(start_copy, items)
    pending = next(copies, None)
    while pending is not None:
        item, copy_event = pending
        pending = next(copies, None)
        # work on the current stream waits for the copy, and the copy's memory for that work
        current = torch.cuda.current_stream(device)
        current.wait_event(copy_event)
        if isinstance(item, Tensor):
            item.record_stream(current)
        yield item


@dataclass(frozen=True)
class ChunkRows:
    """The rows of each chunk of `size`, in order."""

    count: int
    size: int

    def __call__(self, step: int) -> Tensor:
        return torch.arange(step * self.size, min((step + 1) * self.size, self.count))


def iter_batches(
    files: ImageFiles, size: int, *, device: torch.device, workers: int
) -> Iterator[Tensor]:
    """Yield all rows in order, `size` at a time."""
    steps, rows = -(-len(files) // size), ChunkRows(len(files), size)
    stream = ImageStream(files, rows, device=device, steps=steps, workers=workers)
    try:
        yield from map(stream, range(steps))
    finally:
        stream.close()
