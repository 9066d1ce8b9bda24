"""How imputed labels changed over training: what the averaged model said of every row, evaluation by evaluation."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.data.arrays import read_array
from l2i.data.split import Samples
from l2i.errors import InputError
from l2i.tasks import Regression
from l2i.training.build import dtype_of
from l2i.training.checkpoint import write_whole
from l2i.training.loop import Watch
from l2i.training.trainer import Trainer

COUNT = 10  # snapshots of a run, about
LAST = 5  # those that the spread of a target is taken over


Rows = Callable[[torch.device, torch.dtype], Samples]
"""All rows, brought to a device."""


def watching(folder: Path, rows: Rows) -> Watch:
    """Writes a snapshot of each row's label at some of the evaluations; a step that comes twice is the same again."""

    def watch(trainer: Trainer, step: int) -> None:
        run = trainer.run
        stride = max(1, run.steps // run.eval_every // COUNT) * run.eval_every
        if step % stride and step != run.steps:
            return
        file = io.BytesIO()
        np.save(file, labels(trainer, rows(trainer.device, dtype_of(trainer.run))))
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{step:09d}.npy", file.getvalue())

    return watch


def labels(trainer: Trainer, samples: Samples) -> NDArray[Any]:
    """Class numbers [N], or targets [N, D] in their units."""
    found = trainer.predict(samples)
    if isinstance(trainer.task, Regression):
        return trainer.task.decode(found).float().cpu().numpy()
    return found.argmax(dim=1).int().cpu().numpy()


def read_snapshots(folder: Path, steps: int) -> NDArray[Any]:
    """All snapshots of a run of so many steps, [S, N] or [S, N, D]."""
    try:
        paths = sorted(path for path in folder.glob("*.npy") if int(path.stem) <= steps)
        return np.stack([read_array(path) for path in paths])
    except (OSError, ValueError):
        raise InputError(f"{folder} is damaged; fit again in another --out") from None


def changes(snapshots: NDArray[Any], std: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """How often each row's label changed from one snapshot to the next, [N].

    A target has changed where it moved by more than a tenth of the labelled targets' spread `std`.
    """
    if std is None:
        return np.asarray((snapshots[1:] != snapshots[:-1]).sum(axis=0), dtype=np.int64)
    moved = (np.abs(np.diff(snapshots, axis=0)) > 0.1 * std).any(axis=2)
    return np.asarray(moved.sum(axis=0), dtype=np.int64)
