"""Evaluation of the averaged model, and the figure that a run reports (appendix, «Classification Experiments»)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean, median
from typing import Literal

import torch
from torch import Tensor, nn

from l2i.data.split import Samples
from l2i.data.stream import batches
from l2i.training.log import Row

COUNT = 20  # evaluations that the final figure is made of
SHARE = 0.02  # of the steps, at the end, in which they lie
SHORT = 1000  # steps under which the last evaluation alone counts
BATCH = {"cpu": 64, "cuda": 1024}  # samples at a time: a CPU's cache holds the activations of few

USUAL = 128  # tokens of a text, up to which as many are taken

Final = Literal["median", "mean", "best"]
Curve = dict[int, float]  # step -> figure


def is_evaluated(step: int, steps: int, every: int) -> bool:
    """Whether to evaluate after `step`: for a curve, and for what the final figure is made of."""
    return step % every == 0 or step in final_steps(steps)


def final_steps(steps: int) -> list[int]:
    """The evaluations that make the final figure, evenly spread over the last 2 % of the steps."""
    return [steps] if steps < SHORT else [steps - int(i * SHARE * steps / COUNT) for i in reversed(range(COUNT))]


def final_figure(figures: Curve, validation: Curve, steps: int, final: Final) -> float:
    """The figure of a run from its evaluations: of `figures`, where early stopping looks at `validation`."""
    if final == "best":
        return figures[best_step(validation)]
    return {"median": median, "mean": mean}[final](figures[step] for step in final_steps(steps))


def curve(rows: list[Row], part: str) -> Curve:
    """The figure on a set at each evaluation."""
    return {int(row["step"] or 0): float(row[part] or 0) for row in rows if row[part] is not None}


def best_step(validation: Curve) -> int:
    """The evaluation that early stopping chooses: the first with the lowest validation figure."""
    return min(validation, key=lambda step: (validation[step], step))


def definition(steps: int, final: Final, part: str = "test", *, averaged: bool = True) -> str:
    """How the final figure comes about, in words; on the validation set where there is no test set."""
    model = f"the {'averaged ' * averaged}model on the {part} set"
    if final == "best":
        return f"{model}, at the evaluation with the best validation figure (early stopping)"
    if steps < SHORT:
        return f"{model}, at the last step"
    return f"{final} of the last 20 evaluations of {model}, in the last 2 % of the steps"


@torch.no_grad()
def outputs_of(
    model: nn.Module,
    samples: Samples,
    inputs: Callable[[Tensor], Tensor],
    *,
    workers: int = 0,
    batch: int | None = None,
    told: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """The outputs for whole `samples`, in evaluation mode; `inputs` makes of raw samples what the network takes.

    `told` hears, again and again, how many more samples are done.
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        size = batch_for(samples) if batch is None else batch
        outputs = []
        for raw in chunks(samples, size, workers):
            outputs.append(model(inputs(raw)))
            told(len(raw))
        return torch.cat(outputs)
    finally:
        for module, before in training.items():
            module.training = before


def batch_for(samples: Samples) -> int:
    """How many samples at a time; of long texts, fewer."""
    most = BATCH.get(samples.y.device.type, 1024)
    texts = isinstance(samples.x, Tensor) and samples.x.dtype == torch.int32  # token ids
    return max(1, min(most, most * USUAL // samples.x.shape[-1])) if texts else most


def chunks(samples: Samples, size: int, workers: int) -> Iterator[Tensor]:
    """Raw samples, some at a time, on the device."""
    if isinstance(samples.x, Tensor):
        return iter(samples.x.split(size))
    return batches(samples.x, size, device=samples.y.device, workers=workers)
