"""What a run folder holds, ready to use: its averaged model, its whole state, its metrics and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from l2i.bilevel.problem import Params
from l2i.config import Precision, replace
from l2i.config.validate import flatten_fields
from l2i.data.samples import Splits
from l2i.errors import InputError
from l2i.training.checkpoint import get_checkpoint_path, latest_valid, load_checkpoint
from l2i.training.evaluation import extract_curve, find_best_step
from l2i.training.metrics import MetricRow, parse_metrics
from l2i.training.run_dir import BEST_DIR, check_data_available, check_fingerprint, read_result, read_run
from l2i.training.trainer import Trainer

SPLIT_FIELDS = ("data.name", "data.num_labeled", "data.num_validation", "seed")  # the fields that make a split


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
    trainer, tensors, step = _open(
        folder, splits=splits, model=model, device=device, root=root, precision=precision, run_sanity_check=False
    )
    trainer.load_teacher(tensors)
    return trainer, _load_best(folder, trainer, step)


class LoadedRun(NamedTuple):
    """A run as it was at its newest checkpoint, and all its evaluations."""

    trainer: Trainer
    step: int
    teacher_step: int  # of the averaged model, where early stopping chose it
    rows: list[MetricRow]

    @property
    def label(self) -> str:
        """The run in a few words."""
        return f"{self.trainer.run.name}, seed {self.trainer.run.seed}, step {self.teacher_step:,}"


def load_full_state(folder: str | Path, *, device: str | None = None, root: str | None = None) -> LoadedRun:
    """A run with its whole state, to be closed by the caller; this sets torch's generators as well.

    `root` is the folder of the data, where it is not the run's own.
    """
    read_run(Path(folder))  # a folder that holds no run is called so, before its evaluations are missed
    rows = read_metric_rows(folder)
    trainer, tensors, step = _open(folder, device=device, root=root)
    trainer.load_state_dict(tensors)
    return LoadedRun(trainer, step, _load_best(folder, trainer, step), rows)


def _open(
    folder: str | Path,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    device: str | None = None,
    root: str | None = None,
    precision: Precision | None = None,
    run_sanity_check: bool = True,
) -> tuple[Trainer, Params, int]:
    """A new trainer, and the state and step of the run's newest checkpoint."""
    run = replace(read_run(Path(folder)), engine="auto")  # looking at a run needs no graph, nor a GPU
    run = run if device is None else replace(run, device=device)
    run = run if root is None else replace(run, data={"root": root})
    run = run if precision is None else replace(run, precision=precision)
    tensors, meta = latest_valid(Path(folder) / "checkpoints")
    check_data_available(Path(folder), meta, custom_splits=splits is not None)  # before the data set of the run's name is read
    trainer = Trainer(run, splits=splits, model=model, expected_state=tensors, run_sanity_check=run_sanity_check)
    check_fingerprint(Path(folder), meta, trainer.splits, custom_splits=trainer.custom_splits)
    return trainer, tensors, meta["step"]


def _load_best(folder: str | Path, trainer: Trainer, step: int) -> int:
    """Load the averaged model that early stopping chose, where it did, and return the step that it is of."""
    if trainer.run.report != "best":
        return step
    best = find_best_step(extract_curve(read_metric_rows(folder), "validation"))
    loaded = load_checkpoint(get_checkpoint_path(Path(folder) / BEST_DIR, best))
    if loaded is None:
        return step
    trainer.load_teacher(loaded[0])
    return best


def read_metric_rows(folder: str | Path) -> list[MetricRow]:
    """The evaluations of a run, in order; an InputError where there are none."""
    path = Path(folder) / "metrics.jsonl"
    try:
        rows = parse_metrics(path.read_bytes()) if path.exists() else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is damaged; restore it, or give another run") from None
    if not rows:
        raise InputError(f"{folder} has no evaluations yet; let it train longer, or give another run")
    return rows


def check_same_split(folder: str | Path, other: str | Path) -> None:
    """Raise an InputError where two runs were not trained on the same samples."""
    own_fields, other_fields = (dict(flatten_fields(read_run(Path(name)))) for name in (folder, other))
    mismatches = [f"{name} is {other_fields[name]} there and {own_fields[name]} here" for name in SPLIT_FIELDS if other_fields[name] != own_fields[name]]
    if mismatches:
        raise InputError(f"{other} is of other data or another split ({'; '.join(mismatches)}); give another run")


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
    run, result = trainer.run, read_result(Path(folder))
    metrics = {part: {name: round(v, 4) for name, v in values.items()} for part, values in trainer.compute_metrics().items()}
    summary = {"name": run.name, "seed": run.seed, "step": step, "steps": run.steps, "finished": result is not None}
    return {**summary, **metrics}
