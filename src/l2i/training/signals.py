"""SIGINT and SIGTERM ask a run to stop after the step it is in; a second one stops it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from l2i.torchrun import world_size

REPEAT_WINDOW = 5.0  # seconds, within which processes that share a run take a second signal for the first


class StopRequest:
    """Remembers the first signal while the run is in its loop."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.received_at = 0.0
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous_handlers[number] = signal.signal(number, self.handle_signal)
        return self

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and time.monotonic() - self.received_at < REPEAT_WINDOW:
            return
        if self.received is None and world_size() > 1:  # torchrun sends on what a terminal has sent to all already
            self.received, self.received_at = number, time.monotonic()
            return
        is_repeat, self.received = self.received is not None, number
        self.restore()
        if is_repeat:
            os.kill(os.getpid(), number)

    def restore(self) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
        self.previous_handlers = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
