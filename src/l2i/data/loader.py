"""Mini-batches B^T, B^U and B^H, from data held on the device or streamed to it (Algorithm 1, line 3)."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from scipy.special import betaincinv
from torch import Generator, Tensor

from l2i.batch import Batch, Labeled, Mix, Unlabeled
from l2i.data.augment import Augment
from l2i.data.chance import below, normal
from l2i.data.frames import Frame
from l2i.data.split import Splits
from l2i.data.stream import Stream
from l2i.errors import InputError
from l2i.methods.base import Method
from l2i.ranks import Ranks, here
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
    """Draws a step's batch. A draw depends on (seed, step) alone, so a run may be cut anywhere and go on.

    Sets held on the device are drawn from there; image files are decoded ahead by worker processes. Where processes
    share a run, each has its samples of the whole batch.
    """

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
        steps: int,
        holdout: bool,
        workers: int = 0,
        labeled_view: str = "weak",
    ) -> None:
        check_views(splits, method, weak, strong)
        self.ranks = here()
        self.splits, self.task, self.method = splits, task, method
        self.sizes, self.weak, self.strong = sizes, weak, strong
        self.labeled_view = labeled_view
        self.seed, self.steps, self.holdout = seed, steps, holdout
        self.device = splits.labeled.y.device
        self.generator = Generator(self.device)
        self.step = 0
        self.progress = torch.zeros((), device=self.device)
        self.quantiles = None if method.mix_alpha is None else beta_quantiles(method.mix_alpha).to(self.device)
        self.streams: dict[str, Stream] = {}
        self.rows: dict[str, Callable[[int], Tensor]] = {}
        wanted = {"labeled": True, "unlabeled": bool(method.views), "holdout": holdout}
        for part in (name for name, drawn in wanted.items() if drawn):
            files, size = getattr(splits, part).x, getattr(sizes, part)
            if not isinstance(files, Tensor):
                rows = self.rows[part] = partial(
                    picked,
                    part=part,
                    count=len(files),
                    size=size,
                    seed=seed,
                    index=self.ranks.index,
                    of=self.ranks.size,
                )
                self.streams[part] = Stream(files, rows, device=self.device, steps=steps, workers=workers)

    def draw(self, step: int, *, holdout: bool = True) -> Batch:
        """All that is random in a step."""
        self.turn_to(step)
        return self.take(holdout=holdout)

    def twin(self) -> Loader:
        """One that draws the same, for sets held on the device, and that may be at another step."""
        twin = copy.copy(self)
        twin.generator, twin.progress = Generator(self.device), torch.zeros_like(self.progress)
        return twin

    def turn_to(self, step: int) -> None:
        """What `take` draws from here on is that of `step`."""
        self.step = step
        self.generator.manual_seed(step_seed(f"{self.seed}/{step}"))
        self.progress.fill_(step / self.steps)

    def take(self, *, holdout: bool = True) -> Batch:
        """Which samples, their views, the mixing; the hold-out comes last. On the device, this can be recorded."""
        labeled = self.labeled("labeled", self.strong if self.labeled_view == "strong" else self.weak)
        unlabeled = self.unlabeled() if self.method.views else Unlabeled({})
        mix = None if self.quantiles is None else self.mix(self.quantiles)
        due = holdout or "holdout" in self.streams  # a stream goes on step by step
        held = self.labeled("holdout", self.weak) if self.holdout and due else None
        return Batch(labeled, unlabeled, mix, held, self.progress.clone())

    def labeled(self, part: str, augment: Augment) -> Labeled:
        x, y = self.fetch(part)
        view, frame = self.splits.view(augment, x, self.generator)
        return Labeled(self.inputs(view), self.task.move(self.task.encode(y), frame))

    def unlabeled(self) -> Unlabeled:
        x = self.fetch("unlabeled")[0]
        views: dict[str, Tensor] = {}
        frames: dict[str, Frame | None] = {}
        for name in dict.fromkeys(self.method.views):
            augment = self.strong if name == "strong" else self.weak
            view, frames[name] = self.splits.view(augment, x, self.generator)
            views[name] = self.inputs(view)
        here, there = frames["weak"], frames[self.method.student_view]
        frame = None if there is None or here is None else here.inverse().then(there)
        return Unlabeled(views, frame, self.direction(views["weak"]) if self.method.searches_input else None)

    def inputs(self, view: Tensor) -> Tensor:
        """A view as the network takes it; images on a GPU in the order in which its convolutions are fastest."""
        x = self.splits.inputs(view)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def direction(self, x: Tensor) -> Tensor:
        return normal(x.shape, self.generator, dtype=x.dtype)

    def fetch(self, part: str) -> tuple[Tensor, Tensor]:
        """The step's samples of one set, raw: grey levels of images are floats from here on."""
        samples, step = getattr(self.splits, part), self.step
        if part == "unlabeled" and part in self.streams:
            x, y = self.streams[part](step), samples.y[:0]  # drawing a million rows again for nobody takes a while
        elif part in self.streams:
            x, y = self.streams[part](step), samples.y[self.rows[part](step).to(self.device, non_blocking=True)]
        else:
            assert isinstance(samples.x, Tensor)
            rows = pick(len(samples.x), getattr(self.sizes, part), self.generator, samples.weight)
            rows = self.ranks.share(rows)
            x, y = samples.x[rows], samples.y[rows]
        return x if self.splits.pixels is None else x.to(self.splits.pixels.mean.dtype), y

    def mix(self, quantiles: Tensor) -> Mix:
        """Among the samples here: where processes share a batch, none mixes its own with another's."""
        rows = (self.sizes.labeled + 2 * self.sizes.unlabeled) // self.ranks.size
        order = torch.randperm(rows, generator=self.generator, device=quantiles.device)
        place = below(len(quantiles), (rows,), self.generator)
        return Mix(order, quantiles[place])

    def close(self) -> None:
        """Let the worker processes go."""
        for stream in self.streams.values():
            stream.close()


def check_views(splits: Splits, method: Method, weak: Augment, strong: Augment) -> None:
    """That there is something to draw, and that the views suit the samples."""
    if method.views and not len(splits.unlabeled.x):
        raise InputError(
            f"no unlabelled samples are left, and {method.name} learns from them; "
            "lower data.num_labeled or data.num_validation, or train the 'supervised' method"
        )
    if method.student_view not in method.views and method.views:
        raise InputError(f"{method.name} has no view '{method.student_view}'; leave method.student_view as it is")
    for view in (weak, strong):
        view.check(texts=splits.tokens is not None)
    if splits.tokens is not None and (method.mix_alpha is not None or method.searches_input):
        raise InputError(
            f"{method.name} adds up inputs, and words cannot be added up; use uda, fixmatch or mean-teacher"
        )
    if splits.points and any(view.crop or view.flip or view.randaugment for view in (weak, strong)):
        raise InputError("crop, flip and randaugment are not for landmarks; use shift in data.weak and data.strong")
    if splits.pixels is None and (weak.randaugment or strong.randaugment):
        raise InputError(
            "randaugment is for 8-bit images; leave it out of data.weak and data.strong, "
            "or give the images as uint8 with pixels=Pixels.of(images)"
        )


def pick(count: int, size: int, generator: Generator, weight: Tensor | None = None) -> Tensor:
    """Distinct rows, or rows with replacement where the set is smaller than the batch or samples have weights."""
    if weight is not None:
        total = weight.cumsum(0)
        place = torch.rand(size, generator=generator, device=generator.device, dtype=total.dtype) * total[-1]
        return torch.searchsorted(total, place, right=True).clamp_max(count - 1)
    if size > count:
        return torch.randint(count, (size,), generator=generator, device=generator.device)
    return torch.randperm(count, generator=generator, device=generator.device)[:size]


def picked(step: int, *, part: str, count: int, size: int, seed: int, index: int = 0, of: int = 1) -> Tensor:
    """The rows of a streamed set at a step: known ahead, and to worker processes too."""
    return Ranks(of, index).share(pick(count, size, Generator().manual_seed(step_seed(f"{seed}/{part}/{step}"))))


def step_seed(words: str) -> int:
    """A seed of its own for every step of every run."""
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def beta_quantiles(alpha: float, count: int = 4096) -> Tensor:
    """Beta(alpha, alpha) as equally likely values: torch draws no Beta from a generator, a table does."""
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.from_numpy(betaincinv(alpha, alpha, levels.numpy()))
