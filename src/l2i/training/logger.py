"""What a run writes while it trains: metrics.jsonl, TensorBoard events, checkpoints, progress."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from l2i.bilevel.functional import Params
from l2i.errors import DamagedFile
from l2i.files.output import name_file_in_errors
from l2i.files.terminal import escape_controls, make_console, print_lines, to_one_line
from l2i.training.checkpoint import AsyncCheckpointer
from l2i.training.evaluation import extract_curve, find_best_step
from l2i.training.metrics import MetricRow, parse_metrics
from l2i.training.run_dir import BEST_DIR

DURATION_UNITS = (("days", 86400), ("hours", 3600), ("min", 60))  # seconds
BAR_WIDTH = 10  # characters
LINE_INTERVAL = 5.0  # seconds between lines if there is no terminal for a bar
COMPACT_LINE_INTERVAL = 60.0  # the same for one of many runs
LONG_RUN_SECONDS = 900.0  # longer runs are announced early


class NullLogger:
    """Keep the rows of a process that writes nothing."""

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []
        self.checkpointer = AsyncCheckpointer()

    def log_row(self, row: MetricRow) -> None:
        self.rows.append(row)

    def save_best(self, step: int, teacher: Callable[[], Params]) -> None:
        pass

    def save(self, step: int, state: Params, meta: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        self.checkpointer.close()


class RunLogger(NullLogger):
    """Write to a run folder, from a step whose metrics end at `size` bytes."""

    def __init__(self, folder: Path, step: int, size: int, *, keep: int) -> None:
        super().__init__()
        self.folder, self.keep = folder, keep
        path = folder / "metrics.jsonl"
        self.rows = _read_rows(path, size)
        self.metrics = path.open("ab")
        self.metrics.truncate(size)  # rows after the last checkpoint are written again
        self.events = TensorBoardWriter(folder, step=step)

    def log_row(self, row: MetricRow) -> None:
        super().log_row(row)
        with name_file_in_errors(self.folder / "metrics.jsonl"):
            self.metrics.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            self.metrics.flush()
        self.events.write_row(row)

    def save_best(self, step: int, teacher: Callable[[], Params]) -> None:
        """Save the averaged model if its validation metric is the best so far (early stopping)."""
        if find_best_step(extract_curve(self.rows, "validation")) == step:
            prefixed = {f"teacher.{name}": tensor for name, tensor in teacher().items()}
            self.checkpointer.save(self.folder / BEST_DIR, step, prefixed, {"step": step})

    def save(self, step: int, state: Params, meta: dict[str, Any]) -> None:
        """Start to write a checkpoint that goes with the metrics so far."""
        self.events.records.flush()
        metrics_fd, folder = self.metrics.fileno(), self.folder / "checkpoints"
        meta = {**meta, "metrics_size": os.fstat(metrics_fd).st_size}
        sync = partial(os.fsync, metrics_fd)
        self.checkpointer.save(folder, step, state, meta, keep=self.keep, before_write=sync)

    def close(self) -> None:
        super().close()
        for file in (self.events.records, self.metrics):
            with suppress(OSError):  # a full disk: what matters was written, or reported, before
                file.close()


def _read_rows(path: Path, size: int) -> list[MetricRow]:
    """Read the rows in the first `size` bytes of metrics.jsonl."""
    fix = "restore it, or choose a different --out"
    if size > (path.stat().st_size if path.exists() else 0):
        raise DamagedFile(f"{path} is shorter than it was at the checkpoint; {fix}")
    try:
        return parse_metrics(path.read_bytes()[:size] if size else b"")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise DamagedFile(f"{path} is damaged; {fix}") from None


class TensorBoardWriter:
    """Write rows as TensorBoard events at once: its own writer does so, and fails, in a thread."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # slow to import
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        process = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        name = f"events.out.tfevents.{time.time_ns()}.{process}"  # unique, even if clocks go back
        self.path = folder / name
        self.records = RecordWriter(self.path.open("xb"))
        self._write_event(file_version="brain.Event:2")
        # rows from here on replace those of an earlier file
        self._write_event(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def _write_event(self, **fields: Any) -> None:
        with name_file_in_errors(self.path):
            self.records.write(self.event(wall_time=time.time(), **fields).SerializeToString())
            self.records.flush()

    def write_row(self, row: MetricRow) -> None:
        present = {name: v for name, v in row.items() if name != "step" and v is not None}
        values = [self.summary.Value(tag=name, simple_value=v) for name, v in present.items()]
        self._write_event(step=int(row["step"] or 0), summary=self.summary(value=values))


def format_duration(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3.5 hours, 2.1 days."""
    for name, size in DURATION_UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if name == 'min' else 1}f} {name}"
    return f"{seconds:.0f} s"


def _format_step_rate(rate: float) -> str:
    """Format a rate in steps per second, or a slow one in seconds per step."""
    if rate < 1:
        return f"{1 / rate:.1f} s/step"
    return f"{rate:.{0 if rate >= 10 else 1}f} steps/s"


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
            print_lines(line, stderr=True)

    return print_throttled


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line every few seconds."""

    def __init__(
        self,
        label: str,
        *,
        start: int,
        steps: int,
        quiet: bool,
        line_interval: float = LINE_INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.line_interval, self.clock = line_interval, clock
        self.console = make_console(stderr=True, quiet=quiet)
        self.label, self.steps = to_one_line(label), steps
        self.start, self.costs = start, ""
        self.eval_samples = self.eval_done = 0
        self.estimate_shown = False
        self.rate_start: tuple[float, int] | None = None  # time and step to measure the rate from
        self.start_time = self.last_update = self.clock()
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[costs]}"),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.progress.add_task(self.label, total=steps, completed=start, costs="")

    def advance(self, step: int) -> None:
        self.progress.update(self.task, completed=step)
        now = self.clock()
        if not self.estimate_shown:
            self._estimate_duration(now, step)
        if now - self.last_update < (0.2 if self.console.is_terminal else self.line_interval):
            return
        rate = (step - self.start) / (now - self.start_time)
        status = f"{_format_step_rate(rate)} {self.costs}".strip()
        remaining = format_duration((self.steps - step) / rate)
        self._show_status(status, f"step {step} of {self.steps}, {status}, {remaining} left")

    def _show_status(self, status: str, line: str) -> None:
        """Show a status in the bar or, without a terminal, a line."""
        self.last_update = self.clock()
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
                    f"on this machine, at {_format_step_rate(rate)}, plus evaluations; "
                    "use --steps N for fewer steps, with scaled schedules"
                )

    def begin_evaluation(self, samples: int) -> None:
        """Start an evaluation, which may take longer than many steps."""
        self.eval_samples, self.eval_done = samples, 0
        self.rate_start = None  # the rate is that of steps alone

    def advance_evaluation(self, count: int) -> None:
        """Record that `count` more samples are done."""
        self.eval_done += count
        is_due = self.clock() - self.last_update >= self.line_interval
        if is_due and self.eval_done != self.eval_samples:
            status = f"evaluating, {self.eval_done:,} of {self.eval_samples:,} samples"
            self._show_status(status, status)

    def print_line(self, line: str) -> None:
        self.console.print(escape_controls(line), soft_wrap=True)

    def show_costs(self, row: MetricRow) -> None:
        names = [name for name in ("test", "c_t", "c_u", "c_h") if row.get(name) is not None]
        self.costs = " ".join(f"{name} {row[name]:.2g}" for name in names)

    def __enter__(self) -> Self:
        self.start_time = self.clock()
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
