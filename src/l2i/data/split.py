"""Samples with their labels: a data set as it is published, and the five sets of a run."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor

from l2i.data.augment import Augment, Columns
from l2i.data.frames import Frame
from l2i.data.pixels import Pixels
from l2i.data.words import Tokens
from l2i.errors import InputError

if TYPE_CHECKING:
    from l2i.data.folders import Files

SETS = {
    "labeled": "labelled",
    "unlabeled": "unlabelled",
    "holdout": "hold-out",
    "validation": "validation",
    "test": "test",
}


class Samples(NamedTuple):
    """Inputs and their labels, whole; y of unlabelled samples is hidden truth, for diagnosis alone."""

    x: (
        Tensor | Files
    )  # [N, ...]; grey levels of 8 bits stay so; texts are token ids, [N, L] or several versions of each
    y: Tensor  # [N] classes, or [N, D] targets
    weight: Tensor | None = None  # [N], how often a sample is drawn, compared with others; all as often without

    def take(self, index: Tensor) -> Samples:
        return Samples(self.x[index], self.y[index], None if self.weight is None else self.weight[index])

    def to(self, device: torch.device, dtype: torch.dtype, *, whole: bool) -> Samples:
        """On the device; `whole` numbers, as pixels and tokens are, stay so, and image files stay where they are."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        weight = None if self.weight is None else self.weight.to(device, torch.float64)
        if not isinstance(self.x, Tensor):
            return Samples(self.x, y, weight)
        return Samples(self.x.to(device) if whole else self.x.to(device, dtype), y, weight)


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
    tokens: Tokens | None = None
    """Texts as token ids: the vocabulary they are of."""
    unlabeled: Samples | None = None
    """Samples more that have no labels."""


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
    tokens: Tokens | None = None

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
        tokens: Tokens | None = None,
    ) -> Splits:
        """Sets of your own, as tensors or arrays: inputs and labels, but inputs alone for `unlabeled`.

        With `classes`, labels are whole numbers from 0; without, targets [N, D]. The hold-out set is the labelled one.
        Images of 8 bits may stay so, with `pixels` (see `Pixels.of`) to say how the network sees them; texts are token
        ids [N, L], with `tokens` (see `tokens_of`).
        """
        first = samples_of(*labeled, classes)
        x = torch.as_tensor(unlabeled)
        if tokens is not None and any(int(torch.as_tensor(p).max()) >= tokens.size for p in (first.x, x) if len(p)):
            raise InputError(f"token ids must be below the {tokens.size} of `tokens`; use their own tokenizer's")
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
            tokens=tokens,
        )

    def with_labels(self, labeled: Samples, *, validation: Samples) -> Splits:
        """The same with other labelled samples, from which the hold-out is drawn too, and other validation samples."""
        return dataclasses.replace(self, labeled=labeled, holdout=labeled, validation=validation)

    def to(self, device: torch.device, dtype: torch.dtype) -> Splits:
        pixels = None if self.pixels is None else self.pixels.to(device, dtype)
        tokens = None if self.tokens is None else self.tokens.to(device)
        sets = {name: getattr(self, name).to(device, dtype, whole=self.whole) for name in SETS}
        columns = None if self.columns is None else self.columns.to(device)
        return dataclasses.replace(self, pixels=pixels, tokens=tokens, columns=columns, **sets)

    @property
    def whole(self) -> bool:
        """Whether raw samples are whole numbers: pixels or tokens."""
        return self.pixels is not None or self.tokens is not None

    def view(self, augment: Augment, raw: Tensor, generator: Generator) -> tuple[Tensor, Frame | None]:
        """A perturbed view of raw samples, and where its points went, where there are such."""
        return augment(raw, generator, framed=self.points, columns=self.columns, tokens=self.tokens)

    def inputs(self, raw: Tensor) -> Tensor:
        """Samples as the network takes them; of several versions of a text the first."""
        if self.tokens is not None:
            return (raw[:, 0] if raw.ndim == 3 else raw).long()
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
