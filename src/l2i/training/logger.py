"""What a run writes while it trains: metrics.jsonl, TensorBoard events and checkpoints."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from l2i.bilevel.functional import Params
from l2i.errors import InputError
from l2i.training.checkpoint import AsyncCheckpointer
from l2i.training.evaluation import extract_curve, find_best_step
from l2i.training.metrics import MetricRow, parse_metrics
from l2i.training.run_dir import BEST_DIR


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

    def __init__(self, folder: Path, *, step: int, size: int, keep: int) -> None:
        super().__init__()
        self.folder, self.keep = folder, keep
        path = folder / "metrics.jsonl"
        self.rows = _read_rows(path, size)
        self.metrics = path.open("ab")
        self.metrics.truncate(size)  # rows after the last checkpoint are written again
        self.events = TensorBoardWriter(folder, step=step)

    def log_row(self, row: MetricRow) -> None:
        super().log_row(row)
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
        metrics_fd = self.metrics.fileno()
        meta = {**meta, "metrics_size": os.fstat(metrics_fd).st_size}
        self.checkpointer.save(
            self.folder / "checkpoints",
            step,
            state,
            meta,
            keep=self.keep,
            before_write=lambda: os.fsync(metrics_fd),
        )

    def close(self) -> None:
        super().close()
        for file in (self.events.records, self.metrics):
            with suppress(OSError):  # a full disk: what matters was written, or reported, before
                file.close()


def _read_rows(path: Path, size: int) -> list[MetricRow]:
    """Read the rows in the first `size` bytes of metrics.jsonl."""
    if size > (path.stat().st_size if path.exists() else 0):
        raise InputError(
            f"{path} is shorter than the checkpoint says; restore it, or give another --out"
        )
    try:
        return parse_metrics(path.read_bytes()[:size] if size else b"")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is damaged; restore it, or give another --out") from None


class TensorBoardWriter:
    """Write rows as TensorBoard events at once: its own writer does so, and fails, in a thread."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # slow to import
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.event, self.summary = Event, Summary
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self.records = RecordWriter((folder / name).open("xb"))
        self._write_event(file_version="brain.Event:2")
        # rows from here on replace those of an earlier file
        self._write_event(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def _write_event(self, **fields: Any) -> None:
        self.records.write(self.event(wall_time=time.time(), **fields).SerializeToString())

    def write_row(self, row: MetricRow) -> None:
        present = {name: v for name, v in row.items() if name != "step" and v is not None}
        values = [self.summary.Value(tag=name, simple_value=v) for name, v in present.items()]
        self._write_event(step=int(row["step"] or 0), summary=self.summary(value=values))
        self.records.flush()
