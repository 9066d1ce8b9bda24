"""SIGINT and SIGTERM ask a run to stop after the step it is in; a second one stops it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from l2i.launched import started

AGAIN = 5.0  # seconds, within which processes that share a run take a second signal for the first


class StopRequest:
    """Remembers the first signal while the run is in its loop."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.at = 0.0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.remember)
        return self

    def remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and time.monotonic() - self.at < AGAIN:
            return
        if self.received is None and started() > 1:  # torchrun sends on what a terminal has sent to all already
            self.received, self.at = number, time.monotonic()
            return
        again, self.received = self.received is not None, number
        self.restore()
        if again:
            os.kill(os.getpid(), number)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
