"""What an outer update does to the costs, measured beside the training (figure «Effect of update on labels»)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from l2i.batch import Batch, Params
from l2i.data.split import Samples
from l2i.training.evaluate import outputs_of
from l2i.training.own_statistics import outputs_in_training
from l2i.training.trainer import Trainer

T = TypeVar("T")
COLUMNS = ("c_h_before", "c_h_after", "test_cost_before", "test_cost_after")


def probe(trainer: Trainer, step: int) -> dict[str, float]:
    """C^H and the cost of the first test samples after one more step from here, before and after its outer update.

    Nothing where the run asks for none, or has no outer update. There is no dropout to hide what the update does, and
    samples are normalised among themselves, as in training: running statistics hardly move in a step.
    """
    if trainer.outer is None or not trainer.run.probe:
        return {}
    without, updated = either_way(trainer, step, lambda batch: (holdout_cost(trainer, batch), cost_on_test(trainer)))
    return dict(zip(COLUMNS, (without[0], updated[0], without[1], updated[1]), strict=True))


def either_way(trainer: Trainer, step: int, measure: Callable[[Batch], T]) -> tuple[T, T]:
    """What `measure` finds after `step` steps and one more: that one without its outer update, then with it.

    The trainer is left as it was. After the last step the last batch serves once more.
    """
    t = min(step, trainer.run.steps - 1)
    batch, kept = trainer.loader.draw(t), copied(trainer.state())
    try:
        base_step(trainer, batch, t)
        without = measure(batch)
        trainer.load(copied(kept))  # a copy: the optimizer goes on to write into what it loads
        trainer.step(t, outer=True)
        return without, measure(batch)
    finally:
        trainer.load(kept)


def outputs_either_way(trainer: Trainer, step: int, samples: Samples) -> tuple[Tensor, Tensor]:
    """The outputs of the model itself for `samples`, whose labels it imputes, before and after an outer update."""
    return either_way(trainer, step, lambda _: outputs_of(trainer.network, samples, trainer.inputs))


def base_step(trainer: Trainer, batch: Batch, t: int) -> None:
    """The step that the base method alone takes."""
    trainer.optimizer(trainer.base_gradient(batch, t), trainer.clock.rate)
    trainer.optimizer.decay()


def copied(tensors: Params) -> Params:
    """A state of its own: `Trainer.state` gives the trainer's own tensors."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def holdout_cost(trainer: Trainer, batch: Batch) -> float:
    """C^H of the model on the batch's hold-out samples, those of all processes."""
    assert batch.holdout is not None
    held = Samples(*batch.holdout)
    outputs = outputs_in_training(trainer.network, held, lambda views: views)
    return float(trainer.ranks.mean(trainer.task.loss(outputs, held.y)))


def cost_on_test(trainer: Trainer) -> float:
    """The cost of the model itself, not its average, on the first test samples; not a number where there are none."""
    test, count = trainer.splits.test, trainer.run.probe
    if not len(test.x):
        return math.nan
    samples = Samples(test.x[:count], test.y[:count])
    outputs = outputs_in_training(trainer.network, samples, trainer.inputs, workers=trainer.run.data.workers)
    return float(trainer.task.loss(outputs, trainer.task.encode(samples.y)))
