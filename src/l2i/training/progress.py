"""Progress of a run on the terminal: a bar with rate, costs and time left; and its stopwatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from l2i.training.metrics import MetricRow

DURATION_UNITS = (("days", 86400), ("hours", 3600), ("min", 60))  # seconds
BAR_WIDTH = 10  # characters
LINE_INTERVAL = 5.0  # seconds between lines if there is no terminal for a bar
LONG_RUN_SECONDS = 900.0  # longer runs are announced early


def format_duration(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3.5 hours, 2.1 days."""
    for name, size in DURATION_UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if name == 'min' else 1}f} {name}"
    return f"{seconds:.0f} s"


def _format_step_rate(rate: float) -> str:
    """Format a rate in steps per second, or a slow one in seconds per step."""
    if rate < 1:
        return f"{1 / rate:.1f} s a step"
    return f"{rate:.{0 if rate >= 10 else 1}f}/s"


class Stopwatch:
    """Measure the time of a run; `earlier_seconds` is that before it was resumed."""

    def __init__(self) -> None:
        self.earlier_seconds = self.overhead_seconds = 0.0
        self.start()

    def start(self) -> None:
        self.start_time = time.monotonic()

    def get_elapsed(self) -> float:
        """Return the seconds of the whole run so far."""
        return self.earlier_seconds + time.monotonic() - self.start_time

    def compute_step_rate(self, steps: int) -> float:
        """Return the steps per second since the start, without evaluations and checkpoints."""
        return steps / max(1e-9, time.monotonic() - self.start_time - self.overhead_seconds)

    @contextmanager
    def track_overhead(self) -> Iterator[None]:
        """Count the time of a block as the run's, but not as that of its steps."""
        block_start = time.monotonic()
        yield
        self.overhead_seconds += time.monotonic() - block_start

    @contextmanager
    def exclude(self) -> Iterator[None]:
        """Do not count the time of a block at all."""
        block_start = time.monotonic()
        yield
        self.start_time += time.monotonic() - block_start


def make_throttled_printer() -> Callable[[str], None]:
    """Return a function that prints a line on stderr unless it did so a few seconds ago."""
    last_printed = time.monotonic()

    def print_throttled(line: str) -> None:
        nonlocal last_printed
        if time.monotonic() - last_printed >= LINE_INTERVAL:
            last_printed = time.monotonic()
            Console(stderr=True).print(line, highlight=False, soft_wrap=True)

    return print_throttled


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line every few seconds."""

    def __init__(self, label: str, *, start: int, steps: int, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.label, self.steps, self.start, self.costs = label, steps, start, ""
        self.eval_samples = self.eval_done = 0
        self.estimate_shown = False
        self.rate_start: tuple[float, int] | None = None  # time and step to measure the rate from
        self.start_time = self.last_update = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[costs]}"),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.progress.add_task(label, total=steps, completed=start, costs="")

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)
        now = time.monotonic()
        if not self.estimate_shown:
            self._estimate_duration(now, step)
        if now - self.last_update < (0.2 if self.console.is_terminal else LINE_INTERVAL):
            return
        rate = (step - self.start) / (now - self.start_time)
        status = f"{_format_step_rate(rate)} {self.costs}".strip()
        remaining = format_duration((self.steps - step) / rate)
        self._show_status(status, f"step {step} of {self.steps}, {status}, {remaining} left")

    def _show_status(self, status: str, line: str) -> None:
        """Show a status in the bar or, without a terminal, a line."""
        self.last_update = time.monotonic()
        # of the other columns: costs are cut off first
        used_width = len(self.label) + BAR_WIDTH + 2 * len(str(self.steps)) + 12
        self.progress.update(self.task, costs=status[: max(0, self.console.width - used_width)])
        if not self.console.is_terminal:
            self.print_line(f"{self.label}: {line}")

    def _estimate_duration(self, now: float, step: int) -> None:
        """Announce a long run once the rate is known, which does not count the first steps."""
        if self.rate_start is None and now - self.start_time >= LINE_INTERVAL:
            self.rate_start = now, step
        elif self.rate_start is not None and now - self.rate_start[0] >= LINE_INTERVAL:
            self.estimate_shown = True
            steps = self.steps - self.start
            rate = (step - self.rate_start[1]) / (now - self.rate_start[0])
            if (duration := steps / rate) > LONG_RUN_SECONDS:
                self.print_line(
                    f"{self.label}: {steps:,} steps will take about {format_duration(duration)} "
                    f"on this machine, at {_format_step_rate(rate)}, and evaluations come on top; "
                    "--steps N takes fewer, with schedules scaled"
                )

    def begin_evaluation(self, samples: int) -> None:
        """Start an evaluation, which may take longer than many steps."""
        self.eval_samples, self.eval_done = samples, 0
        self.rate_start = None  # the rate is that of steps alone

    def advance_evaluation(self, count: int) -> None:
        """Record that `count` more samples are done."""
        self.eval_done += count
        is_due = time.monotonic() - self.last_update >= LINE_INTERVAL
        if is_due and self.eval_done != self.eval_samples:
            status = f"evaluating, {self.eval_done:,} of {self.eval_samples:,} samples"
            self._show_status(status, status)

    def print_line(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def show_costs(self, row: MetricRow) -> None:
        names = [name for name in ("test", "c_t", "c_u", "c_h") if row.get(name) is not None]
        self.costs = " ".join(f"{name} {row[name]:.2g}" for name in names)

    def __enter__(self) -> Self:
        self.start_time = time.monotonic()
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
