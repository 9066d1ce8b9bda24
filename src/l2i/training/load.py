"""What a run folder holds, ready to use: its averaged model, its whole state, its metrics and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from l2i.batch import Params
from l2i.config import Precision, replace
from l2i.data.split import Splits
from l2i.errors import InputError
from l2i.training.checkpoint import load_checkpoint, newest_whole, path_of
from l2i.training.evaluate import best_step, curve
from l2i.training.folder import BEST, known_here, read_result, read_run, same_data
from l2i.training.log import Row, rows_of
from l2i.training.trainer import Trainer
from l2i.validate import fields_of

SPLIT = ("data.name", "data.num_labeled", "data.num_validation", "seed")  # the fields that make a split


def load_trainer(
    folder: str | Path,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    device: str | None = None,
    root: str | None = None,
    precision: Precision | None = None,
) -> tuple[Trainer, int]:
    """The trainer of a run with its averaged model, the newest or the one chosen early, and the step that it is of.

    `precision` is that of its forwards, where it is not to be the run's.
    """
    trainer, tensors, step = _opened(
        folder, splits=splits, model=model, device=device, root=root, precision=precision, rehearse=False
    )
    trainer.load_teacher(tensors)
    return trainer, _chosen(folder, trainer, step)


class Loaded(NamedTuple):
    """A run as it was at its newest checkpoint, and all its evaluations."""

    trainer: Trainer
    step: int
    teacher_step: int  # of the averaged model, where early stopping chose it
    rows: list[Row]

    @property
    def label(self) -> str:
        """The run in a few words."""
        return f"{self.trainer.run.name}, seed {self.trainer.run.seed}, step {self.teacher_step:,}"


def load_whole(folder: str | Path, *, device: str | None = None, root: str | None = None) -> Loaded:
    """A run with its whole state, to be closed by the caller; this sets torch's generators as well.

    `root` is the folder of the data, where it is not the run's own.
    """
    read_run(Path(folder))  # a folder that holds no run is called so, before its evaluations are missed
    rows = read_rows(folder)
    trainer, tensors, step = _opened(folder, device=device, root=root)
    trainer.load(tensors)
    return Loaded(trainer, step, _chosen(folder, trainer, step), rows)


def _opened(
    folder: str | Path,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    device: str | None = None,
    root: str | None = None,
    precision: Precision | None = None,
    rehearse: bool = True,
) -> tuple[Trainer, Params, int]:
    """A new trainer, and the state and step of the run's newest checkpoint."""
    run = replace(read_run(Path(folder)), engine="auto")  # looking at a run needs no graph, nor a GPU
    run = run if device is None else replace(run, device=device)
    run = run if root is None else replace(run, data={"root": root})
    run = run if precision is None else replace(run, precision=precision)
    tensors, meta = newest_whole(Path(folder) / "checkpoints")
    known_here(Path(folder), meta, given=splits is not None)  # before the data set of the run's name is read
    trainer = Trainer(run, splits=splits, model=model, like=tensors, rehearse=rehearse)
    same_data(Path(folder), meta, trainer.splits, given=trainer.given)
    return trainer, tensors, meta["step"]


def _chosen(folder: str | Path, trainer: Trainer, step: int) -> int:
    """Load the averaged model that early stopping chose, where it did, and return the step that it is of."""
    if trainer.run.final != "best":
        return step
    best = best_step(curve(read_rows(folder), "validation"))
    chosen = load_checkpoint(path_of(Path(folder) / BEST, best))
    if chosen is None:
        return step
    trainer.load_teacher(chosen[0])
    return best


def read_rows(folder: str | Path) -> list[Row]:
    """The evaluations of a run, in order; an InputError where there are none."""
    path = Path(folder) / "metrics.jsonl"
    try:
        rows = rows_of(path.read_bytes()) if path.exists() else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is damaged; restore it, or give another run") from None
    if not rows:
        raise InputError(f"{folder} has no evaluations yet; let it train longer, or give another run")
    return rows


def same_split(folder: str | Path, other: str | Path) -> None:
    """Raise an InputError where two runs were not trained on the same samples."""
    ours, theirs = (dict(fields_of(read_run(Path(name)))) for name in (folder, other))
    unlike = [f"{name} is {theirs[name]} there and {ours[name]} here" for name in SPLIT if theirs[name] != ours[name]]
    if unlike:
        raise InputError(f"{other} is of other data or another split ({'; '.join(unlike)}); give another run")


def load_model(folder: str | Path, *, splits: Splits | None = None, model: nn.Module | None = None) -> nn.Module:
    """The averaged model of a run, in evaluation mode; `splits` and `model` as given to `train`, where they were."""
    trainer, _ = load_trainer(folder, splits=splits, model=model)
    for p, trained in zip(trainer.teacher.model.parameters(), trainer.model.parameters(), strict=True):
        p.data = p.data.clone()  # of its own: in training, all lie in one piece of memory
        p.requires_grad_(trained.requires_grad)
    return trainer.teacher.model.eval()


def evaluate_run(folder: str | Path, *, device: str | None = None, root: str | None = None) -> dict[str, Any]:
    """The averaged model of a run on its validation and test samples: every figure that the task has."""
    trainer, step = load_trainer(folder, device=device, root=root)
    run, done = trainer.run, read_result(Path(folder))
    figures = {part: {name: round(v, 4) for name, v in found.items()} for part, found in trainer.figures().items()}
    about = {"name": run.name, "seed": run.seed, "step": step, "steps": run.steps, "finished": done is not None}
    return {**about, **figures}
