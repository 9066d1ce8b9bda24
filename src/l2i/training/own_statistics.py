"""BatchNorm statistics of the averaged model itself, in place of those of the model (design: docs/results.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.inner import moving_layers, still
from l2i.data.split import Samples
from l2i.ranks import Ranks
from l2i.training.evaluate import chunks, outputs_of
from l2i.training.precision import numerics

if TYPE_CHECKING:
    from l2i.training.trainer import Trainer

SAMPLES, BATCH = 2048, 256  # of the training set, drawn again where it is smaller, and of them at a time
SEED = 0  # which ones, and in which views, the same at every look


def renew_statistics(trainer: Trainer) -> None:
    """Give the averaged model statistics of its own, where the run asks for it, in place of the model's.

    Those are of the weights as they were, one step after the other, and not of their average: while a rate stays high
    the two are far apart. Samples are seen in their weak views: a network that has learned from shifted images expects
    the spread of those. Steps are not touched by it: the next one copies the model's statistics again.
    """
    if trainer.run.optim.ema_statistics == "copied" or not moving_layers(trainer.teacher.model):
        return
    model, raws = trainer.at_precision(trainer.teacher.model), chunks(seen(trainer), BATCH, trainer.run.data.workers)
    generator = torch.Generator(trainer.device).manual_seed(SEED)
    with numerics(trainer.precision, trainer.device), norms_alone(trainer.teacher.model) as layers, torch.no_grad():
        for count, raw in enumerate(raws, start=1):
            for layer in layers:
                layer.momentum = 1 / count  # so that all mini-batches count alike
            model(shared(trainer.loader.viewed(raw, trainer.run.data.weak, generator), trainer.ranks))


def shared(samples: Tensor, ranks: Ranks) -> Tensor:
    """A process's part of some samples, as many as each other's; all of them where they are too few to share."""
    even = len(samples) // ranks.size * ranks.size
    return samples[slice(*ranks.part(even))] if even else samples


@torch.no_grad()
def outputs_in_training(
    model: nn.Module, samples: Samples, inputs: Callable[[Tensor], Tensor], *, size: int = BATCH, workers: int = 0
) -> Tensor:
    """A model's outputs, about `size` samples at a time with BatchNorm statistics of their own, none of which it keeps.

    So a step sees them, but for dropout; the running statistics of a model under way lag behind it. A sample alone has
    no statistics, and is seen with the running ones.
    """
    count = len(samples.y)
    if count < 2:
        return outputs_of(model, samples, inputs, workers=workers)
    each = -(-count // max(1, count // size))  # none is left over, to be normalised among a few
    with norms_alone(model), still(model):
        return torch.cat([model(inputs(raw)) for raw in chunks(samples, each, workers)])


def seen(trainer: Trainer) -> Samples:
    """Samples that the run learns from: unlabelled ones, or labelled ones where the method passes no others."""
    source = trainer.splits.unlabeled if trainer.run.method.views else trainer.splits.labeled
    generator = torch.Generator().manual_seed(SEED)
    orders = [torch.randperm(len(source.y), generator=generator) for _ in range(-(-SAMPLES // len(source.y)))]
    return source.take(torch.cat(orders)[:SAMPLES].to(source.y.device))


@contextmanager
def norms_alone(model: nn.Module) -> Iterator[list[_BatchNorm]]:
    """The model in evaluation mode but for the BatchNorm that is trained, whose layers it gives; then as it was."""
    layers, modes = moving_layers(model), {module: module.training for module in model.modules()}
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.training = True
    try:
        yield layers
    finally:
        for module, training in modes.items():
            module.training = training
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
