"""Evaluation of the averaged model, and the figure that a run reports (appendix, «Classification Experiments»)."""

from __future__ import annotations

from statistics import median

import torch
from torch import nn

from l2i.data.split import Samples
from l2i.tasks.base import Task

COUNT = 20  # evaluations that the final figure is the median of
SHARE = 0.02  # of the steps, at the end, in which they lie
SHORT = 1000  # steps under which the last evaluation alone counts
DEFINITION = "median of the last 20 evaluations of the averaged model on the test set, in the last 2 % of the steps"
SHORT_DEFINITION = "the averaged model on the test set, at the last step"


def is_evaluated(step: int, steps: int, every: int) -> bool:
    """Whether to evaluate after `step`: for a curve, and for what the final figure is made of."""
    return step % every == 0 or step in final_steps(steps)


def final_steps(steps: int) -> list[int]:
    """The evaluations that make the final figure, evenly spread over the last 2 % of the steps."""
    return [steps] if steps < SHORT else [steps - int(i * SHARE * steps / COUNT) for i in reversed(range(COUNT))]


def final_figure(curve: dict[int, float], steps: int) -> float:
    """The figure of a run from its evaluations, step -> value."""
    return median(curve[step] for step in final_steps(steps))


@torch.no_grad()
def evaluate(model: nn.Module, samples: Samples, task: Task, *, batch: int = 1024) -> float:
    """The task's figure on whole `samples`, in evaluation mode."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    outputs = torch.cat([model(x) for x in samples.x.split(batch)])
    for module, before in training.items():
        module.training = before
    return float(task.figure(outputs, samples.y))
