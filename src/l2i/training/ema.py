"""The teacher: an exponential moving average of the model (section 3, «Mean-teacher»)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.functional import find_tracking_batchnorms, freeze_buffers, lookahead
from l2i.config import Run, replace
from l2i.data.samples import Samples
from l2i.tasks import Task
from l2i.training.evaluation import compute_outputs, iter_chunks
from l2i.training.loader import Loader
from l2i.training.optimizer import FlatParameters
from l2i.training.precision import use_precision
from l2i.training.step import compute_costs

BN_SAMPLES = 1024  # training samples to recompute statistics on, about
BN_BATCH_SIZE = 256  # samples that are normalised together, about


class Teacher:
    """θ' ← α θ' + (1 − α) θ, with α growing from 0: the model that is evaluated.

    For mean teacher it also imputes.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.flat = FlatParameters(dict(self.model.named_parameters()))

    @torch.no_grad()
    def update(self, model: nn.Module, values: Tensor, update_rate: Tensor) -> None:
        """Move by `update_rate` = 1 − α towards the model's `values`; copy its buffers."""
        self.flat.values.lerp_(values, update_rate)
        pairs = list(zip(self.model.buffers(), model.buffers(), strict=True))
        for dtype in dict.fromkeys(buffer.dtype for buffer, _ in pairs):  # one kernel per type
            targets, sources = zip(*(pair for pair in pairs if pair[0].dtype == dtype), strict=True)
            torch._foreach_copy_(targets, sources)


def recompute_bn(model: nn.Module, run: Run, task: Task, loader: Loader) -> None:
    """Recompute BatchNorm statistics of the averaged model, like torch's `update_bn`.

    Those copied from the model belong to the weights of single steps, not to their average: while
    the learning rate is high the two are far apart. The statistics are means over forwards of the
    same mini-batches at every evaluation, passed as in a step without L2I: a network trained on
    shifted or mixed images expects their variance. Training is not affected: the next step copies
    the model's statistics again.
    """
    if not find_tracking_batchnorms(model):
        return
    imputer = lookahead(model, dict(model.named_parameters()))
    forward_counter = count(start=1)
    samples_per_step = run.batch.labeled + (run.batch.unlabeled if run.method.views else 0)
    with use_precision(loader.device), _train_batchnorm_only(model) as layers, torch.no_grad():

        def net(x: Tensor) -> Tensor:
            new_momentum = 1 / next(forward_counter)
            for layer in layers:
                layer.momentum = new_momentum
            return model(x)  # type: ignore[no-any-return]

        max_size = BN_SAMPLES // loader.group.size * loader.group.size  # processes share a batch
        sizes = {name: min(size, max_size) for name, size in vars(run.batch).items()}
        with closing(loader.clone(replace(run, batch=sizes))) as own_loader:
            for step in range(min(run.steps, -(-BN_SAMPLES // samples_per_step))):
                batch = own_loader.draw_batch(step, holdout=False)
                compute_costs(run.method, task, net, imputer, batch)


@torch.no_grad()
def compute_outputs_train_bn(
    model: nn.Module,
    samples: Samples,
    preprocess: Callable[[Tensor], Tensor],
    *,
    batch_size: int = BN_BATCH_SIZE,
    workers: int = 0,
) -> Tensor:
    """Return a model's outputs, about `batch_size` samples at a time normalised by themselves.

    This is how a step sees them, except for dropout; running statistics lag behind the model in
    training, and are neither used nor changed. A single sample has no statistics and is normalised
    by the running ones.
    """
    total = len(samples.y)
    if total < 2:
        return compute_outputs(model, samples, preprocess, workers=workers)
    chunk_size = -(-total // max(1, total // batch_size))  # leaves no small rest
    with _train_batchnorm_only(model), freeze_buffers(model):
        chunks = iter_chunks(samples, chunk_size, workers)
        return torch.cat([model(preprocess(raw)) for raw in chunks])


@contextmanager
def _train_batchnorm_only(model: nn.Module) -> Iterator[list[_BatchNorm]]:
    """Put all layers but trainable BatchNorm in evaluation mode; yield those layers."""
    layers = find_tracking_batchnorms(model)
    training_modes = {module: module.training for module in model.modules()}
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
