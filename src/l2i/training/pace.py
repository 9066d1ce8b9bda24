"""The time that a run takes: all of it, and that of its steps alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

UNITS = (("days", 86400), ("hours", 3600), ("min", 60))  # s


def lasting(seconds: float) -> str:
    """A time as a person says it: 45 s, 12 min, 3.5 hours, 2.1 days."""
    for name, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if name == 'min' else 1}f} {name}"
    return f"{seconds:.0f} s"


class Pace:
    """Begins anew where a run goes on; `earlier` seconds are those of before."""

    def __init__(self) -> None:
        self.earlier = self.beside = 0.0
        self.began = time.monotonic()

    def begin(self) -> None:
        """The first step is about to be taken."""
        self.began = time.monotonic()

    def seconds(self) -> float:
        """Of the whole run so far."""
        return self.earlier + time.monotonic() - self.began

    def rate(self, steps: int) -> float:
        """So many steps, taken since the run began or went on, a second: evaluations and checkpoints do not count."""
        return steps / max(1e-9, time.monotonic() - self.began - self.beside)

    @contextmanager
    def beside_steps(self) -> Iterator[None]:
        """Work of the run's that is no step."""
        began = time.monotonic()
        yield
        self.beside += time.monotonic() - began

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Work that is not the run's at all."""
        began = time.monotonic()
        yield
        self.began += time.monotonic() - began
