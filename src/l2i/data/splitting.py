"""Draws a run's five sets by its seed: with as many labels a class, and all that is left unlabelled."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from l2i.data.samples import DataSet, Samples, Splits, make_samples
from l2i.errors import InputError
from l2i.quantity import CountOrFraction, resolve_count

LABELED_FRACTION = 0.6  # of a class's labels, where the hold-out set is separate (ablation «Joint training …»)
SHARED_FIELDS = ("classes", "has_landmarks", "eye_indices", "normalization", "vocabulary")  # of a data set, by its splits
TEST_SEED = 0  # of the test samples, where not all are taken: the same for every run


def draw_splits(
    data: DataSet,
    *,
    num_labeled: CountOrFraction,
    num_validation: CountOrFraction,
    holdout: Literal["joint", "separate"],
    seed: int,
    num_test: CountOrFraction = 1.0,
) -> Splits:
    """Draw validation rows, then balanced labels among the rest; what is left is unlabelled."""
    classes = data.classes
    train, test = (make_samples(part.x, part.y, classes) for part in (data.train, data.test))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train.x), generator=generator)
    validation_count = resolve_count(num_validation, len(order))
    if not 0 <= validation_count < len(order):
        raise InputError(f"num_validation={validation_count} must be at least 0 and leave some of {len(order)} training samples")
    validation, remaining = order[:validation_count], order[validation_count:]
    groups = group_by_class(train.y, remaining, classes)
    label_counts = resolve_label_counts(num_labeled, groups)
    labeled = [group[:count] for group, count in zip(groups, label_counts, strict=True)]
    unlabeled = torch.cat([group[count:] for group, count in zip(groups, label_counts, strict=True)])
    train_groups, holdout_groups = (labeled, labeled) if holdout == "joint" else split_holdout(labeled)
    return Splits(
        labeled=train.take(torch.cat(train_groups)),
        unlabeled=concat_samples(train.take(unlabeled), data.unlabeled),
        holdout=train.take(torch.cat(holdout_groups)),
        validation=train.take(validation),
        test=subsample_test(test, num_test),
        **{name: getattr(data, name) for name in SHARED_FIELDS},
    )


def subsample_test(test: Samples, count: CountOrFraction) -> Samples:
    """So many of the test samples, in their order: those that a fixed seed draws."""
    if count == 1.0 and isinstance(count, float):
        return test
    test_count = resolve_count(count, len(test.y))
    if not 1 <= test_count <= len(test.y):
        raise InputError(
            f"num_test={count} must be at least 1 of the {len(test.y)} test samples there are; use 1.0 for all"
        )
    order = torch.randperm(len(test.y), generator=torch.Generator().manual_seed(TEST_SEED))
    return test.take(order[:test_count].sort().values)


def concat_samples(samples: Samples, extra: Samples | None) -> Samples:
    """Both, where there are more."""
    if extra is None:
        return samples
    assert isinstance(samples.x, Tensor) and isinstance(extra.x, Tensor)
    return Samples(torch.cat([samples.x, extra.x]), torch.cat([samples.y, extra.y]))


def group_by_class(y: Tensor, rows: Tensor, classes: int | None) -> list[Tensor]:
    """The rows of each class, in the order drawn; one group for regression."""
    if classes is None:
        return [rows]
    if len(torch.unique(y)) < 2:
        raise InputError(
            "all training samples are of one class: there is nothing to tell apart; add samples of another"
        )
    return [rows[y[rows] == c] for c in range(classes)]


def resolve_label_counts(num_labeled: CountOrFraction, groups: list[Tensor]) -> list[int]:
    """How many labels each class gets, or what is wrong with the number asked for."""
    classes, min_class_size = len(groups), min(len(group) for group in groups)
    if min_class_size == 0:
        raise InputError("a class has no training samples left to label; lower num_validation, or leave the class out")
    if isinstance(num_labeled, float):
        return [max(1, resolve_count(num_labeled, len(group))) for group in groups]
    if num_labeled < classes or num_labeled % classes:
        nearest = max(1, num_labeled // classes) * classes
        raise InputError(f"num_labeled={num_labeled} is not a positive multiple of {classes} classes; use {nearest}")
    if num_labeled // classes > min_class_size:
        request = f"{num_labeled // classes} labels a class, but one class" if classes > 1 else "as many, but the set"
        raise InputError(
            f"num_labeled={num_labeled} asks for {request} has only {min_class_size} training samples; "
            f"use at most {min_class_size * classes}"
        )
    return [num_labeled // classes] * classes


def split_holdout(labeled: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Each class's labels as 60 % to train on and 40 % to hold out."""
    if min(len(group) for group in labeled) < 2:
        raise InputError(
            "a separate hold-out set needs at least 2 labels a class; label more or use l2i.holdout='joint'"
        )
    cuts = [min(max(1, round(LABELED_FRACTION * len(group))), len(group) - 1) for group in labeled]
    return [g[:cut] for g, cut in zip(labeled, cuts, strict=True)], [
        g[cut:] for g, cut in zip(labeled, cuts, strict=True)
    ]
