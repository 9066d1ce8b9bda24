"""The time that a run takes: all of it, and that of its steps alone.

MERGED:
The loop around a trainer's steps: evaluations, checkpoints, and going on where a run was cut.

MERGED:
What a run tells: metrics.jsonl, TensorBoard events, and a progress bar with rate, costs and time left.

MERGED:
What a run writes down while it goes: metrics, events, checkpoints. One process writes; the others have a Blank.

"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from l2i.training.metrics import MetricRow

DURATION_UNITS = (("days", 86400), ("hours", 3600), ("min", 60))  # s


def format_duration(seconds: float) -> str:
    """A time as a person says it: 45 s, 12 min, 3.5 hours, 2.1 days."""
    for name, size in DURATION_UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if name == 'min' else 1}f} {name}"
    return f"{seconds:.0f} s"


class Stopwatch:
    """Begins anew where a run goes on; `earlier` seconds are those of before."""

    def __init__(self) -> None:
        self.earlier_seconds = self.overhead_seconds = 0.0
        self.start_time = time.monotonic()

    def start(self) -> None:
        """The first step is about to be taken."""
        self.start_time = time.monotonic()

    def get_elapsed(self) -> float:
        """Of the whole run so far."""
        return self.earlier_seconds + time.monotonic() - self.start_time

    def compute_step_rate(self, steps: int) -> float:
        """So many steps, taken since the run began or went on, a second: evaluations and checkpoints do not count."""
        return steps / max(1e-9, time.monotonic() - self.start_time - self.overhead_seconds)

    @contextmanager
    def track_overhead(self) -> Iterator[None]:
        """Work of the run's that is no step."""
        block_start = time.monotonic()
        yield
        self.overhead_seconds += time.monotonic() - block_start

    @contextmanager
    def exclude(self) -> Iterator[None]:
        """Work that is not the run's at all."""
        block_start = time.monotonic()
        yield
        self.start_time += time.monotonic() - block_start


BAR_WIDTH = 10  # characters
LINE_INTERVAL = 5.0  # seconds between lines where there is no terminal to draw a bar on
LONG_RUN_SECONDS = 900.0  # seconds: a run that will take longer says so at once


def format_step_rate(rate: float) -> str:
    """So many steps a second, or seconds a step."""
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s a step"


def make_throttled_printer() -> Callable[[str], None]:
    """Says a line on stderr, where the last one that it was given is some seconds ago."""
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
        self.rate_start: tuple[float, int] | None = None  # when steps are counted from, and the first of them
        self.start_time = self.last_update = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[costs]}"),
        )
        self.progress = Progress(
            *columns, console=self.console, transient=True, disable=quiet or not self.console.is_terminal
        )
        self.task = self.progress.add_task(label, total=steps, completed=start, costs="")

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)
        now = time.monotonic()
        if not self.estimate_shown:
            self.estimate_duration(now, step)
        if now - self.last_update < (0.2 if self.console.is_terminal else LINE_INTERVAL):
            return
        self.last_update = now
        rate = (step - self.start) / (now - self.start_time)
        status = f"{format_step_rate(rate)} {self.costs}".strip()
        used_width = len(self.label) + BAR_WIDTH + 2 * len(str(self.steps)) + 12  # by the other columns: costs give way first
        self.progress.update(self.task, costs=status[: max(0, self.console.width - used_width)])
        if not self.console.is_terminal:
            self.print_line(f"{self.label}: step {step} of {self.steps}, {status}, {format_duration((self.steps - step) / rate)} left")

    def estimate_duration(self, now: float, step: int) -> None:
        """Once steps have been counted for a while, without the first ones, say it if the run will take long."""
        if self.rate_start is None and now - self.start_time >= LINE_INTERVAL:
            self.rate_start = now, step
        elif self.rate_start is not None and now - self.rate_start[0] >= LINE_INTERVAL:
            self.estimate_shown = True
            rate = (step - self.rate_start[1]) / (now - self.rate_start[0])
            if (remaining := (self.steps - self.start) / rate) > LONG_RUN_SECONDS:
                self.print_line(
                    f"{self.label}: {self.steps - self.start:,} steps will take about {format_duration(remaining)} on this machine, "
                    f"at {format_step_rate(rate)}, and evaluations come on top; --steps N takes fewer, with schedules scaled"
                )

    def begin_evaluation(self, samples: int) -> None:
        """An evaluation of so many samples begins; it may take longer than many steps."""
        self.eval_samples, self.eval_done = samples, 0
        self.rate_start = None  # its time is not that of steps

    def advance_evaluation(self, count: int) -> None:
        """That many more samples are done."""
        self.eval_done += count
        if time.monotonic() - self.last_update < LINE_INTERVAL or self.eval_done == self.eval_samples:
            return
        self.last_update = time.monotonic()
        status = f"evaluating, {self.eval_done:,} of {self.eval_samples:,} samples"
        self.progress.update(self.task, costs=status)
        if not self.console.is_terminal:
            self.print_line(f"{self.label}: {status}")

    def print_line(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def show_costs(self, row: MetricRow) -> None:
        shown_costs = {name: row[name] for name in ("test", "c_t", "c_u", "c_h") if row.get(name) is not None}
        self.costs = " ".join(f"{name} {value:.2g}" for name, value in shown_costs.items())

    def __enter__(self) -> Self:
        self.start_time = time.monotonic()
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
