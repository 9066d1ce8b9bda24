"""Parts of a batch, and samples as they are given: what is taken, kept and refused."""

import dataclasses

import pytest
import torch

from l2i.data.batch import AffineMap, Batch, Labeled, MixupDraws, Unlabeled, collect_tensors
from l2i.data.samples import DataSet, Samples, Splits, make_samples
from l2i.data.transforms.image import Augment, ColumnLayout, Normalize
from l2i.data.transforms.text import build_vocabulary
from l2i.errors import InputError


def test_the_first_samples_are_taken_of_all_that_belongs_to_them() -> None:
    weak, strong, noise = (torch.randn(6, 3) for _ in range(3))
    frame = AffineMap(torch.rand(6, 2), torch.rand(6, 2))
    few = Unlabeled({"weak": weak, "strong": strong}, frame, noise).take_first(4)
    assert torch.equal(few.weak, weak[:4]) and torch.equal(few.strong, strong[:4])
    assert few.affine_map is not None and few.noise is not None
    assert torch.equal(few.affine_map.scale, frame.scale[:4])
    assert torch.equal(few.affine_map.offset, frame.offset[:4])
    assert torch.equal(few.noise, noise[:4])
    plain = Unlabeled({"weak": weak}).take_first(2)
    assert plain.affine_map is None and plain.noise is None


def test_views_have_their_names() -> None:
    views = {name: torch.full((1,), float(i)) for i, name in enumerate(("weak", "weak2", "strong"))}
    unlabeled = Unlabeled(views)
    assert [float(v) for v in (unlabeled.weak, unlabeled.weak2, unlabeled.strong)] == [0, 1, 2]
    with pytest.raises(KeyError):
        _ = Unlabeled({}).strong


def test_all_tensors_of_a_batch_are_found() -> None:
    tensors = [torch.zeros(i + 1) for i in range(6)]
    batch = Batch(Labeled(*tensors[:2]), Unlabeled({"weak": tensors[2]}), MixupDraws(*tensors[3:5]))
    batch = batch._replace(progress=tensors[5])
    assert [len(t) for t in collect_tensors(batch)] == [1, 2, 3, 4, 5, 6]


def test_a_mirrored_point_of_the_first_column_is_in_the_last() -> None:
    frame = AffineMap.from_flip(torch.tensor([True, False]), torch.zeros(2, 1, 4, 9))
    points = torch.tensor([[0.0, 3.0, 8.0, 1.0]] * 2)
    assert frame.apply(points).tolist() == [[8.0, 3.0, 0.0, 1.0], [0.0, 3.0, 8.0, 1.0]]


@pytest.mark.parametrize("classes", [3, None])
def test_unlabelled_samples_of_ones_own_have_no_truth(classes: int | None) -> None:
    x = torch.rand(5, 2)
    y = torch.arange(5) % 3 if classes else torch.rand(5, 2)
    splits = Splits.from_arrays(labeled=(x, y), unlabeled=x[:4], test=(x, y), classes=classes)
    assert splits.unlabeled.y.shape == (4, *y.shape[1:])
    assert bool((splits.unlabeled.y == -1).all())
    assert splits.holdout is splits.labeled and len(splits.validation.x) == 0


@pytest.mark.parametrize("label", [-1, 3])
def test_a_class_that_there_is_not_is_refused(label: int) -> None:
    make_samples(torch.rand(3, 1), torch.tensor([0, 1, 2]), 3)
    with pytest.raises(InputError, match="must be integers from 0 to 2"):
        make_samples(torch.rand(3, 1), torch.tensor([0, 1, label]), 3)


def test_labels_of_another_number_than_the_samples_are_refused() -> None:
    with pytest.raises(InputError, match="3 samples and 2 labels do not match"):
        make_samples(torch.rand(3, 1), torch.tensor([0, 1]), 3)
    assert make_samples([[1.0]], [[2]], None).y.dtype == torch.float32
    assert make_samples([[1.0]], [2.0], 3).y.dtype == torch.int64


def test_samples_are_taken_with_their_labels_and_weights() -> None:
    samples = Samples(torch.arange(4.0).unsqueeze(1), torch.arange(4), torch.arange(4.0))
    few = samples.take(torch.tensor([3, 1]))
    assert few.x.flatten().tolist() == [3.0, 1.0] == few.y.tolist() == few.weight.tolist()
    assert Samples(samples.x, samples.y).take(torch.tensor([2])).weight is None


def test_moving_splits_changes_the_type_of_numbers_and_of_nothing_else() -> None:
    x, y = torch.rand(6, 3), torch.arange(6) % 2
    columns = ColumnLayout(torch.tensor([0, 1, 1]), torch.tensor([True, False, False]), 2)
    plain = Splits.from_arrays(
        labeled=(x, y), unlabeled=x, test=(x, y), classes=2, columns=columns
    ).to(torch.device("cpu"), torch.float64)
    assert plain.labeled.x.dtype == plain.test.x.dtype == torch.float64
    assert plain.labeled.y.dtype == torch.int64
    assert plain.columns is not None and plain.columns.num_columns == 2
    assert torch.equal(plain.columns.is_numeric, columns.is_numeric)
    images = torch.randint(256, (6, 1, 4, 4), dtype=torch.uint8)
    eight_bit = Splits.from_arrays(
        labeled=(images, y),
        unlabeled=images,
        test=(images, y),
        classes=2,
        normalization=Normalize.from_images(images),
    ).to(torch.device("cpu"), torch.float64)
    assert eight_bit.labeled.x.dtype == torch.uint8 and eight_bit.has_integer_inputs
    assert eight_bit.normalization is not None
    assert eight_bit.normalization.mean.dtype == torch.float64


def test_other_labels_serve_as_hold_out_too() -> None:
    x, y = torch.rand(6, 3), torch.arange(6) % 2
    splits = Splits.from_arrays(labeled=(x, y), unlabeled=x, test=(x, y), classes=2)
    other, validation = Samples(x[:2], y[:2]), Samples(x[2:3], y[2:3])
    changed = splits.with_labels(other, validation=validation)
    assert changed.labeled is changed.holdout is other and changed.validation is validation
    assert changed.unlabeled is splits.unlabeled and changed.test is splits.test


def test_images_without_classes_have_landmarks() -> None:
    x = torch.randint(256, (5, 1, 4, 4), dtype=torch.uint8)
    points, classes = Samples(x, torch.rand(5, 4)), Samples(x, torch.arange(5) % 2)
    other = Samples(x[:2], torch.rand(2, 4))
    faces = DataSet.from_images(points, other, classes=None, eye_indices=(0, 1))
    assert faces.train is points and faces.test is other and faces.has_landmarks
    assert faces.eye_indices == (0, 1) and faces.classes is None
    plain = DataSet.from_images(classes, classes, classes=2)
    assert not plain.has_landmarks and plain.classes == 2 and plain.eye_indices is None
    assert plain.normalization is not None
    wanted = Normalize.from_images(x)
    assert torch.equal(plain.normalization.mean, wanted.mean)


def test_inputs_are_raw_samples_standardised_or_the_first_version_of_a_text() -> None:
    x, y = torch.rand(4, 3), torch.arange(4) % 2
    plain = Splits.from_arrays(labeled=(x, y), unlabeled=x, test=(x, y), classes=2)
    assert plain.to_inputs(x) is x and not plain.has_integer_inputs and not plain.has_landmarks
    ids = torch.arange(24, dtype=torch.int32).view(4, 2, 3) % 10
    special = torch.arange(10) < 2
    vocabulary = build_vocabulary(
        ids[:, 0], pad_id=0, is_special=special, is_continuation=torch.zeros(10, dtype=torch.bool)
    )
    texts = dataclasses.replace(plain, vocabulary=vocabulary)
    assert torch.equal(texts.to_inputs(ids), ids[:, 0].long())
    assert torch.equal(texts.to_inputs(ids[:, 1]), ids[:, 1].long()) and texts.has_integer_inputs


def test_a_token_that_the_vocabulary_does_not_have_is_refused() -> None:
    ids, y = torch.tensor([[5, 9], [6, 7]]), torch.tensor([0, 1])
    vocabulary = build_vocabulary(
        ids,
        pad_id=0,
        is_special=torch.arange(10) < 2,
        is_continuation=torch.zeros(10, dtype=torch.bool),
    )
    parts = {"labeled": (ids, y), "test": (ids, y), "classes": 2, "vocabulary": vocabulary}
    Splits.from_arrays(unlabeled=ids, **parts)
    with pytest.raises(InputError, match="token ids must be below the vocabulary size 10"):
        Splits.from_arrays(unlabeled=ids + 1, **parts)


def test_a_description_leaves_out_what_is_excluded_and_classes_that_are_not_known() -> None:
    x, y = torch.rand(6, 2), torch.arange(6) % 2
    splits = Splits.from_arrays(labeled=(x, y), unlabeled=x[:3], test=(x[:3], y[:3]), classes=2)
    assert splits.describe(exclude=("validation",)) == (
        "6 labelled (3 per class), 3 unlabelled, 6 hold-out (3 per class), "
        "3 test (1 to 2 per class)"
    )


def test_a_view_comes_with_a_map_of_its_points_for_landmarks_alone() -> None:
    x, y = torch.rand(4, 1, 6, 6), torch.rand(4, 2)
    for has_landmarks in (True, False):
        splits = Splits.from_arrays(
            labeled=(x, y), unlabeled=x, test=(x, y), has_landmarks=has_landmarks
        )
        view, frame = splits.make_view(Augment(shift=1), x, torch.Generator().manual_seed(0))
        assert view.shape == x.shape and (frame is not None) == has_landmarks
