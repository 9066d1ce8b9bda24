"""Samples: what is checked of a user's arrays, and how they are taken, moved and viewed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from l2i.data.samples import (
    DataSet,
    Samples,
    Splits,
    check_target_range,
    describe_changes,
    make_samples,
)
from l2i.data.transforms.text import TokenAugment, build_vocabulary
from l2i.errors import InputError

CPU = torch.device("cpu")


@pytest.mark.parametrize("column", [[0.0, 1e-35], [1e-35, -1e-35, 0.0], [0.0, 0.0, 1e35]])
def test_a_target_is_judged_by_its_largest_value(column: list[float]) -> None:
    targets = np.array([[1.0, value] for value in column])
    with pytest.raises(InputError, match="target 'b' has a standard deviation of"):
        check_target_range(targets, ["a", "b"])


def test_targets_without_rows_or_without_spread_are_in_range() -> None:
    check_target_range(np.empty((0, 2)), ["a", "b"])
    check_target_range(np.array([[1e-40, 0.0], [1e-40, 0.0]]), ["a", "b"])


def test_targets_need_one_name_each() -> None:
    with pytest.raises(ValueError, match="argument"):
        check_target_range(np.ones((3, 2)), ["a"])


@pytest.mark.parametrize(
    "labels", [[0, 1, 3], [0, -1, 2], [[0], [1], [2]], [[0, 1], [1, 0], [2, 2]]]
)
def test_classes_are_numbers_from_0_in_one_dimension(labels: list[object]) -> None:
    with pytest.raises(InputError, match="must be integers from 0 to 2, of shape"):
        make_samples(np.ones((3, 2)), labels, 3)


def test_classes_and_targets_have_their_types() -> None:
    assert make_samples(np.ones((3, 2)), np.array([0, 2, 1], dtype=np.uint8), 3).y.dtype == (
        torch.int64
    )
    assert make_samples(np.ones((2, 2)), np.array([[0.5], [1]]), None).y.dtype == torch.float32
    with pytest.raises(InputError, match="3 samples and 2 labels do not match"):
        make_samples(np.ones((3, 2)), [0, 1], 3)


def test_samples_are_taken_with_their_labels_and_weights() -> None:
    samples = Samples(torch.arange(4.0), torch.arange(4), torch.arange(4.0) / 8)
    taken = samples.take(torch.tensor([3, 1]))
    assert (taken.x.tolist(), taken.y.tolist()) == ([3.0, 1.0], [3, 1])  # type: ignore[union-attr]
    assert taken.weight is not None and taken.weight.tolist() == [0.375, 0.125]
    assert samples._replace(weight=None).take(torch.tensor([3])).weight is None


def test_pixels_and_classes_stay_integers_and_the_rest_takes_the_type_of_the_run() -> None:
    pixels = Samples(torch.zeros(2, 3, dtype=torch.uint8), torch.arange(2), torch.ones(2))
    moved = pixels.to(CPU, torch.bfloat16, keep_dtype=True)
    assert (moved.x.dtype, moved.y.dtype) == (torch.uint8, torch.int64)  # type: ignore[union-attr]
    assert moved.weight is not None and moved.weight.dtype == torch.float64
    numbers = Samples(torch.zeros(2, 3), torch.zeros(2, 1))
    moved = numbers.to(CPU, torch.float64, keep_dtype=False)
    assert (moved.x.dtype, moved.y.dtype) == (torch.float64,) * 2  # type: ignore[union-attr]


def make_text_splits(**changes: object) -> Splits:
    ids = torch.tensor(
        [[1, 1, 2, 3, 4, 5], [1, 2, 2, 6, 7, 1], [1, 3, 4, 1, 1, 0], [5, 1, 1, 1, 2, 0]]
    )
    flags = torch.zeros(8, dtype=torch.bool)
    vocabulary = build_vocabulary(ids, pad_id=0, is_special=flags, is_continuation=flags)
    parts = {"labeled": (ids, [0, 1, 0, 1]), "unlabeled": ids, "test": (ids, [0, 1, 0, 1])}
    return Splits.from_arrays(**{**parts, "classes": 2, "vocabulary": vocabulary, **changes})  # type: ignore[arg-type]


def test_words_are_replaced_as_the_augmentation_says() -> None:
    splits, generator = make_text_splits(), torch.Generator().manual_seed(0)
    raw = splits.unlabeled.x
    assert isinstance(raw, torch.Tensor)
    changed, no_map = splits.make_view(TokenAugment(replace=0.9), raw, generator)
    assert no_map is None and (changed != raw).any()
    same, _ = splits.make_view(TokenAugment(), raw, generator)
    assert torch.equal(same, raw)


def test_the_first_version_of_a_text_is_the_networks_input() -> None:
    splits = make_text_splits()
    versions = torch.arange(12, dtype=torch.int32).reshape(2, 2, 3)
    assert splits.to_inputs(versions).tolist() == [[0, 1, 2], [6, 7, 8]]
    assert splits.to_inputs(versions).dtype == torch.int64
    assert splits.to_inputs(versions[:, 1]).tolist() == [[3, 4, 5], [9, 10, 11]]


def test_token_ids_end_below_the_size_of_the_vocabulary() -> None:
    ids = torch.full((4, 6), 7)
    assert len(make_text_splits(unlabeled=ids).unlabeled.x) == 4
    for changes in ({"unlabeled": ids + 1}, {"labeled": (ids + 1, [0, 1, 0, 1])}):
        with pytest.raises(InputError, match="must be below the vocabulary size 8"):
            make_text_splits(**changes)
    assert len(make_text_splits(unlabeled=ids[:0]).unlabeled.x) == 0


def test_labels_of_unlabelled_samples_are_unknown_and_the_hold_out_is_the_labelled_set() -> None:
    x, y = torch.ones(3, 2), torch.tensor([[0.5, 1.0]] * 3)
    splits = Splits.from_arrays(labeled=(x, y), unlabeled=torch.ones(5, 2), test=(x, y))
    assert splits.unlabeled.y.tolist() == [[-1.0, -1.0]] * 5
    assert splits.holdout is splits.labeled and len(splits.validation.x) == 0
    other = Samples(x[:1], y[:1])
    changed = splits.with_labels(other, validation=splits.test)
    assert changed.labeled is changed.holdout is other and changed.validation is splits.test


def test_images_without_classes_have_landmarks() -> None:
    pixels = torch.arange(48, dtype=torch.uint8).reshape(4, 3, 2, 2)
    samples = Samples(pixels, torch.zeros(4, 2))
    assert DataSet.from_images(samples, samples, classes=None).has_landmarks
    assert not DataSet.from_images(samples, samples, classes=3).has_landmarks


def test_changes_are_listed_by_split_and_kind() -> None:
    stored = {"labeled.inputs": "a", "labeled.labels": "b", "holdout.inputs": "a", "order": "o"}
    assert describe_changes(stored, dict(stored)) is None
    changed = stored | {"labeled.inputs": "x", "holdout.inputs": "x"}
    assert describe_changes(stored, changed) == "the inputs of the labelled samples"
    assert describe_changes(stored, stored | {"holdout.inputs": "x"}, "rows") == (
        "the inputs of the hold-out rows"
    )
    assert describe_changes(stored, stored | {"order": "p"}) == "the order"
    assert describe_changes(stored, {"labeled.inputs": "a", "order": "o"}) == (
        "the labels of the labelled samples, the inputs of the hold-out samples"
    )
    three = {f"test.{kind}": "x" for kind in ("inputs", "labels", "weights")}
    assert describe_changes({}, three) == "the inputs, labels and weights of the test samples"
