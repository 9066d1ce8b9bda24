"""Labelled, unlabelled, hold-out, validation and test samples, drawn by seed with as many labels a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from l2i.errors import InputError

LABELED_SHARE = (
    0.6  # of the labels a class, where the hold-out set is separate (ablation «Joint training and hold-out sets»)
)


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
    """The five sets of a run. `classes` is None for regression."""

    labeled: Samples
    unlabeled: Samples
    holdout: Samples
    validation: Samples
    test: Samples
    classes: int | None

    def to(self, device: torch.device, dtype: torch.dtype) -> Splits:
        sets = {
            name: getattr(self, name).to(device, dtype)
            for name in ("labeled", "unlabeled", "holdout", "validation", "test")
        }
        return Splits(**sets, classes=self.classes)


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
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train.x), generator=generator)
    if not 0 <= num_validation < len(order):
        raise InputError(f"num_validation={num_validation} leaves nothing of {len(order)} training samples; use fewer")
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
    if num_labeled < classes or num_labeled % classes:
        nearest = max(1, num_labeled // classes) * classes
        raise InputError(f"num_labeled={num_labeled} is not a multiple of {classes} classes; use {nearest}")
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
