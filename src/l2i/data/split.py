"""Labelled, unlabelled, hold-out, validation and test samples, drawn by seed with as many labels a class."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from l2i.errors import InputError

LABELED_SHARE = 0.6  # of a class's labels, where the hold-out set is separate (ablation «Joint training …»)


class Samples(NamedTuple):
    """Inputs and their labels, whole; y of unlabelled samples is hidden truth, for diagnosis alone."""

    x: Tensor  # [N, ...]
    y: Tensor  # [N] classes, or [N, D] targets

    def take(self, index: Tensor) -> Samples:
        return Samples(self.x[index], self.y[index])

    def to(self, device: torch.device, dtype: torch.dtype) -> Samples:
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        return Samples(self.x.to(device, dtype), y)


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The five sets of a run; `classes` is None for regression."""

    labeled: Samples
    unlabeled: Samples
    holdout: Samples
    validation: Samples
    test: Samples
    classes: int | None
    points: bool = False
    """Regression: whether targets are points x, y, x, y, … in pixels, which move with the image."""

    @staticmethod
    def given(
        *,
        labeled: tuple[Any, Any],
        unlabeled: Any,
        test: tuple[Any, Any],
        validation: tuple[Any, Any] | None = None,
        classes: int | None = None,
        points: bool = False,
    ) -> Splits:
        """Sets of your own, as tensors or arrays: inputs and labels, but inputs alone for `unlabeled`.

        With `classes`, labels are whole numbers from 0; without, targets [N, D]. The hold-out set is the labelled one.
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
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Splits:
        sets = {
            name: getattr(self, name).to(device, dtype)
            for name in ("labeled", "unlabeled", "holdout", "validation", "test")
        }
        return dataclasses.replace(self, **sets)


def samples_of(x: Any, y: Any, classes: int | None) -> Samples:
    """Inputs and labels as tensors, checked."""
    inputs, labels = torch.as_tensor(x), torch.as_tensor(y)
    labels = labels.float() if classes is None else labels.long()
    if len(inputs) != len(labels):
        raise InputError(f"{len(inputs)} samples and {len(labels)} labels do not match; give a label to each")
    if classes is not None and (labels.ndim != 1 or bool(((labels < 0) | (labels >= classes)).any())):
        raise InputError(f"class labels must be [N] whole numbers from 0 to {classes - 1}; number them so")
    return Samples(inputs, labels)


def draw_splits(
    train: Samples,
    test: Samples,
    *,
    classes: int | None,
    num_labeled: int,
    num_validation: int,
    holdout: Literal["joint", "separate"],
    seed: int,
) -> Splits:
    """Draw validation rows, then balanced labels among the rest; what is left is unlabelled."""
    train, test = samples_of(*train, classes), samples_of(*test, classes)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train.x), generator=generator)
    if not 0 <= num_validation < len(order):
        raise InputError(
            f"num_validation={num_validation} must be at least 0 and leave some of {len(order)} training samples"
        )
    validation, rest = order[:num_validation], order[num_validation:]
    groups = by_class(train.y, rest, classes)
    per_class = labels_per_class(num_labeled, groups)
    labeled = [group[:per_class] for group in groups]
    unlabeled = torch.cat([group[per_class:] for group in groups])
    fitted, held = (labeled, labeled) if holdout == "joint" else divided(labeled, per_class)
    return Splits(
        labeled=train.take(torch.cat(fitted)),
        unlabeled=train.take(unlabeled),
        holdout=train.take(torch.cat(held)),
        validation=train.take(validation),
        test=test,
        classes=classes,
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


def labels_per_class(num_labeled: int, groups: list[Tensor]) -> int:
    """How many labels each class gets, or what is wrong with the number asked for."""
    classes, fewest = len(groups), min(len(group) for group in groups)
    if fewest == 0:
        raise InputError("a class has no training samples left to label; lower num_validation, or leave the class out")
    if num_labeled < classes or num_labeled % classes:
        nearest = max(1, num_labeled // classes) * classes
        raise InputError(f"num_labeled={num_labeled} is not a positive multiple of {classes} classes; use {nearest}")
    if num_labeled // classes > fewest:
        raise InputError(
            f"num_labeled={num_labeled} asks for {num_labeled // classes} labels a class, but one class has only "
            f"{fewest} training samples; use at most {fewest * classes}"
        )
    return num_labeled // classes


def divided(labeled: list[Tensor], per_class: int) -> tuple[list[Tensor], list[Tensor]]:
    """Each class's labels as 60 % to train on and 40 % to hold out."""
    if per_class < 2:
        raise InputError(
            "a separate hold-out set needs at least 2 labels a class; label more or use l2i.holdout='joint'"
        )
    cut = min(max(1, round(LABELED_SHARE * per_class)), per_class - 1)
    return [group[:cut] for group in labeled], [group[cut:] for group in labeled]
