"""Mini-batches B^T, B^U and B^H from data held on the device (Algorithm 1, line 3)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Generator, Tensor

from l2i.batch import Batch, Labeled, Mix, Unlabeled
from l2i.data.augment import Augment
from l2i.data.frames import Frame
from l2i.data.split import Samples, Splits
from l2i.errors import InputError
from l2i.methods.base import Method
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The sizes of the three mini-batches."""

    labeled: int = 64
    """Labelled samples a step (B^T); drawn with replacement where there are fewer."""
    unlabeled: int = 64
    """Unlabelled samples a step (B^U)."""
    holdout: int = 64
    """Hold-out samples a step (B^H), drawn only where there is an outer step."""


class Loader:
    """Draws a step's batch. A draw depends on (seed, step) alone, so a run may be cut anywhere and go on."""

    def __init__(
        self,
        splits: Splits,
        task: Task,
        method: Method,
        *,
        sizes: Batches,
        weak: Augment,
        strong: Augment,
        seed: int,
        holdout: bool,
    ) -> None:
        if method.views and not len(splits.unlabeled.x):
            raise InputError(
                f"no unlabelled samples are left, and {method.name} learns from them; "
                "lower data.num_labeled or data.num_validation, or train the 'supervised' method"
            )
        self.splits, self.task, self.method = splits, task, method
        self.sizes, self.weak, self.strong = sizes, weak, strong
        self.seed, self.holdout = seed, holdout
        self.generator = Generator(splits.labeled.x.device)
        self.quantiles = (
            None if method.mix_alpha is None else beta_quantiles(method.mix_alpha).to(splits.labeled.x.device)
        )

    def draw(self, step: int) -> Batch:
        """All that is random in a step: which samples, their views, the mixing; the hold-out comes last."""
        self.generator.manual_seed(step_seed(self.seed, step))
        labeled = self.labeled(self.splits.labeled, self.sizes.labeled)
        unlabeled = self.unlabeled() if self.method.views else Unlabeled({})
        mix = None if self.quantiles is None else self.mix(self.quantiles)
        holdout = self.labeled(self.splits.holdout, self.sizes.holdout) if self.holdout else None
        return Batch(labeled, unlabeled, mix, holdout)

    def labeled(self, samples: Samples, size: int) -> Labeled:
        x, y = samples.take(self.pick(len(samples.x), size))
        view, frame = self.weak(x, self.generator)
        return Labeled(view, self.task.move(self.task.encode(y), frame))

    def unlabeled(self) -> Unlabeled:
        x = self.splits.unlabeled.x[self.pick(len(self.splits.unlabeled.x), self.sizes.unlabeled)]
        views: dict[str, Tensor] = {}
        frames: dict[str, Frame | None] = {}
        for name in dict.fromkeys(self.method.views):
            views[name], frames[name] = (self.strong if name == "strong" else self.weak)(x, self.generator)
        here, there = frames["weak"], frames[self.method.student_view]
        return Unlabeled(views, None if there is None or here is None else here.inverse().then(there))

    def pick(self, count: int, size: int) -> Tensor:
        """Distinct rows, or rows with replacement where the set is smaller than the batch."""
        device = self.generator.device
        if size > count:
            return torch.randint(count, (size,), generator=self.generator, device=device)
        return torch.randperm(count, generator=self.generator, device=device)[:size]

    def mix(self, quantiles: Tensor) -> Mix:
        rows = self.sizes.labeled + 2 * self.sizes.unlabeled
        order = torch.randperm(rows, generator=self.generator, device=quantiles.device)
        place = torch.randint(len(quantiles), (rows,), generator=self.generator, device=quantiles.device)
        return Mix(order, quantiles[place])


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step of every run."""
    digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def beta_quantiles(alpha: float, count: int = 4096) -> Tensor:
    """Beta(alpha, alpha) as equally likely values: torch draws no Beta from a generator, a table does."""
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.from_numpy(betaincinv(alpha, alpha, levels.numpy()))
