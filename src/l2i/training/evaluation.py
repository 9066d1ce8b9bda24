"""Evaluation, and the metric a run reports (appendix, «Classification Experiments»)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Literal

import torch
from torch import Tensor, nn

from l2i.data.samples import Samples, Splits
from l2i.data.streaming import iter_batches
from l2i.tasks import Task
from l2i.training.metrics import MetricRow

NUM_FINAL_EVALS = 20  # evaluations behind the final metric
FINAL_EVAL_FRACTION = 0.02  # of the steps, at the end, over which they are spread
# at least, up to a tenth of the run: evaluations of one average that lie closer are all alike
MIN_FINAL_WINDOW = 1000
MIN_STEPS_FOR_AVERAGE = 1000  # shorter runs report the last evaluation alone
EVAL_BATCH_SIZES = {"cpu": 64, "cuda": 1024}  # activations of few samples fit in a CPU's cache
TARGET_TOLERANCE = 1e-6  # relative; a target with a smaller std does not vary
TYPICAL_TEXT_LENGTH = 128  # tokens; batches of longer texts are smaller

ReportRule = Literal["median", "best"]
MetricCurve = dict[int, float]  # step -> metric


def is_eval_step(step: int, steps: int, every: int) -> bool:
    """Return whether to evaluate after `step`, for the curve or for the final metric."""
    return step % every == 0 or step in compute_final_steps(steps)


def compute_final_steps(steps: int) -> list[int]:
    """Return the evaluations behind the final metric, spread over the end of the run."""
    if steps < MIN_STEPS_FOR_AVERAGE:
        return [steps]
    interval = _compute_final_window(steps) / NUM_FINAL_EVALS
    return [steps - int(i * interval) for i in reversed(range(NUM_FINAL_EVALS))]


def _compute_final_window(steps: int) -> int:
    return int(max(FINAL_EVAL_FRACTION * steps, min(MIN_FINAL_WINDOW, steps / 10)))


def compute_final_metric(
    metric_curve: MetricCurve, validation: MetricCurve, steps: int, final: ReportRule
) -> float:
    """Return the metric that a run reports; early stopping selects by `validation`."""
    if final == "best":
        return metric_curve[find_best_step(validation)]
    return median(metric_curve[step] for step in compute_final_steps(steps))


def extract_curve(rows: list[MetricRow], part: str) -> MetricCurve:
    """Return the metric on a split at each evaluation."""
    return {int(row["step"] or 0): float(row[part] or 0) for row in rows if row[part] is not None}


def find_best_step(validation: MetricCurve) -> int:
    """Return the evaluation that early stopping selects: the first with the lowest metric."""
    return min(validation, key=lambda step: (validation[step], step))


def describe_metric(steps: int, final: ReportRule, part: str, *, averaged: bool) -> str:
    """Describe how the final metric is computed."""
    model = f"the {'averaged ' * averaged}model on the {part} set"
    if final == "best":
        return f"{model}, at the evaluation with the best validation metric (early stopping)"
    if steps < MIN_STEPS_FOR_AVERAGE:
        return f"{model}, at the last step"
    window = f"the last {_compute_final_window(steps):,} steps"
    return f"{final} of {model} over the last {NUM_FINAL_EVALS} evaluations ({window})"


def measure_diversity(task: Task, outputs: Tensor, y: Tensor) -> float:
    """Return how much the outputs depend on the sample; 0 for a constant.

    For classes: the fraction of predictions outside the most frequent class. For targets: the
    largest ratio of the outputs' std to the targets', or 1 if no target varies.
    """
    if task.kind == "classification":
        counts = outputs.argmax(dim=1).bincount(minlength=task.num_outputs)
        return 1 - float(counts.max()) / len(outputs)
    targets = task.encode(y).double()
    target_std = targets.std(dim=0, correction=0)
    output_std = outputs.double().std(dim=0, correction=0)
    is_varying = target_std > TARGET_TOLERANCE * targets.abs().amax(dim=0)
    return float((output_std / target_std)[is_varying].max()) if bool(is_varying.any()) else 1.0


def pick_monitored_split(splits: Splits) -> str | None:
    """Return the split whose outputs `measure_diversity` looks at."""
    return next((name for name in ("validation", "test") if len(getattr(splits, name).x)), None)


@torch.no_grad()
def compute_outputs(
    model: nn.Module,
    samples: Samples,
    preprocess: Callable[[Tensor], Tensor],
    *,
    workers: int = 0,
    batch_size: int | None = None,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Return the outputs for all `samples`, in evaluation mode.

    `preprocess` turns raw samples into the network's inputs; `on_progress` is called with the
    number of samples of each batch.
    """
    training_modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        size = pick_batch_size(samples) if batch_size is None else batch_size
        outputs = []
        for raw in iter_chunks(samples, size, workers):
            outputs.append(model(preprocess(raw)))
            on_progress(len(raw))
        return torch.cat(outputs)
    finally:
        for module, was_training in training_modes.items():
            module.training = was_training


def pick_batch_size(samples: Samples) -> int:
    """Return the number of samples per evaluation batch; fewer for long texts."""
    max_size = EVAL_BATCH_SIZES.get(samples.y.device.type, 1024)
    if isinstance(samples.x, Tensor) and samples.x.dtype == torch.int32:  # token ids
        return max(1, min(max_size, max_size * TYPICAL_TEXT_LENGTH // samples.x.shape[-1]))
    return max_size


def iter_chunks(samples: Samples, size: int, workers: int) -> Iterator[Tensor]:
    """Yield batches of raw samples on the device."""
    if isinstance(samples.x, Tensor):
        return iter(samples.x.split(size))
    return iter_batches(samples.x, size, device=samples.y.device, workers=workers)
