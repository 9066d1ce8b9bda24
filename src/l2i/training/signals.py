"""SIGINT and SIGTERM ask a run to stop after the step it is in; a second one stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopRequest:
    """Remembers the first signal while the run is in its loop."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.remember)
        return self

    def remember(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.restore()

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
