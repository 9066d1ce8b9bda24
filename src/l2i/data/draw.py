"""Draws a run's five sets by its seed: with as many labels a class, and all that is left unlabelled."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from l2i.data.split import DataSet, Samples, Splits, samples_of
from l2i.errors import InputError
from l2i.shares import Count, resolved

LABELED_SHARE = 0.6  # of a class's labels, where the hold-out set is separate (ablation «Joint training …»)
KEPT = ("classes", "points", "eyes", "pixels", "tokens")  # of a data set, by its splits
TEST_SEED = 0  # of the test samples, where not all are taken: the same for every run


def draw_splits(
    data: DataSet,
    *,
    num_labeled: Count,
    num_validation: Count,
    holdout: Literal["joint", "separate"],
    seed: int,
    num_test: Count = 1.0,
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
        unlabeled=joined(train.take(unlabeled), data.unlabeled),
        holdout=train.take(torch.cat(held)),
        validation=train.take(validation),
        test=some(test, num_test),
        **{name: getattr(data, name) for name in KEPT},
    )


def some(test: Samples, count: Count) -> Samples:
    """So many of the test samples, in their order: those that a fixed seed draws."""
    if count == 1.0 and isinstance(count, float):
        return test
    wanted = resolved(count, len(test.y))
    if not 1 <= wanted <= len(test.y):
        raise InputError(
            f"num_test={count} must be at least 1 of the {len(test.y)} test samples there are; use 1.0 for all"
        )
    order = torch.randperm(len(test.y), generator=torch.Generator().manual_seed(TEST_SEED))
    return test.take(order[:wanted].sort().values)


def joined(first: Samples, more: Samples | None) -> Samples:
    """Both, where there are more."""
    if more is None:
        return first
    assert isinstance(first.x, Tensor) and isinstance(more.x, Tensor)
    return Samples(torch.cat([first.x, more.x]), torch.cat([first.y, more.y]))


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
