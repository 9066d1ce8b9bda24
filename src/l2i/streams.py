"""Parts of a step that do not wait for each other: each on a stream of its own while a step is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

StreamPlan = dict[str, int]  # lane -> the number of its stream

SEPARATE_STREAMS: StreamPlan = {"impute": 0, "labeled": 1, "student": 2, "outer": 3, "holdout": 4}
"""Each lane for itself: the fastest, for networks that hold little for their backward."""

LAST_LAYER_STREAMS: StreamPlan = {"impute": 0, "labeled": 1, "student": 2, "outer": 0, "holdout": 0}
"""Lanes on one stream go in turn and share its memory: the last-layer outer step takes little more than the base."""

FULL_NETWORK_STREAMS: StreamPlan = {"impute": 0, "labeled": 1, "student": 2, "outer": 1, "holdout": 2}
"""For outer steps with two backwards of their own, in the memory that the base step's have left."""

SMALL_ACTIVATION_BYTES = 64 * 2**20  # bytes held for the backward of the labelled samples


def choose_stream_plan(*, activation_bytes: int, last_layer: bool) -> StreamPlan:
    """What suits a network that holds so many bytes for a backward."""
    if activation_bytes < SMALL_ACTIVATION_BYTES:
        return SEPARATE_STREAMS
    return LAST_LAYER_STREAMS if last_layer else FULL_NETWORK_STREAMS


class StreamSchedule:
    """Where there are none, as here, everything is done in turn; `with lanes("student", "impute"):` changes nothing."""

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        """What is done within goes on beside the other lanes, after what was done outside of lanes and in `after`."""
        yield

    def wait(self, name: str) -> None:
        """Go on, where this is called, once all that was done in a lane is."""

    def join(self) -> None:
        """Go on once all lanes are done."""

    def hold(self, *objects: object) -> None:
        """What crosses from one lane to another, to be kept until they join."""


SEQUENTIAL = StreamSchedule()


class CudaStreams(StreamSchedule):
    """Lanes as CUDA streams, for a step that is being recorded: the graph then has branches, which run side by side.

    Memory given back in one lane may be taken in the same lane at once, while another still reads it: hence `keep`.
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
