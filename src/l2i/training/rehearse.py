"""Step 0 without its step, so that what cannot work is found before a run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l2i.bilevel.inner import lookahead
from l2i.errors import InputError
from l2i.training.state import draws_random, fitting, held_by

if TYPE_CHECKING:
    from l2i.training.trainer import Trainer


def rehearsed(trainer: Trainer) -> tuple[bool, int]:
    """Take the gradients of step 0, and leave the trainer as it was.

    Returns whether a forward of the network draws random numbers, as dropout does, and what it holds for its backward.
    """
    kept = [buffer.clone() for buffer in trainer.model.buffers()]
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), fitting():
            batch = trainer.loader.draw(0)
            x = batch.labeled.x
            draws = draws_random(trainer.device, lambda: check_outputs(trainer, x))
            trainer.gradients.statistics.watch(lambda: check_outputs(trainer, x))
            held = held_by(trainer.device, lambda: lookahead(trainer.network, trainer.params)(x))
            trainer.base_gradient(batch, 0)
            if trainer.outer is not None:
                trainer.outer_gradient(batch, 0)
    finally:
        trainer.loader.close()
        for buffer, before in zip(trainer.model.buffers(), kept, strict=True):
            buffer.copy_(before)
    return draws, held


def check_outputs(trainer: Trainer, x: Tensor) -> None:
    """That the network makes one output a sample, as wide as the task has it."""
    with torch.no_grad():
        outputs = lookahead(trainer.network, trainer.params)(x)
    wanted = (len(x), trainer.task.outputs)
    if tuple(outputs.shape) != wanted:
        raise InputError(f"the model's output for a mini-batch is {list(outputs.shape)}; it must be {list(wanted)}")
