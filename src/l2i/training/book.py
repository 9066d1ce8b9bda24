"""What a run writes down while it goes: metrics, events, checkpoints. One process writes; the others have a Blank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from l2i.batch import Params
from l2i.training.evaluate import best_step, curve
from l2i.training.folder import BEST
from l2i.training.log import Events, Metrics, Row
from l2i.training.saver import Saver


class Blank:
    """What a process that does not write has in place of a book."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def keep_best(self, step: int, teacher: Callable[[], Params]) -> None:
        pass

    def save(self, step: int, state: Params, meta: dict[str, Any]) -> None:
        pass

    def check(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class Book(Blank):
    """Goes on at a step, with so many bytes of metrics that belong to it."""

    def __init__(self, folder: Path, *, step: int, size: int, keep: int) -> None:
        self.folder, self.keep, self.saver = folder, keep, Saver()
        self.metrics, self.events = Metrics(folder, size=size), Events(folder, step=step)
        self.rows = self.metrics.rows

    def add(self, row: Row) -> None:
        """An evaluation."""
        self.metrics.add(row)
        self.events.add(row)

    def keep_best(self, step: int, teacher: Callable[[], Params]) -> None:
        """Early stopping: the averaged model with the best validation figure so far is what stays of a run."""
        if best_step(curve(self.rows, "validation")) == step:
            named = {f"teacher.{name}": tensor for name, tensor in teacher().items()}
            self.saver.save(self.folder / BEST, step, named, {"step": step})

    def save(self, step: int, state: Params, meta: dict[str, Any]) -> None:
        """Begin to write a checkpoint, which counts on the metrics so far."""
        self.events.flush()
        meta = {**meta, "metrics_size": self.metrics.size()}
        self.saver.save(self.folder / "checkpoints", step, state, meta, keep=self.keep, first=self.metrics.sync)

    def check(self) -> None:
        """Raise what went wrong with the last checkpoint, where that is known by now."""
        self.saver.check()

    def wait(self) -> None:
        """Until the last checkpoint is whole, and on disk."""
        self.saver.wait()

    def close(self) -> None:
        self.saver.close()
        with suppress(OSError):  # on a full disk; what counts was written, or said to be lost, before
            self.events.close()
        with suppress(OSError):
            self.metrics.close()
