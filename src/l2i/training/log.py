"""What a run tells: metrics.jsonl, TensorBoard events, and a progress bar with rate, costs and time left."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from l2i.errors import InputError
from l2i.training.pace import lasting

BAR = 10  # characters
EVERY = 5.0  # seconds between lines where there is no terminal to draw a bar on
LONG = 900.0  # seconds: a run that will take longer says so at once

Row = dict[str, float | int | None]


def rows_of(content: bytes) -> list[Row]:
    """The evaluations that metrics.jsonl holds; one of several errors where it does not hold any such."""
    rows: list[Row] = [json.loads(line) for line in content.splitlines()]
    if not all(row["step"] and "test" in row and "validation" in row for row in rows):
        raise ValueError("not rows of metrics")
    return rows


def mean_over(rows: Iterable[tuple[float, Row]], column: str) -> float | None:
    """The mean of a column of rows, each of which is one over so many steps; of those that have it."""
    there = [(steps, value) for steps, row in rows if (value := row.get(column)) is not None]
    total = sum(steps for steps, _ in there)
    return sum(steps * value for steps, value in there) / total if total else None


def paced(rate: float) -> str:
    """So many steps a second, or seconds a step."""
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s a step"


def seldom() -> Callable[[str], None]:
    """Says a line on stderr, where the last one that it was given is some seconds ago."""
    said = time.monotonic()

    def say(line: str) -> None:
        nonlocal said
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            Console(stderr=True).print(line, highlight=False, soft_wrap=True)

    return say


class Metrics:
    """One JSON object an evaluation. Rows written after the last checkpoint are dropped when a run goes on."""

    def __init__(self, folder: Path, *, size: int) -> None:
        path = folder / "metrics.jsonl"
        if size > (path.stat().st_size if path.exists() else 0):
            raise InputError(f"{path} is shorter than the checkpoint says; restore it, or give another --out")
        try:
            kept = path.read_bytes()[:size] if size else b""
            self.rows = rows_of(kept)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path} is damaged; restore it, or give another --out") from None
        self.file = path.open("ab")
        self.file.truncate(size)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self.file.flush()

    def size(self) -> int:
        """How long the file is."""
        return os.fstat(self.file.fileno()).st_size

    def sync(self) -> None:
        """See to it that what was added is on disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


class Events:
    """The same rows for TensorBoard, written when they are added; its own writer does so, and fails, in a thread."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # take a while to import
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / name).open("xb")
        self.records = RecordWriter(self.file)
        self.put(file_version="brain.Event:2")
        self.put(step=step + 1, session_log=SessionLog(status=SessionLog.START))  # rows from here on are written anew

    def put(self, **fields: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **fields).SerializeToString())

    def add(self, row: Row) -> None:
        known = {name: value for name, value in row.items() if name != "step" and value is not None}
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in known.items()]
        self.put(step=int(row["step"] or 0), summary=self.summary(value=values))
        self.flush()

    def flush(self) -> None:
        self.records.flush()

    def close(self) -> None:
        self.records.close()


class Bar:
    """A progress bar on a terminal; elsewhere a line every few seconds."""

    def __init__(self, label: str, *, start: int, steps: int, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.label, self.steps, self.start, self.costs = label, steps, start, ""
        self.samples = self.done = 0
        self.foretold = False
        self.mark: tuple[float, int] | None = None  # when steps are counted from, and the first of them
        self.began = self.said = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR),
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
        if not self.foretold:
            self.count(now, step)
        if now - self.said < (0.2 if self.console.is_terminal else EVERY):
            return
        self.said = now
        rate = (step - self.start) / (now - self.began)
        told = f"{paced(rate)} {self.costs}".strip()
        taken = len(self.label) + BAR + 2 * len(str(self.steps)) + 12  # by the other columns: costs give way first
        self.progress.update(self.task, costs=told[: max(0, self.console.width - taken)])
        if not self.console.is_terminal:
            self.say(f"{self.label}: step {step} of {self.steps}, {told}, {lasting((self.steps - step) / rate)} left")

    def count(self, now: float, step: int) -> None:
        """Once steps have been counted for a while, without the first ones, say it if the run will take long."""
        if self.mark is None and now - self.began >= EVERY:
            self.mark = now, step
        elif self.mark is not None and now - self.mark[0] >= EVERY:
            self.foretold = True
            rate = (step - self.mark[1]) / (now - self.mark[0])
            if (left := (self.steps - self.start) / rate) > LONG:
                self.say(
                    f"{self.label}: {self.steps - self.start:,} steps will take about {lasting(left)} on this machine, "
                    f"at {paced(rate)}, and evaluations come on top; --steps N takes fewer, with schedules scaled"
                )

    def evaluating(self, samples: int) -> None:
        """An evaluation of so many samples begins; it may take longer than many steps."""
        self.samples, self.done = samples, 0
        self.mark = None  # its time is not that of steps

    def evaluated(self, count: int) -> None:
        """That many more samples are done."""
        self.done += count
        if time.monotonic() - self.said < EVERY or self.done == self.samples:
            return
        self.said = time.monotonic()
        told = f"evaluating, {self.done:,} of {self.samples:,} samples"
        self.progress.update(self.task, costs=told)
        if not self.console.is_terminal:
            self.say(f"{self.label}: {told}")

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def show(self, row: Row) -> None:
        shown = {name: row[name] for name in ("test", "c_t", "c_u", "c_h") if row.get(name) is not None}
        self.costs = " ".join(f"{name} {value:.2g}" for name, value in shown.items())

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
