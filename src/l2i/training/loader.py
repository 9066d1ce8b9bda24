"""Mini-batches B^T, B^U and B^H, drawn on the device or streamed to it (Algorithm 1, line 3)."""

from __future__ import annotations

import copy
import hashlib
from functools import partial

import torch
from scipy.special import betaincinv
from torch import Generator, Tensor

from l2i.config import Run
from l2i.data.batch import AffineMap, Batch, Labeled, MixupDraws, Unlabeled
from l2i.data.samples import Splits
from l2i.data.streaming import ImageStream
from l2i.data.transforms.image import Augment
from l2i.data.transforms.text import TokenAugment
from l2i.distributed import ProcessGroup, current_group, sample_integers, sample_normal
from l2i.errors import InputError
from l2i.tasks import Task


class Loader:
    """Draws the batch of a step, which depends on (seed, step) alone: a run can resume anywhere.

    Sets in device memory are drawn from there; image files are decoded ahead by worker processes.
    Processes that share a run each get their samples of the batch.
    """

    def __init__(self, run: Run, splits: Splits, task: Task) -> None:
        self.run, self.splits, self.task, self.method = run, splits, task, run.method
        _check_views(run, splits)
        self.group = current_group()
        self.weak = run.data.weak
        self.strong = run.data.strong if splits.vocabulary is None else run.data.words
        self.has_holdout = run.l2i.update != "off"
        self.shuffles_holdout = run.l2i.ablation == "shuffled_labels"
        self.device = splits.labeled.y.device
        self.generator = Generator(self.device)
        self.step = 0
        self.progress = torch.zeros((), device=self.device)
        self.quantiles: Tensor | None = None
        if run.method.mix_alpha is not None:
            self.quantiles = compute_beta_quantiles(run.method.mix_alpha).to(self.device)
        self.streams = self._open_streams()

    def _open_streams(self) -> dict[str, ImageStream]:
        """Open a stream for every set of image files that steps draw from."""
        run, group, streams = self.run, self.group, dict[str, ImageStream]()
        parts = {"labeled": True, "unlabeled": self.method.views, "holdout": self.has_holdout}
        for part in (name for name, is_needed in parts.items() if is_needed):
            files = getattr(self.splits, part).x
            if isinstance(files, Tensor):
                continue
            rows = partial(
                sample_stream_indices,
                part=part,
                count=len(files),
                size=getattr(run.batch, part),
                seed=run.seed,
                rank=group.rank,
                world_size=group.size,
            )
            streams[part] = ImageStream(
                files, rows, device=self.device, steps=run.steps, workers=run.data.workers
            )
        return streams

    def draw_batch(self, step: int, *, holdout: bool = True) -> Batch:
        """Draw everything random in a step."""
        self.seek(step)
        return self.sample(holdout=holdout)

    def clone(self, run: Run | None = None) -> Loader:
        """Return a loader that draws the same batches, and may be at a different step.

        With a `run`, batches have the sizes of that run.
        """
        loader = copy.copy(self)
        loader.run = run or self.run
        loader.generator, loader.progress = Generator(self.device), torch.zeros_like(self.progress)
        loader.streams = loader._open_streams()
        return loader

    def seek(self, step: int) -> None:
        """Let `sample` draw the batch of `step` next."""
        self.step = step
        self.generator.manual_seed(derive_seed(f"{self.run.seed}/{step}"))
        self.progress.fill_(step / self.run.steps)

    def sample(self, *, holdout: bool = True) -> Batch:
        """Draw samples, views, mixing, and last the hold-out; CUDA graphs can capture this."""
        labeled = self._sample_labeled("labeled")
        unlabeled = self._sample_unlabeled() if self.method.views else Unlabeled({})
        mix = None if self.quantiles is None else self._sample_mix(self.quantiles)
        is_due = self.has_holdout and (holdout or "holdout" in self.streams)  # streams skip no step
        holdout_batch = self._sample_labeled("holdout") if is_due else None
        return Batch(labeled, unlabeled, mix, holdout_batch, self.progress.clone())

    def _sample_labeled(self, part: str) -> Labeled:
        rows = self._draw_rows(part)
        x = self._fetch_inputs(part, rows)
        view, affine_map = self.splits.make_view(self.weak, x, self.generator)
        if part == "holdout" and self.shuffles_holdout:  # drawn last: all else is as without it
            order = torch.randperm(len(rows), generator=self.generator, device=self.device)
            rows = rows[order]
        y = getattr(self.splits, part).y[self.group.shard(rows)]
        label = self.task.transport_label(self.task.encode(y), affine_map)
        return Labeled(self._prepare_inputs(view), label)

    def _sample_unlabeled(self) -> Unlabeled:
        is_streamed = "unlabeled" in self.streams  # a million rows are slow to draw
        x = self._fetch_inputs("unlabeled", None if is_streamed else self._draw_rows("unlabeled"))
        views: dict[str, Tensor] = {}
        affine_maps: dict[str, AffineMap | None] = {}
        for name in dict.fromkeys(self.method.views):
            augment = self.strong if name == "strong" else self.weak
            view, affine_maps[name] = self.splits.make_view(augment, x, self.generator)
            views[name] = self._prepare_inputs(view)
        weak_map, student_map = affine_maps["weak"], affine_maps[self.method.student_view]
        affine_map, noise = None, None
        if weak_map is not None and student_map is not None:
            affine_map = weak_map.inverse().then(student_map)
        if self.method.needs_input_noise:
            noise = sample_normal(views["weak"].shape, self.generator, dtype=views["weak"].dtype)
        return Unlabeled(views, affine_map, noise)

    def _prepare_inputs(self, view: Tensor) -> Tensor:
        """Normalise a view; images on a GPU get the memory format of its fastest convolutions."""
        x = self.splits.to_inputs(view)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def _draw_rows(self, part: str) -> Tensor:
        """Draw the rows of the step's mini-batch of one set, for all processes."""
        samples, size = getattr(self.splits, part), getattr(self.run.batch, part)
        count = len(samples.x)
        if part not in self.streams:
            return sample_indices(count, size, self.generator, samples.weight)
        seed = self.run.seed
        rows = sample_stream_indices(self.step, part=part, count=count, size=size, seed=seed)
        return rows.to(self.device, non_blocking=True)

    def _fetch_inputs(self, part: str, rows: Tensor | None) -> Tensor:
        """Return the raw samples of this process; grey levels of images become floats."""
        if part in self.streams:
            x = self.streams[part](self.step)
        else:
            assert rows is not None
            x = getattr(self.splits, part).x[self.group.shard(rows)]
        normalization = self.splits.normalization
        return x if normalization is None else x.to(normalization.mean.dtype)

    def _sample_mix(self, quantiles: Tensor) -> MixupDraws:
        """Draw the mixing of the samples of this process: none is mixed with another process's."""
        rows = (self.run.batch.labeled + 2 * self.run.batch.unlabeled) // self.group.size
        order = torch.randperm(rows, generator=self.generator, device=quantiles.device)
        positions = sample_integers(len(quantiles), (rows,), self.generator)
        return MixupDraws(order, quantiles[positions])

    def close(self) -> None:
        """Stop the worker processes."""
        for stream in self.streams.values():
            stream.close()


def _check_views(run: Run, splits: Splits) -> None:
    """Check that there are samples to draw, and that the views suit them."""
    method, data, is_text = run.method, run.data, splits.vocabulary is not None
    augments = (data.weak, data.strong)
    adds_inputs = method.mix_alpha is not None or method.needs_input_noise
    if method.views and not len(splits.unlabeled.x):
        problem = f"{method.name} needs unlabelled samples, but none are left"
        fix = "lower data.num_labeled or data.num_validation, or train the 'supervised' method"
        raise InputError(f"{problem}; {fix}")
    if method.views and method.student_view not in method.views:
        fix = f"use one of {', '.join(dict.fromkeys(method.views))}"
        raise InputError(f"{method.name} has no view '{method.student_view}'; {fix}")
    if is_text and augments != (Augment(), Augment()):
        raise InputError("texts are augmented by data.words; leave out data.weak and data.strong")
    if not is_text and data.words != TokenAugment():
        fix = "leave it out, or use an encoder ('l2i fit': --encoder)"
        raise InputError(f"data.words applies to texts with an encoder only; {fix}")
    if is_text and adds_inputs:
        problem = f"{method.name} adds inputs, which is not possible for token ids"
        raise InputError(f"{problem}; use uda, fixmatch or mean-teacher")
    if splits.has_landmarks and any(a.crop or a.flip or a.randaugment for a in augments):
        fix = "use shift in data.weak and data.strong"
        raise InputError(f"crop, flip and randaugment do not support landmarks; {fix}")
    if splits.normalization is None and any(a.randaugment for a in augments):
        images = "the images as uint8 with normalization=Normalize.from_images(images)"
        fix = f"remove it from data.weak and data.strong, or pass {images}"
        raise InputError(f"randaugment needs 8-bit images; {fix}")


def sample_indices(
    count: int, size: int, generator: Generator, weight: Tensor | None = None
) -> Tensor:
    """Draw distinct rows; with replacement if samples have weights or are fewer than `size`."""
    device = generator.device
    if weight is not None:
        cumulative = weight.cumsum(0)
        uniform = torch.rand(size, generator=generator, device=device, dtype=cumulative.dtype)
        rows = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
        return rows.clamp_max(count - 1)
    if size > count:
        return torch.randint(count, (size,), generator=generator, device=device)
    return torch.randperm(count, generator=generator, device=device)[:size]


def sample_stream_indices(
    step: int, *, part: str, count: int, size: int, seed: int, rank: int = 0, world_size: int = 1
) -> Tensor:
    """Draw the rows of a streamed set at a step: known ahead, in worker processes too."""
    generator = Generator().manual_seed(derive_seed(f"{seed}/{part}/{step}"))
    return ProcessGroup(world_size, rank).shard(sample_indices(count, size, generator))


def derive_seed(key: str) -> int:
    """Hash a key, such as a run's seed and a step, to a seed."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def compute_beta_quantiles(alpha: float, count: int = 4096) -> Tensor:
    """Tabulate Beta(alpha, alpha) as equally likely values: torch has no Beta with a generator."""
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.from_numpy(betaincinv(alpha, alpha, levels.numpy()))
