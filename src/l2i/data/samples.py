"""Samples with their labels: a dataset as published, and the five sets of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from l2i.data.batch import AffineMap
from l2i.data.transforms.image import Augment, ColumnLayout, Normalize
from l2i.data.transforms.text import TokenAugment, Vocabulary
from l2i.errors import InputError
from l2i.files.digest import hash_arrays, hash_bytes

if TYPE_CHECKING:
    from l2i.files.images import ImageFiles

MIN_TARGET_STD = 1e-30  # float32 holds it, and its inverse, with room to spare
SPLIT_TITLES = {
    "labeled": "labelled",
    "unlabeled": "unlabelled",
    "holdout": "hold-out",
    "validation": "validation",
    "test": "test",
}

PART_TITLES = {
    "inputs": "inputs",
    "times": "modification times",
    "labels": "labels",
    "weights": "weights",
    "ids": "ids",
}
Fingerprint = dict[str, str]
"""A checksum for each part of the data, such as 'unlabeled.inputs'."""


def describe_changes(
    stored: Fingerprint, current: Fingerprint, noun: str = "samples"
) -> str | None:
    """Say which parts of the data differ, as in 'the inputs of the unlabelled samples', if any."""
    changed = [key for key in current | stored if current.get(key) != stored.get(key)]
    kinds_by_split: dict[str, list[str]] = {}
    for split, dot, kind in (key.partition(".") for key in changed):
        if dot:
            title = SPLIT_TITLES.get(split, split)  # a checkpoint may be untrusted
            kinds_by_split.setdefault(title, []).append(PART_TITLES.get(kind, kind))
    if kinds_by_split.get("hold-out") == kinds_by_split.get("labelled"):
        kinds_by_split.pop("hold-out", None)  # they are usually the same samples
    listed = [
        f"the {', '.join(kinds[:-1])}{' and ' * (len(kinds) > 1)}{kinds[-1]} of the {split} {noun}"
        for split, kinds in kinds_by_split.items()
    ]
    listed += [f"the {key}" for key in changed if "." not in key]
    return ", ".join(listed) or None


class Samples(NamedTuple):
    """Hold inputs and their labels."""

    x: Tensor | ImageFiles
    """Inputs [N, ...]. 8-bit images stay 8-bit; texts are token ids [N, L], or [N, V, L] with V
    versions of each text."""
    y: Tensor
    """Classes [N] or targets [N, D]; for unlabelled samples the hidden truth, used only by
    diagnostics, or −1."""
    weight: Tensor | None = None
    """How often each sample is drawn relative to the others, [N]; None for equally often."""

    def take(self, index: Tensor) -> Samples:
        """Return the samples at these indices."""
        weight = None if self.weight is None else self.weight[index]
        return Samples(self.x[index], self.y[index], weight)

    def to(self, device: torch.device, dtype: torch.dtype, *, keep_dtype: bool) -> Samples:
        """Move to the device, but leave image files where they are."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        weight = None if self.weight is None else self.weight.to(device, torch.float64)
        if not isinstance(self.x, Tensor):
            return Samples(self.x, y, weight)
        return Samples(self.x.to(device) if keep_dtype else self.x.to(device, dtype), y, weight)


@dataclass(frozen=True, kw_only=True)
class SampleInfo:
    """Describe samples: their task, and how to preprocess them."""

    classes: int | None
    """Number of classes; None for regression."""
    has_landmarks: bool = False
    """Regression: the targets are points x, y, x, y, … in pixels, which move with the image."""
    eye_indices: tuple[int, int] | None = None
    """Landmarks: indices of the eyes, whose distance is the unit of errors."""
    normalization: Normalize | None = None
    """8-bit images: mean and standard deviation that standardise grey levels."""
    vocabulary: Vocabulary | None = None
    """Texts as token ids: their vocabulary."""


@dataclass(frozen=True, kw_only=True)
class DataSet(SampleInfo):
    """A dataset as published, before it is split."""

    train: Samples
    """Training samples."""
    test: Samples
    """Test samples."""
    unlabeled: Samples | None = None
    """Additional samples without labels."""

    @staticmethod
    def from_images(
        train: Samples,
        test: Samples,
        *,
        classes: int | None,
        eye_indices: tuple[int, int] | None = None,
    ) -> DataSet:
        """Build a dataset of 8-bit images in memory; without classes, the labels are landmarks."""
        assert isinstance(train.x, Tensor)
        return DataSet(
            train=train,
            test=test,
            classes=classes,
            has_landmarks=classes is None,
            eye_indices=eye_indices,
            normalization=Normalize.from_images(train.x),
        )


@dataclass(frozen=True, kw_only=True)
class Splits(SampleInfo):
    """Hold the five sets of samples of a run."""

    labeled: Samples
    """Labelled training samples T."""
    unlabeled: Samples
    """Unlabelled training samples U."""
    holdout: Samples
    """Hold-out samples H, for the outer step; often the labelled ones."""
    validation: Samples
    """Validation samples, never trained on."""
    test: Samples
    """Test samples."""
    columns: ColumnLayout | None = None
    """Tables: which inputs belong to one column, and which are numeric."""

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
        """Build splits from your own arrays or tensors; the hold-out set is the labelled one.

        Args:
            labeled: Inputs and labels to train on.
            unlabeled: Inputs without labels.
            test: Inputs and labels to test on.
            validation: Inputs and labels for model selection.
            classes: Number of classes, for labels from 0 on; None for regression, targets [N, D].
            has_landmarks: The targets are points x, y, … in pixels, which move with the image.
            normalization: How to standardise 8-bit images, as by `Normalize.from_images`.
            columns: Which inputs belong to one column of a table.
            vocabulary: Vocabulary of texts given as token ids [N, L], as by `build_vocabulary`.

        Raises:
            InputError: If inputs and labels do not match, or a label or token id is out of range.

        """
        own = make_samples(*labeled, classes)
        x = torch.as_tensor(unlabeled)
        if vocabulary is not None:
            _check_token_ids(vocabulary, own.x, x)
        no_samples = own.take(torch.arange(0))
        return Splits(
            labeled=own,
            unlabeled=Samples(x, torch.full((len(x), *own.y.shape[1:]), -1, dtype=own.y.dtype)),
            holdout=own,
            validation=no_samples if validation is None else make_samples(*validation, classes),
            test=make_samples(*test, classes),
            classes=classes,
            has_landmarks=has_landmarks,
            normalization=normalization,
            columns=columns,
            vocabulary=vocabulary,
        )

    def with_labels(self, labeled: Samples, *, validation: Samples) -> Splits:
        """Return splits with other labelled samples, also as hold-out, and validation samples."""
        return dataclasses.replace(self, labeled=labeled, holdout=labeled, validation=validation)

    def to(self, device: torch.device, dtype: torch.dtype) -> Splits:
        keep_dtype = self.has_integer_inputs
        sets: dict[str, Any] = {name: getattr(self, name) for name in SPLIT_TITLES}
        return dataclasses.replace(
            self,
            normalization=self.normalization and self.normalization.to(device, dtype),
            vocabulary=self.vocabulary and self.vocabulary.to(device),
            columns=self.columns and self.columns.to(device),
            **{name: part.to(device, dtype, keep_dtype=keep_dtype) for name, part in sets.items()},
        )

    @property
    def has_integer_inputs(self) -> bool:
        """Whether raw samples are integers: pixels or tokens."""
        return self.normalization is not None or self.vocabulary is not None

    def make_view(
        self, augment: Augment | TokenAugment, raw: Tensor, generator: Generator
    ) -> tuple[Tensor, AffineMap | None]:
        """Return a perturbed view of raw samples and, for landmarks, where its points went."""
        if self.vocabulary is not None:
            words = augment if isinstance(augment, TokenAugment) else TokenAugment()
            return words(raw, generator, self.vocabulary), None
        assert isinstance(augment, Augment)
        return augment(raw, generator, with_map=self.has_landmarks, columns=self.columns)

    def to_inputs(self, raw: Tensor) -> Tensor:
        """Convert raw samples to the network's inputs: the first version of a text, for one."""
        if self.vocabulary is not None:
            return (raw[:, 0] if raw.ndim == 3 else raw).long()
        return raw if self.normalization is None else self.normalization.apply(raw)

    def fingerprint(self) -> Fingerprint:
        """Return a checksum of every part of the data: all inputs, labels and weights, in order.

        Files that are streamed count by name, size and modification time.
        """
        parts: Fingerprint = {}
        for name in SPLIT_TITLES:
            samples: Samples = getattr(self, name)
            if isinstance(samples.x, Tensor):
                parts[f"{name}.inputs"] = _hash_tensors(samples.x)
            else:
                names, times = samples.x.describe_files()
                parts |= {f"{name}.inputs": hash_bytes(names), f"{name}.times": hash_bytes(times)}
            parts[f"{name}.labels"] = _hash_tensors(samples.y)
            if samples.weight is not None:
                parts[f"{name}.weights"] = _hash_tensors(samples.weight)
        constants = (self.normalization, self.columns, self.vocabulary)
        tensors = [v for c in constants if c is not None for v in c if isinstance(v, Tensor)]
        facts = f"{self.classes} {self.has_landmarks} {self.eye_indices}".encode()
        parts["preprocessing"] = hash_bytes(facts, _hash_tensors(*tensors).encode())
        return parts

    def describe(self, *, exclude: tuple[str, ...] = ()) -> str:
        """Return how many samples each set and each class has, in words."""
        return ", ".join(
            f"{len(y):,} {title}{_format_class_counts(y, self.classes)}"
            for name, title in SPLIT_TITLES.items()
            if name not in exclude
            for y in (getattr(self, name).y,)
        )


def _hash_tensors(*tensors: Tensor) -> str:
    return hash_arrays(*(tensor.numpy(force=True) for tensor in tensors))


def _check_token_ids(vocabulary: Vocabulary, *inputs: Any) -> None:
    if any(int(torch.as_tensor(ids).max()) >= vocabulary.size for ids in inputs if len(ids)):
        requirement = f"must be below the vocabulary size {vocabulary.size}"
        raise InputError(f"token ids {requirement}; use the vocabulary of their tokenizer")


def _format_class_counts(y: Tensor, classes: int | None) -> str:
    if classes is None or not len(y) or bool((y < 0).any()):  # no classes, or not known
        return ""
    counts = torch.bincount(y, minlength=classes)
    low, high = int(counts.min()), int(counts.max())
    return f" ({low:,} per class)" if low == high else f" ({low:,} to {high:,} per class)"


def check_target_range(targets: NDArray[Any], names: Sequence[str]) -> None:
    """Check that float32 holds targets [N, D], less their mean, with all of its digits."""
    values = np.asarray(targets, dtype=np.float64)
    for column, name in zip(values.T, names, strict=True):
        largest = float(np.abs(column).max(initial=0.0))
        std = largest * float(np.std(column / largest)) if 0 < largest < math.inf else 0.0
        if std > 0 and not MIN_TARGET_STD < std < 1 / MIN_TARGET_STD:  # NaN is found elsewhere
            exponent = max(-300, min(300, -round(math.log10(std))))
            factor = f"1e{exponent:+d}"
            problem = f"target '{name}' has a standard deviation of {std:.1g}"
            limits = (
                f"outside of what float32 can hold ({MIN_TARGET_STD:g} to {1 / MIN_TARGET_STD:g})"
            )
            raise InputError(f"{problem}, {limits}; rescale it, for example by {factor}")


def _to_float32(targets: Tensor) -> Tensor:
    """Convert targets [N, D] of any precision, after checking that float32 holds them."""
    exact = targets.double()
    flat = exact.reshape(len(exact), math.prod(exact.shape[1:]))
    check_target_range(flat.numpy(force=True), [f"y{i}" for i in range(flat.shape[1])])
    converted = exact.float()
    if bool((converted.isinf() & exact.isfinite()).any()):
        raise InputError("targets are too large for float32; subtract their mean, or rescale them")
    return converted


def make_samples(x: Any, y: Any, classes: int | None) -> Samples:
    """Convert inputs and labels to tensors, and check them."""
    inputs, labels = x if hasattr(x, "read") else torch.as_tensor(x), torch.as_tensor(y)
    labels = _to_float32(labels) if classes is None else labels.long()
    if len(inputs) != len(labels):
        counts = f"{len(inputs)} samples and {len(labels)} labels"
        raise InputError(f"{counts} do not match; pass one label per sample")
    if classes is not None and (labels.ndim != 1 or ((labels < 0) | (labels >= classes)).any()):
        requirement = f"must be integers from 0 to {classes - 1}, of shape [N]"
        raise InputError(f"class labels {requirement}; encode them as such integers")
    return Samples(inputs, labels)
