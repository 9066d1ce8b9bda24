"""Evaluation of the averaged model, and the figure that a run reports (appendix, «Classification Experiments»)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean, median
from typing import Literal

import torch
from torch import Tensor, nn

from l2i.data.samples import Samples
from l2i.data.streaming import iter_batches
from l2i.training.metrics import MetricRow

NUM_FINAL_EVALS = 20  # evaluations that the final figure is made of
FINAL_EVAL_FRACTION = 0.02  # of the steps, at the end, in which they lie
MIN_STEPS_FOR_AVERAGE = 1000  # steps under which the last evaluation alone counts
EVAL_BATCH_SIZES = {"cpu": 64, "cuda": 1024}  # samples at a time: a CPU's cache holds the activations of few

TYPICAL_TEXT_LENGTH = 128  # tokens of a text, up to which as many are taken

ReportRule = Literal["median", "mean", "best"]
MetricCurve = dict[int, float]  # step -> figure


def is_eval_step(step: int, steps: int, every: int) -> bool:
    """Whether to evaluate after `step`: for a curve, and for what the final figure is made of."""
    return step % every == 0 or step in compute_final_steps(steps)


def compute_final_steps(steps: int) -> list[int]:
    """The evaluations that make the final figure, evenly spread over the last 2 % of the steps."""
    return [steps] if steps < MIN_STEPS_FOR_AVERAGE else [steps - int(i * FINAL_EVAL_FRACTION * steps / NUM_FINAL_EVALS) for i in reversed(range(NUM_FINAL_EVALS))]


def compute_final_metric(metric_curve: MetricCurve, validation: MetricCurve, steps: int, final: ReportRule) -> float:
    """The figure of a run from its evaluations: of `figures`, where early stopping looks at `validation`."""
    if final == "best":
        return metric_curve[find_best_step(validation)]
    return {"median": median, "mean": mean}[final](metric_curve[step] for step in compute_final_steps(steps))


def extract_curve(rows: list[MetricRow], part: str) -> MetricCurve:
    """The figure on a set at each evaluation."""
    return {int(row["step"] or 0): float(row[part] or 0) for row in rows if row[part] is not None}


def find_best_step(validation: MetricCurve) -> int:
    """The evaluation that early stopping chooses: the first with the lowest validation figure."""
    return min(validation, key=lambda step: (validation[step], step))


def describe_metric(steps: int, final: ReportRule, part: str = "test", *, averaged: bool = True) -> str:
    """How the final figure comes about, in words; on the validation set where there is no test set."""
    model = f"the {'averaged ' * averaged}model on the {part} set"
    if final == "best":
        return f"{model}, at the evaluation with the best validation figure (early stopping)"
    if steps < MIN_STEPS_FOR_AVERAGE:
        return f"{model}, at the last step"
    return f"{final} of the last 20 evaluations of {model}, in the last 2 % of the steps"


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
    """The outputs for whole `samples`, in evaluation mode; `inputs` makes of raw samples what the network takes.

    `told` hears, again and again, how many more samples are done.
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
    """How many samples at a time; of long texts, fewer."""
    max_batch_size = EVAL_BATCH_SIZES.get(samples.y.device.type, 1024)
    is_text = isinstance(samples.x, Tensor) and samples.x.dtype == torch.int32  # token ids
    return max(1, min(max_batch_size, max_batch_size * TYPICAL_TEXT_LENGTH // samples.x.shape[-1])) if is_text else max_batch_size


def iter_chunks(samples: Samples, size: int, workers: int) -> Iterator[Tensor]:
    """Raw samples, some at a time, on the device."""
    if isinstance(samples.x, Tensor):
        return iter(samples.x.split(size))
    return iter_batches(samples.x, size, device=samples.y.device, workers=workers)
