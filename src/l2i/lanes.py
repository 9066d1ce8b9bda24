"""Parts of a step that do not wait for each other: each on a stream of its own while a step is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

STREAMS = {"impute": 0, "labeled": 1, "student": 2, "outer": 3, "holdout": 0}
"""Lanes that share a stream go in turn and share its memory, which the outer step then takes little more of."""


class Lanes:
    """Where there are none, as here, everything is done in turn; `with lanes("student", "impute"):` changes nothing."""

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        """What is done within goes on beside the other lanes, after what was done outside of lanes and in `after`."""
        yield

    def wait(self, name: str) -> None:
        """Go on, where this is called, once all that was done in a lane is."""

    def join(self) -> None:
        """Go on once all lanes are done."""

    def keep(self, *used: object) -> None:
        """What crosses from one lane to another, to be kept until they join."""


IN_TURN = Lanes()


class Streams(Lanes):
    """Lanes as CUDA streams, for a step that is being recorded: the graph then has branches, which run side by side.

    Memory given back in one lane may be taken in the same lane at once, while another still reads it: hence `keep`.
    """

    def __init__(self, device: torch.device) -> None:
        streams = {number: torch.cuda.Stream(device) for number in STREAMS.values()}
        self.streams = {name: streams[number] for name, number in STREAMS.items()}
        self.used: set[str] = set()
        self.kept: list[object] = []

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        stream = self.streams[name]
        stream.wait_stream(torch.cuda.current_stream())
        self.used.add(name)
        with torch.cuda.stream(stream):
            for other in after:
                self.wait(other)
            yield

    def wait(self, name: str) -> None:
        if name in self.used:
            torch.cuda.current_stream().wait_stream(self.streams[name])

    def join(self) -> None:
        for name in sorted(self.used):
            self.wait(name)
        self.used.clear()
        self.kept.clear()

    def keep(self, *used: object) -> None:
        self.kept += used
