"""CUDA streams within a captured step: its independent parts run concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

StreamPlan = dict[str, int]  # name -> number; names with one number share a CUDA stream

SEPARATE_STREAMS: StreamPlan = {"impute": 0, "labeled": 1, "student": 2, "outer": 3, "holdout": 4}
"""A stream per part: the fastest, for networks with small activations."""

LAST_LAYER_STREAMS: StreamPlan = SEPARATE_STREAMS | {"outer": 0, "holdout": 0}
"""Parts on one stream run in sequence and share its memory: the last-layer outer step takes little
more than the base step."""

FULL_NETWORK_STREAMS: StreamPlan = SEPARATE_STREAMS | {"outer": 1, "holdout": 2}
"""For outer steps with two backwards of their own, in the memory that the base step has freed."""

SMALL_ACTIVATION_BYTES = 64 * 2**20  # held for the backward of the labelled samples


def choose_stream_plan(*, activation_bytes: int, last_layer: bool) -> StreamPlan:
    """Choose a plan for a network that holds so many bytes for its backward."""
    if activation_bytes < SMALL_ACTIVATION_BYTES:
        return SEPARATE_STREAMS
    return LAST_LAYER_STREAMS if last_layer else FULL_NETWORK_STREAMS


class StreamSchedule:
    """Sequential fallback: entering a stream has no effect."""

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        """Run the block on a stream, after the surrounding code so far and the streams `after`."""
        yield

    def wait(self, name: str) -> None:
        """Let the current stream wait for a stream."""

    def join(self) -> None:
        """Wait for all streams."""

    def hold(self, *objects: object) -> None:
        """Keep what crosses from one stream to another alive until they join."""


SEQUENTIAL = StreamSchedule()


class CudaStreams(StreamSchedule):
    """CUDA streams for a step that is being captured: the branches of its graph run concurrently.

    Memory freed on a stream can be reused there at once, while another stream still reads it: hence
    `hold`.
    """

    def __init__(self, device: torch.device, plan: StreamPlan) -> None:
        streams_by_number = {number: torch.cuda.Stream(device) for number in plan.values()}
        self.streams = {name: streams_by_number[number] for name, number in plan.items()}
        self.active: set[str] = set()
        self.retained: list[object] = []

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        stream = self.streams[name]
        stream.wait_stream(torch.cuda.current_stream())
        self.active.add(name)
        with torch.cuda.stream(stream):
            for other in after:
                self.wait(other)
            yield

    def wait(self, name: str) -> None:
        if name in self.active:
            torch.cuda.current_stream().wait_stream(self.streams[name])

    def join(self) -> None:
        for name in sorted(self.active):
            self.wait(name)
        self.active.clear()
        self.retained.clear()

    def hold(self, *objects: object) -> None:
        self.retained += objects
