"""BatchNorm statistics of the averaged model, which is what is evaluated (appendix), in place of the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.inner import lookahead, moving_layers, still
from l2i.data.split import Samples
from l2i.training.evaluate import chunks, outputs_of
from l2i.training.precision import numerics

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.training.trainer import Trainer

SAMPLES = 1024  # training samples that statistics are taken on, about
BATCH = 256  # samples that are normalised among themselves, about


def renew_statistics(trainer: Trainer) -> None:
    """Give the averaged model statistics of its own, where the run asks for it, in place of the model's.

    Those are of the weights as they were, one step after the other, and not of their average: while a rate stays high
    the two are far apart. They are taken on what a step passes, the same mini-batches at every look, each forward
    counting alike: a network that has learned from shifted or mixed images expects the spread of those. Steps are not
    touched by it: the next one copies the model's statistics again.
    """
    run, teacher = trainer.run, trainer.teacher.model
    if run.optim.ema_statistics == "copied" or not moving_layers(teacher):
        return
    model, passed = trainer.at_precision(teacher), count(start=1)
    imputer = lookahead(model, dict(model.named_parameters()))
    with numerics(trainer.precision, trainer.device), norms_alone(teacher) as layers, torch.no_grad():

        def net(x: Tensor) -> Tensor:
            share = 1 / next(passed)
            for layer in layers:
                layer.momentum = share
            outputs: Tensor = model(x)
            return outputs

        loader = trainer.loader_of() if trainer.loader.streams else trainer.loader.twin()
        with closing(loader):
            for step in range(min(run.steps, -(-SAMPLES // rows(run)))):
                run.method.costs(trainer.task, net, imputer, loader.draw(step, holdout=False))


def rows(run: Run) -> int:
    """Samples that a step learns from."""
    return run.batch.labeled + (run.batch.unlabeled if run.method.views else 0)


@torch.no_grad()
def outputs_in_training(
    model: nn.Module, samples: Samples, inputs: Callable[[Tensor], Tensor], *, size: int = BATCH, workers: int = 0
) -> Tensor:
    """A model's outputs, about `size` samples at a time with BatchNorm statistics of their own, none of which it keeps.

    So a step sees them, but for dropout; the running statistics of a model under way lag behind it. A sample alone has
    no statistics, and is seen with the running ones.
    """
    total = len(samples.y)
    if total < 2:
        return outputs_of(model, samples, inputs, workers=workers)
    each = -(-total // max(1, total // size))  # none is left over, to be normalised among a few
    with norms_alone(model), still(model):
        return torch.cat([model(inputs(raw)) for raw in chunks(samples, each, workers)])


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
