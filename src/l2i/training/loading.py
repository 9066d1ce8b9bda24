"""Load from a run folder: its averaged model, its full state, its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from l2i.bilevel.functional import Params
from l2i.config import Precision, replace
from l2i.config.validate import flatten_fields
from l2i.data.samples import Splits
from l2i.errors import DamagedFile, InputError
from l2i.training import run_dir
from l2i.training.checkpoint import get_checkpoint_path, load_checkpoint, load_latest_checkpoint
from l2i.training.evaluation import extract_curve, find_best_step
from l2i.training.metrics import MetricRow, parse_metrics
from l2i.training.run_dir import read_result, read_run
from l2i.training.trainer import Trainer

SPLIT_FIELDS = ("data.name", "data.num_labeled", "data.num_validation", "seed")


def load_trainer(
    folder: str | Path,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    device: str | None = None,
    root: str | None = None,
    precision: Precision | None = None,
) -> tuple[Trainer, int]:
    """Return a run's trainer with its averaged model, the newest or the best, and its step.

    `device`, the data folder `root` and `precision` default to the run's.
    """
    changes = {"device": device, "root": root, "precision": precision}
    trainer, tensors, step = _open(Path(folder), changes, Trainer.for_evaluation, splits, model)
    trainer.load_teacher(tensors)
    return trainer, _load_best(folder, trainer, step)


class LoadedRun(NamedTuple):
    """A run at its newest checkpoint, with all its evaluations."""

    trainer: Trainer
    step: int
    teacher_step: int  # of the averaged model, if early stopping selected it
    rows: list[MetricRow]

    @property
    def label(self) -> str:
        """Return the run's name, seed and step."""
        return f"{self.trainer.run.name}, seed {self.trainer.run.seed}, step {self.teacher_step:,}"


def load_full_state(
    folder: str | Path, *, device: str | None = None, root: str | None = None
) -> LoadedRun:
    """Load a run with its full state, torch's generators included; the caller closes its trainer.

    The `device` and the data folder `root` default to the run's.
    """
    read_run(Path(folder))  # raise "not a run folder" before complaining about missing metrics
    rows = read_metric_rows(folder)
    trainer, tensors, step = _open(Path(folder), {"device": device, "root": root}, Trainer)
    trainer.load_state_dict(tensors)
    return LoadedRun(trainer, step, _load_best(folder, trainer, step), rows)


def _open(
    folder: Path,
    options: Mapping[str, str | None],
    make_trainer: Callable[..., Trainer],
    splits: Splits | None = None,
    model: nn.Module | None = None,
) -> tuple[Trainer, Params, int]:
    """Return a new trainer, and the state and step of the run's newest checkpoint."""
    changes: dict[str, Any] = {name: v for name, v in options.items() if v is not None}
    data = {"root": changes.pop("root")} if "root" in changes else {}
    run = replace(read_run(folder), engine="auto", data=data, **changes)  # needs no graph, nor GPU
    tensors, meta = load_latest_checkpoint(folder / "checkpoints")
    custom_splits = splits is not None
    # before the dataset of that name is read
    run_dir.check_data_available(folder, meta, custom_splits=custom_splits)
    trainer = make_trainer(run, splits=splits, model=model, expected_state=tensors)
    fingerprint = trainer.splits.fingerprint()
    run_dir.check_fingerprint(folder, meta, fingerprint, custom_splits=custom_splits)
    return trainer, tensors, meta["step"]


def _load_best(folder: str | Path, trainer: Trainer, step: int) -> int:
    """Load the averaged model that early stopping selected, if any, and return its step."""
    if trainer.run.report != "best":
        return step
    best = find_best_step(extract_curve(read_metric_rows(folder), "validation"))
    loaded = load_checkpoint(get_checkpoint_path(Path(folder) / run_dir.BEST_DIR, best))
    if loaded is None:
        return step
    trainer.load_teacher(loaded[0])
    return best


def read_metric_rows(folder: str | Path) -> list[MetricRow]:
    """Read the evaluations of a run in order; an InputError if there are none."""
    path = Path(folder) / "metrics.jsonl"
    try:
        rows = parse_metrics(path.read_bytes()) if path.exists() else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise DamagedFile(f"{path} is damaged; restore it, or choose a different run") from None
    if not rows:
        fix = "train it longer, or choose a different run"
        raise InputError(f"{folder} has no evaluations yet; {fix}")
    return rows


def check_same_split(folder: str | Path, other: str | Path) -> None:
    """Check that two runs were trained on the same samples."""
    fields, others = (dict(flatten_fields(read_run(Path(name)))) for name in (folder, other))
    differing = [name for name in SPLIT_FIELDS if others[name] != fields[name]]
    if differing:
        listed = "; ".join(f"{n} is {others[n]} there and {fields[n]} here" for n in differing)
        raise InputError(f"{other} uses a different split ({listed}); choose a different run")


def load_model(
    folder: str | Path, *, splits: Splits | None = None, model: nn.Module | None = None
) -> nn.Module:
    """Load the averaged model of a run, in evaluation mode.

    Args:
        folder: Run folder.
        splits: Your own splits, if the run was trained on them.
        model: Your own network, if the run trained it.

    Returns:
        The averaged model.

    Raises:
        InputError: If the folder holds no run, or the run was trained on other data.

    """
    trainer, _ = load_trainer(folder, splits=splits, model=model)
    teacher = trainer.teacher.model
    for p, trained in zip(teacher.parameters(), trainer.model.parameters(), strict=True):
        p.data = p.data.clone()  # in training, all parameters are views of one buffer
        p.requires_grad_(trained.requires_grad)
    return teacher.eval()


def evaluate_run(
    folder: str | Path, *, device: str | None = None, root: str | None = None
) -> dict[str, Any]:
    """Evaluate the averaged model of a run on its validation and test samples, with all metrics."""
    trainer, step = load_trainer(folder, device=device, root=root)
    run, result = trainer.run, read_result(Path(folder))
    metrics = {
        part: {name: round(v, 4) for name, v in values.items()}
        for part, values in trainer.compute_metrics().items()
    }
    summary = {"name": run.name, "seed": run.seed, "step": step, "steps": run.steps}
    return {**summary, "finished": result is not None, **metrics}
