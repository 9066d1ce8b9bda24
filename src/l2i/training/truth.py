"""Imputed labels against the truth that a benchmark hides, measured beside the training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2i.data.split import Samples
from l2i.training.own_statistics import outputs_in_training
from l2i.training.trainer import Trainer

COLUMNS = ("imputed", "above", "imputed_above", "imputed_below")
SEED = 0  # of the samples that are looked at, the same ones at every look


def agreement(trainer: Trainer) -> dict[str, float]:
    """How many of the classes imputed for some unlabelled samples are wrong, in per cent.

    Where the method masks: the share of labels above its threshold as well, and how many are wrong above and below it,
    no numbers where there are none. Nothing where the run probes nothing, or the truth is not known, as of one's own
    data.
    """
    run, task = trainer.run, trainer.task
    known = task.kind == "classification" and bool((trainer.splits.unlabeled.y >= 0).any())
    if not run.probe or not run.method.imputes or not known:
        return {}
    outputs, y = of_unlabeled(trainer, trainer.gradients.imputer, run.probe)
    confidence, choice = task.label(outputs.double()).max(dim=1)
    wrong = 100 * (choice != y).double()
    threshold = getattr(run.method, "threshold", None) if run.method.masks else None
    if threshold is None:
        return {"imputed": float(wrong.mean())}
    above = confidence >= threshold
    parts = (wrong, above.double(), wrong[above], wrong[~above])
    return {name: float(torch.mean(part)) for name, part in zip(COLUMNS, parts, strict=True)}


def some_unlabeled(trainer: Trainer, count: int) -> Samples:
    """Whole mini-batches of unlabelled samples, about `count`, drawn from all whose truth is known.

    The first ones would not do: those of a benchmark are in the order of their classes.
    """
    hidden, size = trainer.splits.unlabeled, trainer.run.batch.unlabeled
    rows = torch.arange(len(hidden.y))
    if trainer.task.kind == "classification":
        rows = rows[(hidden.y >= 0).cpu()]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))
    return hidden.take(rows[order[: max(1, count // size) * size]].to(hidden.y.device))


def of_unlabeled(trainer: Trainer, model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """A model's outputs for unlabelled samples as they are, and their truth.

    Each mini-batch has its own BatchNorm statistics, as where a step imputes; a method that passes all samples in one
    forward has them from more than these.
    """
    some, run = some_unlabeled(trainer, count), trainer.run
    size, workers = run.batch.unlabeled, run.data.workers
    return outputs_in_training(model, some, trainer.inputs, size=size, workers=workers), some.y
