"""Samples with their labels: a data set as it is published, and the five sets of a run.

MERGED:
Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.

"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor

from l2i.data.transforms.geometry import AffineMap
from l2i.data.transforms.image import Augment, ColumnLayout, Normalize
from l2i.data.transforms.text import Vocabulary
from l2i.errors import InputError

if TYPE_CHECKING:
    from l2i.data.image_files import ImageFiles

SPLIT_TITLES = {
    "labeled": "labelled",
    "unlabeled": "unlabelled",
    "holdout": "hold-out",
    "validation": "validation",
    "test": "test",
}


class Samples(NamedTuple):
    """Inputs and their labels, whole; y of unlabelled samples is hidden truth, for diagnosis alone."""

    x: (
        Tensor | ImageFiles
    )  # [N, ...]; grey levels of 8 bits stay so; texts are token ids, [N, L] or several versions of each
    y: Tensor  # [N] classes, or [N, D] targets
    weight: Tensor | None = None  # [N], how often a sample is drawn, compared with others; all as often without

    def take(self, index: Tensor) -> Samples:
        return Samples(self.x[index], self.y[index], None if self.weight is None else self.weight[index])

    def to(self, device: torch.device, dtype: torch.dtype, *, keep_dtype: bool) -> Samples:
        """On the device; `whole` numbers, as pixels and tokens are, stay so, and image files stay where they are."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        weight = None if self.weight is None else self.weight.to(device, torch.float64)
        if not isinstance(self.x, Tensor):
            return Samples(self.x, y, weight)
        return Samples(self.x.to(device) if keep_dtype else self.x.to(device, dtype), y, weight)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set as its publishers give it, before anything is drawn; `classes` is None for regression."""

    train: Samples
    test: Samples
    classes: int | None
    has_landmarks: bool = False
    """Regression: whether targets are points x, y, x, y, … in pixels, which move with the image."""
    eye_indices: tuple[int, int] | None = None
    """Landmarks: which points are the eyes, whose distance errors are measured in."""
    normalization: Normalize | None = None
    """Images of 8 bits: how grey levels become the network's inputs."""
    vocabulary: Vocabulary | None = None
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
    has_landmarks: bool = False
    eye_indices: tuple[int, int] | None = None
    normalization: Normalize | None = None
    columns: ColumnLayout | None = None
    """Tables: which inputs are one column, and which are numbers."""
    vocabulary: Vocabulary | None = None

    @staticmethod
    def from_arrays(
        *,
        labeled: tuple[Any, Any],
        unlabeled: Any,
        test: tuple[Any, Any],
        validation: tuple[Any, Any] | None = None,
        classes: int | None = None,
        has_landmarks: bool = False,
        normalization: Normalize | None = None,
        columns: ColumnLayout | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> Splits:
        """Sets of your own, as tensors or arrays: inputs and labels, but inputs alone for `unlabeled`.

        With `classes`, labels are whole numbers from 0; without, targets [N, D]. The hold-out set is the labelled one.
        Images of 8 bits may stay so, with `normalization` (see `Normalize.from_images`) to say how the network sees them; texts are token
        ids [N, L], with `vocabulary` (see `build_vocabulary`).
        """
        labeled_samples = make_samples(*labeled, classes)
        x = torch.as_tensor(unlabeled)
        if vocabulary is not None and any(int(torch.as_tensor(p).max()) >= vocabulary.size for p in (labeled_samples.x, x) if len(p)):
            raise InputError(f"token ids must be below the {vocabulary.size} of `vocabulary`; use their own tokenizer's")
        unlabeled_samples = Samples(x, torch.full((len(x), *labeled_samples.y.shape[1:]), -1, dtype=labeled_samples.y.dtype))
        validation_samples = labeled_samples.take(torch.arange(0)) if validation is None else make_samples(*validation, classes)
        return Splits(
            labeled=labeled_samples,
            unlabeled=unlabeled_samples,
            holdout=labeled_samples,
            validation=validation_samples,
            test=make_samples(*test, classes),
            classes=classes,
            has_landmarks=has_landmarks,
            normalization=normalization,
            columns=columns,
            vocabulary=vocabulary,
        )

    def with_labels(self, labeled: Samples, *, validation: Samples) -> Splits:
        """The same with other labelled samples, from which the hold-out is drawn too, and other validation samples."""
        return dataclasses.replace(self, labeled=labeled, holdout=labeled, validation=validation)

    def to(self, device: torch.device, dtype: torch.dtype) -> Splits:
        normalization = None if self.normalization is None else self.normalization.to(device, dtype)
        vocabulary = None if self.vocabulary is None else self.vocabulary.to(device)
        sets = {name: getattr(self, name).to(device, dtype, keep_dtype=self.has_integer_inputs) for name in SPLIT_TITLES}
        columns = None if self.columns is None else self.columns.to(device)
        return dataclasses.replace(self, normalization=normalization, vocabulary=vocabulary, columns=columns, **sets)

    @property
    def has_integer_inputs(self) -> bool:
        """Whether raw samples are whole numbers: pixels or tokens."""
        return self.normalization is not None or self.vocabulary is not None

    def make_view(self, augment: Augment, raw: Tensor, generator: Generator) -> tuple[Tensor, AffineMap | None]:
        """A perturbed view of raw samples, and where its points went, where there are such."""
        return augment(raw, generator, with_map=self.has_landmarks, columns=self.columns, vocabulary=self.vocabulary)

    def to_inputs(self, raw: Tensor) -> Tensor:
        """Samples as the network takes them; of several versions of a text the first."""
        if self.vocabulary is not None:
            return (raw[:, 0] if raw.ndim == 3 else raw).long()
        return raw if self.normalization is None else self.normalization.apply(raw)

    def fingerprint(self) -> str:
        """A checksum of how the sets are drawn: of all labels, and of the labelled inputs."""
        hasher = hashlib.blake2b(digest_size=16)
        for name in SPLIT_TITLES:
            samples: Samples = getattr(self, name)
            hasher.update(f"{name} {list(samples.x.shape)}".encode() + samples.y.numpy(force=True).tobytes())
        labeled = self.labeled.x
        hasher.update(labeled.numpy(force=True).tobytes() if isinstance(labeled, Tensor) else labeled.encode_names())
        return hasher.hexdigest()

    def describe(self, *, exclude: tuple[str, ...] = ()) -> str:
        """How many samples each set has, and how the classes share them."""
        return ", ".join(
            f"{len(getattr(self, name).x):,} {title}{format_class_counts(getattr(self, name).y, self.classes)}"
            for name, title in SPLIT_TITLES.items()
            if name not in exclude
        )


def format_class_counts(y: Tensor, classes: int | None) -> str:
    """How many samples a class has, in words."""
    if classes is None or not len(y) or bool((y < 0).any()):  # no classes, or not known
        return ""
    counts = torch.bincount(y, minlength=classes)
    low, high = int(counts.min()), int(counts.max())
    return f" ({low:,} a class)" if low == high else f" ({low:,} to {high:,} a class)"


def make_samples(x: Any, y: Any, classes: int | None) -> Samples:
    """Inputs and labels as tensors, checked."""
    inputs, labels = x if hasattr(x, "read") else torch.as_tensor(x), torch.as_tensor(y)
    labels = labels.float() if classes is None else labels.long()
    if len(inputs) != len(labels):
        raise InputError(f"{len(inputs)} samples and {len(labels)} labels do not match; give a label to each")
    if classes is not None and (labels.ndim != 1 or bool(((labels < 0) | (labels >= classes)).any())):
        raise InputError(f"class labels must be [N] whole numbers from 0 to {classes - 1}; number them so")
    return Samples(inputs, labels)


SplitReader = Callable[[str | None], tuple[Samples, Samples]]


def load_in_memory(
    reader: SplitReader, root: str | None, *, classes: int | None, eye_indices: tuple[int, int] | None = None
) -> DataSet:
    """A set that is held in memory whole; without classes, its labels are landmarks."""
    train, test = reader(root)
    assert isinstance(train.x, Tensor)
    return DataSet(
        train=train,
        test=test,
        classes=classes,
        has_landmarks=classes is None,
        eye_indices=eye_indices,
        normalization=Normalize.from_images(train.x),
    )
