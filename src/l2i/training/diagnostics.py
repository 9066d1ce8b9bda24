"""Pseudo-label error, and the effect of an outer update, as the paper plots them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import Params
from l2i.data.batch import Batch
from l2i.data.samples import Samples
from l2i.training.ema import compute_outputs_train_bn
from l2i.training.evaluation import compute_outputs
from l2i.training.trainer import Trainer

ERROR_COLUMNS = (
    "pseudo_label_error",
    "mask_rate_probe",
    "pseudo_label_error_above_threshold",
    "pseudo_label_error_below_threshold",
)
PROBE_COLUMNS = ("c_h_before", "c_h_after", "test_cost_before", "test_cost_after")
PROBE_SEED = 0  # every probe uses the same samples

T = TypeVar("T")


def measure_pseudo_label_error(trainer: Trainer) -> dict[str, float]:
    """Return the percentage of wrong classes among those imputed for some unlabelled samples.

    If the method masks, also return the fraction of labels above its threshold, and the errors
    above and below it (NaN if there are none). Return nothing if the run does not probe or the
    truth is unknown.
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
    """Draw whole mini-batches of about `count` unlabelled samples whose truth is known."""
    unlabeled, size = trainer.splits.unlabeled, trainer.run.batch.unlabeled
    rows = torch.arange(len(unlabeled.y))
    if trainer.task.kind == "classification":
        rows = rows[(unlabeled.y >= 0).cpu()]
    # shuffled: those of a benchmark are sorted by class
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(PROBE_SEED))
    return unlabeled.take(rows[order[: max(1, count // size) * size]].to(unlabeled.y.device))


def predict_unlabeled(trainer: Trainer, model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """Return outputs for unaugmented unlabelled samples, with batch BatchNorm, and the truth."""
    samples, run = sample_unlabeled(trainer, count), trainer.run
    size, workers = run.batch.unlabeled, run.data.workers
    outputs = compute_outputs_train_bn(
        model, samples, trainer.preprocess, batch_size=size, workers=workers
    )
    return outputs, samples.y


def measure_outer_update(trainer: Trainer, step: int) -> dict[str, float]:
    """Return C^H and the test cost after one more step, without and with its outer update.

    Return nothing if the run does not probe or has no outer update. Dropout, which would hide the
    effect, is off, and BatchNorm uses batch statistics: running ones hardly move in a step.
    """
    if trainer.outer_step is None or not trainer.run.probe_samples:
        return {}

    def measure(batch: Batch) -> tuple[float, float]:
        return _measure_holdout_cost(trainer, batch), measure_test_cost(trainer)

    before, after = compare_outer_update(trainer, step, measure)
    return dict(zip(PROBE_COLUMNS, (before[0], after[0], before[1], after[1]), strict=True))


def compare_outer_update(trainer: Trainer, step: int, measure: Callable[[Batch], T]) -> tuple[T, T]:
    """Return `measure` after one more step than `step`, without and with its outer update.

    The trainer is left as it was. After the last step, the last batch is used again.
    """
    t = min(step, trainer.run.steps - 1)
    batch, saved_state = trainer.loader.draw_batch(t), _clone_tensors(trainer.state_dict())
    try:
        trainer.optimizer(trainer.compute_base_gradient(batch, t), trainer.scalars.lr_factor)
        trainer.optimizer.apply_weight_decay()
        before = measure(batch)
        trainer.load_state_dict(_clone_tensors(saved_state))  # the optimizer writes into it
        trainer.step(t, outer=True)
        return before, measure(batch)
    finally:
        trainer.load_state_dict(saved_state)


def compare_outputs(trainer: Trainer, step: int, samples: Samples) -> tuple[Tensor, Tensor]:
    """Return the model's outputs for `samples` after a step without and with its outer update."""
    return compare_outer_update(
        trainer, step, lambda _: compute_outputs(trainer.network, samples, trainer.preprocess)
    )


def _clone_tensors(tensors: Params) -> Params:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _measure_holdout_cost(trainer: Trainer, batch: Batch) -> float:
    """Return C^H of the model on the batch's hold-out samples, averaged over all processes."""
    assert batch.holdout is not None
    holdout = Samples(*batch.holdout)
    outputs = compute_outputs_train_bn(trainer.network, holdout, lambda views: views)
    return float(trainer.group.all_reduce_mean(trainer.task.loss(outputs, holdout.y)))


def measure_test_cost(trainer: Trainer) -> float:
    """Return the cost of the model, not its average, on the first test samples; NaN if none."""
    test, count = trainer.splits.test, trainer.run.probe_samples
    if not len(test.x):
        return math.nan
    samples = Samples(test.x[:count], test.y[:count])
    outputs = compute_outputs_train_bn(
        trainer.network, samples, trainer.preprocess, workers=trainer.run.data.workers
    )
    return float(trainer.task.loss(outputs, trainer.task.encode(samples.y)))
