"""What a run folder holds, ready to use: its averaged model, and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from l2i.config import replace
from l2i.data.split import Splits
from l2i.training.checkpoint import newest_whole
from l2i.training.folder import read_run
from l2i.training.trainer import Trainer


def load_trainer(
    folder: str | Path, *, splits: Splits | None = None, model: nn.Module | None = None, device: str | None = None
) -> tuple[Trainer, int]:
    """The trainer of a run with the teacher of its newest checkpoint, and the step that it is of."""
    run = read_run(Path(folder))
    trainer = Trainer(run if device is None else replace(run, device=device), splits=splits, model=model)
    tensors, meta = newest_whole(Path(folder) / "checkpoints")
    trainer.load_teacher(tensors)
    return trainer, meta["step"]


def load_model(folder: str | Path, *, splits: Splits | None = None, model: nn.Module | None = None) -> nn.Module:
    """The averaged model of a run, in evaluation mode; `splits` and `model` as given to `train`, where they were."""
    trainer, _ = load_trainer(folder, splits=splits, model=model)
    return trainer.teacher.model.eval()


def evaluate_run(folder: str | Path, *, device: str | None = None) -> dict[str, Any]:
    """The averaged model of a run on its validation and test samples."""
    trainer, step = load_trainer(folder, device=device)
    run = trainer.run
    return {"name": run.name, "seed": run.seed, "step": step, **trainer.figures()}
