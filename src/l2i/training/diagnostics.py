"""Imputed labels against the truth that a benchmark hides, measured beside the training.

MERGED:
What an outer update does to the costs, measured beside the training (figure «Effect of update on labels»).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from l2i.bilevel.problem import Params
from l2i.data.batch import Batch
from l2i.data.samples import Samples
from l2i.training.ema import compute_outputs_train_bn
from l2i.training.evaluation import compute_outputs
from l2i.training.trainer import Trainer

ERROR_COLUMNS = ("pseudo_label_error", "mask_rate_probe", "pseudo_label_error_above_threshold", "pseudo_label_error_below_threshold")
PROBE_SEED = 0  # of the samples that are looked at, the same ones at every look


def pseudo_label_error(trainer: Trainer) -> dict[str, float]:
    """How many of the classes imputed for some unlabelled samples are wrong, in per cent.

    Where the method masks: the share of labels above its threshold as well, and how many are wrong above and below it,
    no numbers where there are none. Nothing where the run probes nothing, or the truth is not known, as of one's own
    data.
    """
    run, task = trainer.run, trainer.task
    has_truth = task.kind == "classification" and bool((trainer.splits.unlabeled.y >= 0).any())
    if not run.probe_samples or not run.method.uses_pseudo_labels or not has_truth:
        return {}
    outputs, y = predict_unlabeled(trainer, trainer.gradients.imputer, run.probe_samples)
    confidence, choice = task.to_label(outputs.double()).max(dim=1)
    wrong = 100 * (choice != y).double()
    threshold = getattr(run.method, "threshold", None) if run.method.uses_confidence_mask else None
    if threshold is None:
        return {"pseudo_label_error": float(wrong.mean())}
    above = confidence >= threshold
    parts = (wrong, above.double(), wrong[above], wrong[~above])
    return {name: float(torch.mean(part)) for name, part in zip(ERROR_COLUMNS, parts, strict=True)}


def sample_unlabeled(trainer: Trainer, count: int) -> Samples:
    """Whole mini-batches of unlabelled samples, about `count`, drawn from all whose truth is known.

    The first ones would not do: those of a benchmark are in the order of their classes.
    """
    unlabeled, size = trainer.splits.unlabeled, trainer.run.batch.unlabeled
    rows = torch.arange(len(unlabeled.y))
    if trainer.task.kind == "classification":
        rows = rows[(unlabeled.y >= 0).cpu()]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(PROBE_SEED))
    return unlabeled.take(rows[order[: max(1, count // size) * size]].to(unlabeled.y.device))


def predict_unlabeled(trainer: Trainer, model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """A model's outputs for unlabelled samples as they are, and their truth.

    Each mini-batch has its own BatchNorm statistics, as where a step imputes; a method that passes all samples in one
    forward has them from more than these.
    """
    samples, run = sample_unlabeled(trainer, count), trainer.run
    size, workers = run.batch.unlabeled, run.data.workers
    return compute_outputs_train_bn(model, samples, trainer.preprocess, batch_size=size, workers=workers), samples.y


T = TypeVar("T")
PROBE_COLUMNS = ("c_h_before", "c_h_after", "test_cost_before", "test_cost_after")


def measure_outer_update(trainer: Trainer, step: int) -> dict[str, float]:
    """C^H and the cost of the first test samples after one more step from here, before and after its outer update.

    Nothing where the run asks for none, or has no outer update. There is no dropout to hide what the update does, and
    samples are normalised among themselves, as in training: running statistics hardly move in a step.
    """
    if trainer.outer_step is None or not trainer.run.probe_samples:
        return {}
    without, updated = compare_outer_update(trainer, step, lambda batch: (measure_holdout_cost(trainer, batch), measure_test_cost(trainer)))
    return dict(zip(PROBE_COLUMNS, (without[0], updated[0], without[1], updated[1]), strict=True))


def compare_outer_update(trainer: Trainer, step: int, measure: Callable[[Batch], T]) -> tuple[T, T]:
    """What `measure` finds after `step` steps and one more: that one without its outer update, then with it.

    The trainer is left as it was. After the last step the last batch serves once more.
    """
    t = min(step, trainer.run.steps - 1)
    batch, saved_state = trainer.loader.draw_batch(t), clone_tensors(trainer.state_dict())
    try:
        take_base_step(trainer, batch, t)
        without = measure(batch)
        trainer.load_state_dict(clone_tensors(saved_state))  # a copy: the optimizer goes on to write into what it loads
        trainer.step(t, outer=True)
        return without, measure(batch)
    finally:
        trainer.load_state_dict(saved_state)


def compare_outputs(trainer: Trainer, step: int, samples: Samples) -> tuple[Tensor, Tensor]:
    """The outputs of the model itself for `samples`, whose labels it imputes, before and after an outer update."""
    return compare_outer_update(trainer, step, lambda _: compute_outputs(trainer.network, samples, trainer.preprocess))


def take_base_step(trainer: Trainer, batch: Batch, t: int) -> None:
    """The step that the base method alone takes."""
    trainer.optimizer(trainer.base_gradient(batch, t), trainer.scalars.lr_factor)
    trainer.optimizer.apply_weight_decay()


def clone_tensors(tensors: Params) -> Params:
    """A state of its own: `Trainer.state` gives the trainer's own tensors."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def measure_holdout_cost(trainer: Trainer, batch: Batch) -> float:
    """C^H of the model on the batch's hold-out samples, those of all processes."""
    assert batch.holdout is not None
    holdout = Samples(*batch.holdout)
    outputs = compute_outputs_train_bn(trainer.network, holdout, lambda views: views)
    return float(trainer.ranks.all_reduce_mean(trainer.task.loss(outputs, holdout.y)))


def measure_test_cost(trainer: Trainer) -> float:
    """The cost of the model itself, not its average, on the first test samples; not a number where there are none."""
    test, count = trainer.splits.test, trainer.run.probe_samples
    if not len(test.x):
        return math.nan
    samples = Samples(test.x[:count], test.y[:count])
    outputs = compute_outputs_train_bn(trainer.network, samples, trainer.preprocess, workers=trainer.run.data.workers)
    return float(trainer.task.loss(outputs, trainer.task.encode(samples.y)))
