"""Labelled, unlabelled, hold-out, validation and test samples, drawn by seed with as many labels a class."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from l2i.data.augment import Columns
from l2i.data.pixels import Pixels
from l2i.errors import InputError
from l2i.shares import Count, resolved

if TYPE_CHECKING:
    from l2i.data.folders import Files

SETS = {
    "labeled": "labelled",
    "unlabeled": "unlabelled",
    "holdout": "hold-out",
    "validation": "validation",
    "test": "test",
}
LABELED_SHARE = 0.6  # of a class's labels, where the hold-out set is separate (ablation «Joint training …»)


class Samples(NamedTuple):
    """Inputs and their labels, whole; y of unlabelled samples is hidden truth, for diagnosis alone."""

    x: Tensor | Files  # [N, ...]; grey levels of 8 bits stay so
    y: Tensor  # [N] classes, or [N, D] targets
    weight: Tensor | None = None  # [N], how often a sample is drawn, compared with others; all as often without

    def take(self, index: Tensor) -> Samples:
        return Samples(self.x[index], self.y[index], None if self.weight is None else self.weight[index])

    def to(self, device: torch.device, dtype: torch.dtype, *, pixels: bool) -> Samples:
        """On the device; `pixels` of 8 bits stay as they are, and image files stay where they are."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        weight = None if self.weight is None else self.weight.to(device, torch.float64)
        if not isinstance(self.x, Tensor):
            return Samples(self.x, y, weight)
        return Samples(self.x.to(device) if pixels else self.x.to(device, dtype), y, weight)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set as its publishers give it, before anything is drawn; `classes` is None for regression."""

    train: Samples
    test: Samples
    classes: int | None
    points: bool = False
    """Regression: whether targets are points x, y, x, y, … in pixels, which move with the image."""
    eyes: tuple[int, int] | None = None
    """Landmarks: which points are the eyes, whose distance errors are measured in."""
    pixels: Pixels | None = None
    """Images of 8 bits: how grey levels become the network's inputs."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The five sets of a run; the rest as in DataSet."""

    labeled: Samples
    unlabeled: Samples
    holdout: Samples
    validation: Samples
    test: Samples
    classes: int | None
    points: bool = False
    eyes: tuple[int, int] | None = None
    pixels: Pixels | None = None
    columns: Columns | None = None
    """Tables: which inputs are one column, and which are numbers."""

    @staticmethod
    def given(
        *,
        labeled: tuple[Any, Any],
        unlabeled: Any,
        test: tuple[Any, Any],
        validation: tuple[Any, Any] | None = None,
        classes: int | None = None,
        points: bool = False,
        pixels: Pixels | None = None,
        columns: Columns | None = None,
    ) -> Splits:
        """Sets of your own, as tensors or arrays: inputs and labels, but inputs alone for `unlabeled`.

        With `classes`, labels are whole numbers from 0; without, targets [N, D]. The hold-out set is the labelled one.
        Images of 8 bits may stay so, with `pixels` (see `Pixels.of`) to say how the network sees them.
        """
        first = samples_of(*labeled, classes)
        x = torch.as_tensor(unlabeled)
        hidden = Samples(x, torch.full((len(x), *first.y.shape[1:]), -1, dtype=first.y.dtype))
        checked = first.take(torch.arange(0)) if validation is None else samples_of(*validation, classes)
        return Splits(
            labeled=first,
            unlabeled=hidden,
            holdout=first,
            validation=checked,
            test=samples_of(*test, classes),
            classes=classes,
            points=points,
            pixels=pixels,
            columns=columns,
        )

    def with_labels(self, labeled: Samples, *, validation: Samples) -> Splits:
        """The same with other labelled samples, from which the hold-out is drawn too, and other validation samples."""
        return dataclasses.replace(self, labeled=labeled, holdout=labeled, validation=validation)

    def to(self, device: torch.device, dtype: torch.dtype) -> Splits:
        pixels = None if self.pixels is None else self.pixels.to(device, dtype)
        sets = {name: getattr(self, name).to(device, dtype, pixels=pixels is not None) for name in SETS}
        columns = None if self.columns is None else self.columns.to(device)
        return dataclasses.replace(self, pixels=pixels, columns=columns, **sets)

    def inputs(self, raw: Tensor) -> Tensor:
        """Samples as the network takes them."""
        return raw if self.pixels is None else self.pixels.standardized(raw)

    def fingerprint(self) -> str:
        """A checksum of how the sets are drawn: of all labels, and of the labelled inputs."""
        total = hashlib.blake2b(digest_size=16)
        for name in SETS:
            samples: Samples = getattr(self, name)
            total.update(f"{name} {list(samples.x.shape)}".encode() + samples.y.numpy(force=True).tobytes())
        labeled = self.labeled.x
        total.update(labeled.numpy(force=True).tobytes() if isinstance(labeled, Tensor) else labeled.names())
        return total.hexdigest()

    def described(self, *, but: tuple[str, ...] = ()) -> str:
        """How many samples each set has, and how the classes share them."""
        return ", ".join(
            f"{len(getattr(self, name).x):,} {word}{balance(getattr(self, name).y, self.classes)}"
            for name, word in SETS.items()
            if name not in but
        )


def balance(y: Tensor, classes: int | None) -> str:
    """How many samples a class has, in words."""
    if classes is None or not len(y) or bool((y < 0).any()):  # no classes, or not known
        return ""
    counts = torch.bincount(y, minlength=classes)
    low, high = int(counts.min()), int(counts.max())
    return f" ({low:,} a class)" if low == high else f" ({low:,} to {high:,} a class)"


def samples_of(x: Any, y: Any, classes: int | None) -> Samples:
    """Inputs and labels as tensors, checked."""
    inputs, labels = x if hasattr(x, "read") else torch.as_tensor(x), torch.as_tensor(y)
    labels = labels.float() if classes is None else labels.long()
    if len(inputs) != len(labels):
        raise InputError(f"{len(inputs)} samples and {len(labels)} labels do not match; give a label to each")
    if classes is not None and (labels.ndim != 1 or bool(((labels < 0) | (labels >= classes)).any())):
        raise InputError(f"class labels must be [N] whole numbers from 0 to {classes - 1}; number them so")
    return Samples(inputs, labels)


def draw_splits(
    data: DataSet,
    *,
    num_labeled: Count,
    num_validation: Count,
    holdout: Literal["joint", "separate"],
    seed: int,
) -> Splits:
    """Draw validation rows, then balanced labels among the rest; what is left is unlabelled."""
    classes = data.classes
    train, test = (samples_of(part.x, part.y, classes) for part in (data.train, data.test))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train.x), generator=generator)
    checked = resolved(num_validation, len(order))
    if not 0 <= checked < len(order):
        raise InputError(f"num_validation={checked} must be at least 0 and leave some of {len(order)} training samples")
    validation, rest = order[:checked], order[checked:]
    groups = by_class(train.y, rest, classes)
    each = labels_each(num_labeled, groups)
    labeled = [group[:count] for group, count in zip(groups, each, strict=True)]
    unlabeled = torch.cat([group[count:] for group, count in zip(groups, each, strict=True)])
    fitted, held = (labeled, labeled) if holdout == "joint" else divided(labeled)
    return Splits(
        labeled=train.take(torch.cat(fitted)),
        unlabeled=train.take(unlabeled),
        holdout=train.take(torch.cat(held)),
        validation=train.take(validation),
        test=test,
        classes=classes,
        points=data.points,
        eyes=data.eyes,
        pixels=data.pixels,
    )


def by_class(y: Tensor, rows: Tensor, classes: int | None) -> list[Tensor]:
    """The rows of each class, in the order drawn; one group for regression."""
    if classes is None:
        return [rows]
    if len(torch.unique(y)) < 2:
        raise InputError(
            "all training samples are of one class: there is nothing to tell apart; add samples of another"
        )
    return [rows[y[rows] == c] for c in range(classes)]


def labels_each(num_labeled: Count, groups: list[Tensor]) -> list[int]:
    """How many labels each class gets, or what is wrong with the number asked for."""
    classes, fewest = len(groups), min(len(group) for group in groups)
    if fewest == 0:
        raise InputError("a class has no training samples left to label; lower num_validation, or leave the class out")
    if isinstance(num_labeled, float):
        return [max(1, resolved(num_labeled, len(group))) for group in groups]
    if num_labeled < classes or num_labeled % classes:
        nearest = max(1, num_labeled // classes) * classes
        raise InputError(f"num_labeled={num_labeled} is not a positive multiple of {classes} classes; use {nearest}")
    if num_labeled // classes > fewest:
        asked = f"{num_labeled // classes} labels a class, but one class" if classes > 1 else "as many, but the set"
        raise InputError(
            f"num_labeled={num_labeled} asks for {asked} has only {fewest} training samples; "
            f"use at most {fewest * classes}"
        )
    return [num_labeled // classes] * classes


def divided(labeled: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Each class's labels as 60 % to train on and 40 % to hold out."""
    if min(len(group) for group in labeled) < 2:
        raise InputError(
            "a separate hold-out set needs at least 2 labels a class; label more or use l2i.holdout='joint'"
        )
    cuts = [min(max(1, round(LABELED_SHARE * len(group))), len(group) - 1) for group in labeled]
    return [g[:cut] for g, cut in zip(labeled, cuts, strict=True)], [
        g[cut:] for g, cut in zip(labeled, cuts, strict=True)
    ]
