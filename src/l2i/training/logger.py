"""What a run tells: metrics.jsonl, TensorBoard events, and a progress bar with rate, costs and time left.

MERGED:
What a run writes down while it goes: metrics, events, checkpoints. One process writes; the others have a Blank.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from l2i.bilevel.problem import Params
from l2i.errors import InputError
from l2i.training.checkpoint import AsyncCheckpointer
from l2i.training.evaluation import extract_curve, find_best_step
from l2i.training.metrics import MetricRow, parse_metrics
from l2i.training.run_dir import BEST_DIR


class MetricsFile:
    """One JSON object an evaluation. Rows written after the last checkpoint are dropped when a run goes on."""

    def __init__(self, folder: Path, *, size: int) -> None:
        path = folder / "metrics.jsonl"
        if size > (path.stat().st_size if path.exists() else 0):
            raise InputError(f"{path} is shorter than the checkpoint says; restore it, or give another --out")
        try:
            content = path.read_bytes()[:size] if size else b""
            self.rows = parse_metrics(content)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path} is damaged; restore it, or give another --out") from None
        self.file = path.open("ab")
        self.file.truncate(size)

    def append(self, row: MetricRow) -> None:
        self.rows.append(row)
        self.file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self.file.flush()

    def get_size(self) -> int:
        """How long the file is."""
        return os.fstat(self.file.fileno()).st_size

    def sync(self) -> None:
        """See to it that what was added is on disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


class TensorBoardWriter:
    """The same rows for TensorBoard, written when they are added; its own writer does so, and fails, in a thread."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # take a while to import
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / name).open("xb")
        self.records = RecordWriter(self.file)
        self.write_event(file_version="brain.Event:2")
        self.write_event(step=step + 1, session_log=SessionLog(status=SessionLog.START))  # rows from here on are written anew

    def write_event(self, **fields: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **fields).SerializeToString())

    def write_row(self, row: MetricRow) -> None:
        present = {name: value for name, value in row.items() if name != "step" and value is not None}
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in present.items()]
        self.write_event(step=int(row["step"] or 0), summary=self.summary(value=values))
        self.flush()

    def flush(self) -> None:
        self.records.flush()

    def close(self) -> None:
        self.records.close()


class NullLogger:
    """What a process that does not write has in place of a book."""

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []

    def log_row(self, row: MetricRow) -> None:
        self.rows.append(row)

    def save_best(self, step: int, teacher: Callable[[], Params]) -> None:
        pass

    def save(self, step: int, state: Params, meta: dict[str, Any]) -> None:
        pass

    def raise_pending(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class RunLogger(NullLogger):
    """Goes on at a step, with so many bytes of metrics that belong to it."""

    def __init__(self, folder: Path, *, step: int, size: int, keep: int) -> None:
        self.folder, self.keep, self.checkpointer = folder, keep, AsyncCheckpointer()
        self.metrics, self.events = MetricsFile(folder, size=size), TensorBoardWriter(folder, step=step)
        self.rows = self.metrics.rows

    def log_row(self, row: MetricRow) -> None:
        """An evaluation."""
        self.metrics.append(row)
        self.events.write_row(row)

    def save_best(self, step: int, teacher: Callable[[], Params]) -> None:
        """Early stopping: the averaged model with the best validation figure so far is what stays of a run."""
        if find_best_step(extract_curve(self.rows, "validation")) == step:
            prefixed = {f"teacher.{name}": tensor for name, tensor in teacher().items()}
            self.checkpointer.save(self.folder / BEST_DIR, step, prefixed, {"step": step})

    def save(self, step: int, state: Params, meta: dict[str, Any]) -> None:
        """Begin to write a checkpoint, which counts on the metrics so far."""
        self.events.flush()
        meta = {**meta, "metrics_size": self.metrics.get_size()}
        self.checkpointer.save(self.folder / "checkpoints", step, state, meta, keep=self.keep, before_write=self.metrics.sync)

    def raise_pending(self) -> None:
        """Raise what went wrong with the last checkpoint, where that is known by now."""
        self.checkpointer.raise_pending()

    def wait(self) -> None:
        """Until the last checkpoint is whole, and on disk."""
        self.checkpointer.wait()

    def close(self) -> None:
        self.checkpointer.close()
        with suppress(OSError):  # on a full disk; what counts was written, or said to be lost, before
            self.events.close()
        with suppress(OSError):
            self.metrics.close()
