"""The teacher: an exponential moving average of the model (section 3, «Mean-teacher»).

MERGED:
BatchNorm statistics of the averaged model, which is what is evaluated (appendix), in place of the model's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.functional import freeze_buffers, lookahead, trainable_batchnorms
from l2i.data.samples import Samples
from l2i.training.evaluation import compute_outputs, iter_chunks
from l2i.training.optimizer import FlatParameters
from l2i.training.precision import use_precision

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.training.trainer import Trainer

class Teacher:
    """θ' ← α θ' + (1 − α) θ, with α growing from 0; it imputes for mean teacher, and it is what is evaluated."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.flat = FlatParameters(dict(self.model.named_parameters()))

    @torch.no_grad()
    def update(self, model: nn.Module, values: Tensor, update_rate: Tensor) -> None:
        """Take the share `fresh` = 1 − α of the model, whose parameters are `values`, and its buffers as they are."""
        self.flat.values.lerp_(values, update_rate)
        pairs = list(zip(self.model.buffers(), model.buffers(), strict=True))
        for dtype in dict.fromkeys(buffer.dtype for buffer, _ in pairs):  # of one kind, they are copied in one go
            same_dtype = [pair for pair in pairs if pair[0].dtype == dtype]
            torch._foreach_copy_([target for target, _ in same_dtype], [source for _, source in same_dtype])


BN_SAMPLES = 1024  # training samples that statistics are taken on, about
BN_BATCH_SIZE = 256  # samples that are normalised among themselves, about


def recompute_bn(trainer: Trainer) -> None:
    """Give the averaged model statistics of its own, where the run asks for it, in place of the model's.

    Those are of the weights as they were, one step after the other, and not of their average: while a rate stays high
    the two are far apart. They are taken on what a step passes, the same mini-batches at every look, each forward
    counting alike: a network that has learned from shifted or mixed images expects the spread of those. Steps are not
    touched by it: the next one copies the model's statistics again.
    """
    run, teacher = trainer.run, trainer.teacher.model
    if run.optim.ema_bn == "copy" or not trainable_batchnorms(teacher):
        return
    model, forward_counter = trainer.apply_precision(teacher), count(start=1)
    imputer = lookahead(model, dict(model.named_parameters()))
    with use_precision(trainer.precision, trainer.device), train_batchnorm_only(teacher) as layers, torch.no_grad():

        def net(x: Tensor) -> Tensor:
            new_momentum = 1 / next(forward_counter)
            for layer in layers:
                layer.momentum = new_momentum
            outputs: Tensor = model(x)
            return outputs

        loader = trainer.make_loader() if trainer.loader.streams else trainer.loader.clone()
        with closing(loader):
            for step in range(min(run.steps, -(-BN_SAMPLES // count_step_samples(run)))):
                run.method.compute_costs(trainer.task, net, imputer, loader.draw_batch(step, holdout=False))


def count_step_samples(run: Run) -> int:
    """Samples that a step learns from."""
    return run.batch.labeled + (run.batch.unlabeled if run.method.views else 0)


@torch.no_grad()
def compute_outputs_train_bn(
    model: nn.Module, samples: Samples, preprocess: Callable[[Tensor], Tensor], *, batch_size: int = BN_BATCH_SIZE, workers: int = 0
) -> Tensor:
    """A model's outputs, about `size` samples at a time with BatchNorm statistics of their own, none of which it keeps.

    So a step sees them, but for dropout; the running statistics of a model under way lag behind it. A sample alone has
    no statistics, and is seen with the running ones.
    """
    total = len(samples.y)
    if total < 2:
        return compute_outputs(model, samples, preprocess, workers=workers)
    chunk_size = -(-total // max(1, total // batch_size))  # none is left over, to be normalised among a few
    with train_batchnorm_only(model), freeze_buffers(model):
        return torch.cat([model(preprocess(raw)) for raw in iter_chunks(samples, chunk_size, workers)])


@contextmanager
def train_batchnorm_only(model: nn.Module) -> Iterator[list[_BatchNorm]]:
    """The model in evaluation mode but for the BatchNorm that is trained, whose layers it gives; then as it was."""
    layers, training_modes = trainable_batchnorms(model), {module: module.training for module in model.modules()}
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.training = True
    try:
        yield layers
    finally:
        for module, training in training_modes.items():
            module.training = training
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
