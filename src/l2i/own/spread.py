"""How sure a target is: its spread over perturbed views of a row and over the averaged model's last snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from l2i.data.split import Samples
from l2i.own.snapshots import LAST
from l2i.tasks import Regression
from l2i.training.trainer import Trainer

VIEWS = 8
CHUNK = 256  # rows perturbed together: columns that are swapped are swapped among them


def spread_of(trainer: Trainer, samples: Samples, snapshots: NDArray[Any]) -> NDArray[np.float32]:  # [N, D]
    """The standard deviation over views and snapshots, in the targets' units; uncalibrated."""
    generator = Generator(trainer.device).manual_seed(trainer.run.seed)
    views = [_seen(trainer, samples, generator) for _ in range(VIEWS)]
    stacked = np.concatenate([np.stack(views), snapshots[-LAST:]])
    return np.asarray(stacked.std(axis=0, dtype=np.float64), dtype=np.float32)


@torch.no_grad()
def _seen(trainer: Trainer, samples: Samples, generator: Generator) -> NDArray[np.float32]:
    """Targets of one weak view of every row, as targets of the row itself; of texts, of a strong view."""
    task, splits, found = trainer.task, trainer.splits, []
    augment = trainer.run.data.weak if splits.tokens is None else trainer.run.data.strong
    assert isinstance(task, Regression) and isinstance(samples.x, Tensor)
    for raw in samples.x.split(CHUNK):
        raw = raw if splits.pixels is None else raw.to(splits.pixels.mean.dtype)
        view, frame = splits.view(augment, raw, generator)
        seen = trainer.predict(Samples(view, torch.empty(len(view), device=trainer.device)))
        found.append(task.decode(task.move(seen, None if frame is None else frame.inverse())))
    return torch.cat(found).float().cpu().numpy()
