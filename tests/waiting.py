"""Wait for something that another process does, however slow the machine is."""

import subprocess
import time
from collections.abc import Callable

PATIENCE = 900.0  # seconds; ends a test that hangs, and asserts nothing about speed
POLL_INTERVAL = 0.01  # seconds


def wait_until(
    holds: Callable[[], bool],
    *processes: subprocess.Popen[str],
    describe: Callable[[], str] = lambda: "",
    every: float = POLL_INTERVAL,
) -> None:
    """Return once `holds()`; fail if one of the processes ends before."""
    end = time.monotonic() + PATIENCE
    while not holds():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"waited for {PATIENCE:.0f} s\n{describe()}"
        time.sleep(every)
