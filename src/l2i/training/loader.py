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

from l2i.data.batch import Batch, Labeled, MixupDraws, Unlabeled
from l2i.data.samples import Splits
from l2i.data.sampling import sample_integers, sample_normal
from l2i.data.streaming import ImageStream
from l2i.data.transforms.geometry import AffineMap
from l2i.data.transforms.image import Augment
from l2i.distributed import ProcessGroup, current_group
from l2i.errors import InputError
from l2i.methods.base import Method
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
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
        sizes: BatchSizes,
        weak: Augment,
        strong: Augment,
        seed: int,
        steps: int,
        holdout: bool,
        workers: int = 0,
        labeled_view: str = "weak",
    ) -> None:
        check_views(splits, method, weak, strong)
        self.process_group = current_group()
        self.splits, self.task, self.method = splits, task, method
        self.sizes, self.weak, self.strong = sizes, weak, strong
        self.labeled_view = labeled_view
        self.seed, self.steps, self.holdout = seed, steps, holdout
        self.device = splits.labeled.y.device
        self.generator = Generator(self.device)
        self.step = 0
        self.progress = torch.zeros((), device=self.device)
        self.quantiles = None if method.mix_alpha is None else compute_beta_quantiles(method.mix_alpha).to(self.device)
        self.streams: dict[str, ImageStream] = {}
        self.row_pickers: dict[str, Callable[[int], Tensor]] = {}
        is_needed = {"labeled": True, "unlabeled": bool(method.views), "holdout": holdout}
        for part in (name for name, needed in is_needed.items() if needed):
            files, size = getattr(splits, part).x, getattr(sizes, part)
            if not isinstance(files, Tensor):
                pick_rows_at = self.row_pickers[part] = partial(
                    pick_stream_rows,
                    part=part,
                    count=len(files),
                    size=size,
                    seed=seed,
                    rank=self.process_group.rank,
                    world_size=self.process_group.size,
                )
                self.streams[part] = ImageStream(files, pick_rows_at, device=self.device, steps=steps, workers=workers)

    def draw_batch(self, step: int, *, holdout: bool = True) -> Batch:
        """All that is random in a step."""
        self.seek(step)
        return self.sample(holdout=holdout)

    def clone(self) -> Loader:
        """One that draws the same, for sets held on the device, and that may be at another step."""
        loader = copy.copy(self)
        loader.generator, loader.progress = Generator(self.device), torch.zeros_like(self.progress)
        return loader

    def seek(self, step: int) -> None:
        """What `take` draws from here on is that of `step`."""
        self.step = step
        self.generator.manual_seed(derive_seed(f"{self.seed}/{step}"))
        self.progress.fill_(step / self.steps)

    def sample(self, *, holdout: bool = True) -> Batch:
        """Which samples, their views, the mixing; the hold-out comes last. On the device, this can be recorded."""
        labeled = self.sample_labeled("labeled", self.strong if self.labeled_view == "strong" else self.weak)
        unlabeled = self.sample_unlabeled() if self.method.views else Unlabeled({})
        mix = None if self.quantiles is None else self.sample_mix(self.quantiles)
        is_due = holdout or "holdout" in self.streams  # a stream goes on step by step
        holdout_batch = self.sample_labeled("holdout", self.weak) if self.holdout and is_due else None
        return Batch(labeled, unlabeled, mix, holdout_batch, self.progress.clone())

    def sample_labeled(self, part: str, augment: Augment) -> Labeled:
        x, y = self.fetch_samples(part)
        view, affine_map = self.splits.make_view(augment, x, self.generator)
        return Labeled(self.prepare_inputs(view), self.task.transport_label(self.task.encode(y), affine_map))

    def sample_unlabeled(self) -> Unlabeled:
        x = self.fetch_samples("unlabeled")[0]
        views: dict[str, Tensor] = {}
        affine_maps: dict[str, AffineMap | None] = {}
        for name in dict.fromkeys(self.method.views):
            augment = self.strong if name == "strong" else self.weak
            view, affine_maps[name] = self.splits.make_view(augment, x, self.generator)
            views[name] = self.prepare_inputs(view)
        weak_map, student_map = affine_maps["weak"], affine_maps[self.method.student_view]
        affine_map = None if student_map is None or weak_map is None else weak_map.inverse().then(student_map)
        return Unlabeled(views, affine_map, self.gaussian_direction(views["weak"]) if self.method.needs_input_noise else None)

    def prepare_inputs(self, view: Tensor) -> Tensor:
        """A view as the network takes it; images on a GPU in the order in which its convolutions are fastest."""
        x = self.splits.to_inputs(view)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def gaussian_direction(self, x: Tensor) -> Tensor:
        return sample_normal(x.shape, self.generator, dtype=x.dtype)

    def fetch_samples(self, part: str) -> tuple[Tensor, Tensor]:
        """The step's samples of one set, raw: grey levels of images are floats from here on."""
        samples, step = getattr(self.splits, part), self.step
        if part == "unlabeled" and part in self.streams:
            x, y = self.streams[part](step), samples.y[:0]  # drawing a million rows again for nobody takes a while
        elif part in self.streams:
            x, y = self.streams[part](step), samples.y[self.row_pickers[part](step).to(self.device, non_blocking=True)]
        else:
            assert isinstance(samples.x, Tensor)
            rows = pick_rows(len(samples.x), getattr(self.sizes, part), self.generator, samples.weight)
            rows = self.process_group.shard(rows)
            x, y = samples.x[rows], samples.y[rows]
        return x if self.splits.normalization is None else x.to(self.splits.normalization.mean.dtype), y

    def sample_mix(self, quantiles: Tensor) -> MixupDraws:
        """Among the samples here: where processes share a batch, none mixes its own with another's."""
        rows = (self.sizes.labeled + 2 * self.sizes.unlabeled) // self.process_group.size
        order = torch.randperm(rows, generator=self.generator, device=quantiles.device)
        positions = sample_integers(len(quantiles), (rows,), self.generator)
        return MixupDraws(order, quantiles[positions])

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
    for augment in (weak, strong):
        augment.check_modality(is_text=splits.vocabulary is not None)
    if splits.vocabulary is not None and (method.mix_alpha is not None or method.needs_input_noise):
        raise InputError(
            f"{method.name} adds up inputs, and words cannot be added up; use uda, fixmatch or mean-teacher"
        )
    if splits.has_landmarks and any(augment.crop or augment.flip or augment.randaugment for augment in (weak, strong)):
        raise InputError("crop, flip and randaugment are not for landmarks; use shift in data.weak and data.strong")
    if splits.normalization is None and (weak.randaugment or strong.randaugment):
        raise InputError(
            "randaugment is for 8-bit images; leave it out of data.weak and data.strong, "
            "or give the images as uint8 with normalization=Normalize.from_images(images)"
        )


def pick_rows(count: int, size: int, generator: Generator, weight: Tensor | None = None) -> Tensor:
    """Distinct rows, or rows with replacement where the set is smaller than the batch or samples have weights."""
    if weight is not None:
        cumulative = weight.cumsum(0)
        positions = torch.rand(size, generator=generator, device=generator.device, dtype=cumulative.dtype) * cumulative[-1]
        return torch.searchsorted(cumulative, positions, right=True).clamp_max(count - 1)
    if size > count:
        return torch.randint(count, (size,), generator=generator, device=generator.device)
    return torch.randperm(count, generator=generator, device=generator.device)[:size]


def pick_stream_rows(step: int, *, part: str, count: int, size: int, seed: int, rank: int = 0, world_size: int = 1) -> Tensor:
    """The rows of a streamed set at a step: known ahead, and to worker processes too."""
    return ProcessGroup(world_size, rank).shard(pick_rows(count, size, Generator().manual_seed(derive_seed(f"{seed}/{part}/{step}"))))


def derive_seed(key: str) -> int:
    """A seed of its own for every step of every run."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def compute_beta_quantiles(alpha: float, count: int = 4096) -> Tensor:
    """Beta(alpha, alpha) as equally likely values: torch draws no Beta from a generator, a table does."""
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.from_numpy(betaincinv(alpha, alpha, levels.numpy()))
