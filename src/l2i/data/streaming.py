"""Image files decoded ahead by worker processes and copied to the device while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from l2i.data.image_files import ImageFiles
from l2i.errors import InputError

NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
DEFAULT_WORKERS = min(8, NUM_CORES)
PREFETCH_BATCHES = 2  # batches a worker has ready
BatchOrError = Tensor | InputError  # an error travels as a value: raised in a worker, its message would be a traceback


class ImageStream:
    """The rows `rows(step)` of files, step by step; another step than the next starts the workers anew."""

    def __init__(
        self,
        files: ImageFiles,
        rows: Callable[[int], Tensor],
        *,
        device: torch.device,
        steps: int,
        workers: int = DEFAULT_WORKERS,
    ) -> None:
        self.dataset = DecodedBatches(files, rows)
        self.device, self.steps, self.workers = device, steps, workers
        self.next_step = 0
        self.items: Iterator[BatchOrError] | None = None

    def __call__(self, step: int) -> Tensor:
        """The step's images on the device, uint8 [B, 3, S, S]."""
        assert 0 <= step < self.steps
        if self.items is None or step != self.next_step:
            self.close()  # before the new workers start, so that there are never twice as many
            self.items = prefetch_to_device(self.make_loader(step), self.device)
        self.next_step = step + 1
        item = next(self.items)
        if isinstance(item, InputError):
            self.close()
            raise item
        return item

    def make_loader(self, start: int) -> DataLoader[BatchOrError]:
        workers = min(self.workers, NUM_CORES, self.steps - start)
        return DataLoader(
            self.dataset,
            batch_size=None,
            sampler=range(start, self.steps),
            num_workers=workers,
            prefetch_factor=PREFETCH_BATCHES if workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=detach_from_signals,
            generator=torch.Generator(),  # of its own: a draw from the global one would move the run's
        )

    def close(self) -> None:
        """Ends the workers; the stream may be asked for a step again."""
        self.items = None  # the iterator's last reference: it joins its workers as it goes


class DecodedBatches(Dataset[BatchOrError]):
    """The batch of each step, decoded where it is asked for."""

    def __init__(self, files: ImageFiles, rows: Callable[[int], Tensor]) -> None:
        self.files, self.rows = files, rows

    def __getitem__(self, step: int) -> BatchOrError:
        try:
            return self.files.read(self.rows(step))
        except InputError as error:
            return error


def detach_from_signals(_: int) -> None:
    """Ctrl-C and signals to the whole group are the run's to answer: it saves its state, then ends its workers."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()


def prefetch_to_device(items: Iterable[BatchOrError], device: torch.device) -> Iterator[BatchOrError]:
    """Items on the device; with CUDA each is copied on a stream of its own while the one before is in use."""
    if device.type != "cuda":
        yield from items
        return
    copy_stream = torch.cuda.Stream(device)
    copies = (start_copy(item, device, copy_stream) for item in items)
    pending = next(copies, None)
    while pending is not None:
        item, copy_event = pending
        pending = next(copies, None)
        yield wait_for_copy(item, copy_event, device)


def start_copy(item: BatchOrError, device: torch.device, copy_stream: torch.cuda.Stream) -> tuple[BatchOrError, torch.cuda.Event]:
    """A copy under way from pinned memory, and the event of its end."""
    with torch.cuda.stream(copy_stream):
        copy = item.to(device, non_blocking=True) if isinstance(item, Tensor) else item
        return copy, copy_stream.record_event()


def wait_for_copy(item: BatchOrError, copy_event: torch.cuda.Event, device: torch.device) -> BatchOrError:
    """The copy, for use on the current stream: its work waits for the copy, and its memory for that work."""
    current = torch.cuda.current_stream(device)
    current.wait_event(copy_event)
    if isinstance(item, Tensor):
        item.record_stream(current)
    return item


@dataclass(frozen=True)
class ChunkRows:
    """The rows of each chunk of `size`, in order."""

    count: int
    size: int

    def __call__(self, step: int) -> Tensor:
        return torch.arange(step * self.size, min((step + 1) * self.size, self.count))


def iter_batches(files: ImageFiles, size: int, *, device: torch.device, workers: int = DEFAULT_WORKERS) -> Iterator[Tensor]:
    """All rows in order, `size` at a time."""
    steps = -(-len(files) // size)
    stream = ImageStream(files, ChunkRows(len(files), size), device=device, steps=steps, workers=workers)
    try:
        for step in range(steps):
            yield stream(step)
    finally:
        stream.close()
