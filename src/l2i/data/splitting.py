"""Draw the five sets of a run by its seed, with equally many labels per class."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from l2i.data.samples import DataSet, SampleInfo, Samples, Splits, make_samples
from l2i.errors import InputError
from l2i.quantity import CountOrFraction, resolve_count

TRAIN_FRACTION = 0.6  # of a class's labels, if the hold-out is separate («Joint training …»)
TEST_SEED = 0  # of a subset of the test samples: the same for every run


def draw_splits(
    data: DataSet,
    *,
    num_labeled: CountOrFraction,
    num_validation: CountOrFraction,
    holdout: Literal["joint", "separate"],
    seed: int,
    num_test: CountOrFraction = 1.0,
) -> Splits:
    """Draw validation samples, then equally many labels per class; the rest is unlabelled.

    Args:
        data: The dataset.
        num_labeled: Number of labelled samples, or a fraction of each class.
        num_validation: Number of validation samples, or a fraction of the training samples.
        holdout: Draw hold-out samples from the labelled ones ('joint'), or set aside 40 % of each
            class ('separate').
        seed: Seed of all draws.
        num_test: Number of test samples, or a fraction; the same samples for every seed.

    """
    train, test = (make_samples(part.x, part.y, data.classes) for part in (data.train, data.test))
    order = torch.randperm(len(train.x), generator=torch.Generator().manual_seed(seed))
    validation_count = resolve_count(num_validation, len(order))
    if not 0 <= validation_count < len(order):
        requirement = f"must be at least 0 and less than the {len(order)} training samples"
        raise InputError(f"num_validation={validation_count} {requirement}")
    groups = group_by_class(train.y, order[validation_count:], data.classes)
    counts = _resolve_label_counts(num_labeled, groups)
    labeled = [group[:count] for group, count in zip(groups, counts, strict=True)]
    rest = [group[count:] for group, count in zip(groups, counts, strict=True)]
    unlabeled = train.take(torch.cat(rest))
    if data.unlabeled is not None:
        assert isinstance(unlabeled.x, Tensor) and isinstance(data.unlabeled.x, Tensor)
        x = torch.cat([unlabeled.x, data.unlabeled.x])
        unlabeled = Samples(x, torch.cat([unlabeled.y, data.unlabeled.y]))
    train_rows, holdout_rows = (labeled, labeled) if holdout == "joint" else split_holdout(labeled)
    return Splits(
        labeled=train.take(torch.cat(train_rows)),
        unlabeled=unlabeled,
        holdout=train.take(torch.cat(holdout_rows)),
        validation=train.take(order[:validation_count]),
        test=_subsample_test(test, num_test),
        **{field.name: getattr(data, field.name) for field in dataclasses.fields(SampleInfo)},
    )


def _subsample_test(test: Samples, count: CountOrFraction) -> Samples:
    """Take a subset of the test samples in their order, by a fixed seed."""
    if count == 1.0 and isinstance(count, float):
        return test
    size = len(test.y)
    test_count = resolve_count(count, size)
    if not 1 <= test_count <= size:
        bounds = f"must be from 1 to {size}, the number of test samples"
        raise InputError(f"num_test={count} {bounds}; use 1.0 for all")
    order = torch.randperm(size, generator=torch.Generator().manual_seed(TEST_SEED))
    return test.take(order[:test_count].sort().values)


def group_by_class(y: Tensor, rows: Tensor, classes: int | None) -> list[Tensor]:
    """Return the rows of each class, in the order drawn; one group for regression."""
    if classes is None:
        return [rows]
    if len(torch.unique(y)) < 2:
        problem = "all training samples are of one class, so there is nothing to classify"
        raise InputError(f"{problem}; add samples of another class")
    return [rows[y[rows] == c] for c in range(classes)]


def _resolve_label_counts(num_labeled: CountOrFraction, groups: list[Tensor]) -> list[int]:
    classes, min_size = len(groups), min(len(group) for group in groups)
    if min_size == 0:
        fix = "lower num_validation, or drop the class"
        raise InputError(f"a class has no training samples left to label; {fix}")
    if isinstance(num_labeled, float):
        return [max(1, resolve_count(num_labeled, len(group))) for group in groups]
    per_class = num_labeled // classes
    if num_labeled < classes or num_labeled % classes:
        problem = f"is not a positive multiple of the {classes} classes"
        raise InputError(f"num_labeled={num_labeled} {problem}; use {max(1, per_class) * classes}")
    if per_class > min_size:
        owner = (
            f"needs {per_class} labels per class, but one class"
            if classes > 1
            else "is too many: the set"
        )
        problem = f"{owner} has only {min_size} training samples"
        raise InputError(f"num_labeled={num_labeled} {problem}; use at most {min_size * classes}")
    return [per_class] * classes


def split_holdout(labeled: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Split the labels of each class into 60 % to train on and 40 % to hold out."""
    if min(len(group) for group in labeled) < 2:
        fix = "label more samples, or use l2i.holdout='joint'"
        raise InputError(f"a separate hold-out set needs at least 2 labels per class; {fix}")
    cuts = [min(max(1, round(TRAIN_FRACTION * len(group))), len(group) - 1) for group in labeled]
    pairs = list(zip(labeled, cuts, strict=True))
    return [group[:cut] for group, cut in pairs], [group[cut:] for group, cut in pairs]
