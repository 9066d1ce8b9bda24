"""The paper's counts on the real sets, where the variable L2I_DATA names a folder with them."""

import os

import pytest
import torch

from l2i import recipes
from l2i.data.samples import Splits
from l2i.training.setup import load_splits

pytestmark = pytest.mark.skipif(
    "L2I_DATA" not in os.environ, reason="L2I_DATA names no folder of real data"
)


def counts(splits: Splits) -> list[int]:
    return [len(s.x) for s in (splits.labeled, splits.unlabeled, splits.validation, splits.test)]


@pytest.mark.parametrize(
    ("cell", "labels", "each"),
    [
        ("cifar10/mean-teacher-l2i-250", 250, 25),
        ("cifar100/fixmatch-l2i-500", 500, 5),
        ("cifar10/vat-1000", 1000, 100),
    ],
)
def test_cifar_is_split_as_the_paper_says(cell: str, labels: int, each: int) -> None:
    splits = load_splits(recipes.get(cell))
    assert counts(splits) == [labels, 45_000 - labels, 5000, 10_000]
    assert set(torch.bincount(splits.labeled.y).tolist()) == {each}


def test_cifar_100_has_separate_sets_of_three_and_two_labels_a_class() -> None:
    splits = load_splits(recipes.get("cifar100/fixmatch-l2i-500-separate"))
    assert set(torch.bincount(splits.labeled.y).tolist()) == {3}
    assert set(torch.bincount(splits.holdout.y).tolist()) == {2}


def test_faces_keep_a_tenth_for_validation() -> None:
    splits = load_splits(recipes.get("aflw/mean-teacher-l2i-91"))
    labeled, unlabeled, validation, _ = counts(splits)
    assert labeled == 91
    assert validation == round(0.1 * (labeled + unlabeled + validation))
