"""Imputed labels against the truth that a benchmark hides, measured beside the training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2i.data.split import Samples
from l2i.training.evaluate import outputs_of
from l2i.training.trainer import Trainer

COLUMNS = ("imputed", "above", "imputed_above", "imputed_below")


def agreement(trainer: Trainer) -> dict[str, float]:
    """How many of the classes imputed for the first unlabelled samples are wrong, in per cent.

    Where the method masks: the share of labels above its threshold as well, and how many are wrong above and below it,
    no numbers where there are none. Nothing where the run probes nothing, or the truth is not known, as of one's own
    data. What imputes is in evaluation mode and sees the samples as they are.
    """
    run, task, y = trainer.run, trainer.task, trainer.splits.unlabeled.y[: trainer.run.probe]
    if not len(y) or not run.method.imputes or task.kind != "classification" or bool((y < 0).any()):
        return {}
    outputs, _ = of_unlabeled(trainer, trainer.gradients.imputer, run.probe)
    confidence, choice = task.label(outputs.double()).max(dim=1)
    wrong = 100 * (choice != y).double()
    threshold = getattr(run.method, "threshold", None) if run.method.masks else None
    if threshold is None:
        return {"imputed": float(wrong.mean())}
    above = confidence >= threshold
    parts = (wrong, above.double(), wrong[above], wrong[~above])
    return {name: float(torch.mean(part)) for name, part in zip(COLUMNS, parts, strict=True)}


def of_unlabeled(trainer: Trainer, model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """A model's outputs for the first unlabelled samples, and their truth."""
    hidden = trainer.splits.unlabeled
    some = Samples(hidden.x[:count], hidden.y[:count])
    return outputs_of(model, some, trainer.inputs, workers=trainer.run.data.workers), some.y
