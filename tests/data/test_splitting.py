from dataclasses import replace

import pytest
import torch

from l2i.data.datasets.builtin import load_sklearn_digits
from l2i.data.samples import DataSet, Samples, Splits, describe_changes
from l2i.data.splitting import draw_splits, split_holdout
from l2i.data.transforms.image import Normalize
from l2i.errors import InputError
from l2i.quantity import resolve_count

VALIDATION_ROWS = [44, 19, 93, 90, 71, 69, 37, 95, 53, 91]
LABELED_ROWS = [80, 56, 76, 40, 92, 81, 85, 57, 89, 41, 42, 74, 82, 26, 10, 63, 31, 35, 7, 23]
OTHER_VALIDATION_ROWS = [86, 42, 89, 92, 3, 20, 22, 48, 25, 93]
TEST_ROWS = [0, 5, 7, 8, 9]
HALF_OF_THE_TEST_ROWS = [0, 4, 5, 7, 8, 9]


def numbered(classes: int = 4, each: int = 25) -> Samples:
    """Samples that carry their own number, so that a set is known by its rows."""
    count = classes * each
    return Samples(torch.arange(count).float().unsqueeze(1), torch.arange(count) % classes)


def drawn(samples: Samples | None = None, **changes: object) -> Splits:
    settings: dict[str, object] = {
        "num_labeled": 20,
        "num_validation": 10,
        "holdout": "joint",
        "seed": 0,
    }
    data = DataSet(
        train=samples if samples is not None else numbered(),
        test=numbered(each=3),
        classes=changes.pop("classes", 4),  # type: ignore[arg-type]
    )
    return draw_splits(data, **{**settings, **changes})  # type: ignore[arg-type]


def rows(samples: Samples) -> set[int]:
    return {int(value) for value in samples.x[:, 0]}


def test_sets_are_disjoint_and_cover_the_training_samples() -> None:
    s = drawn()
    sets = [rows(s.labeled), rows(s.unlabeled), rows(s.validation)]
    assert [len(r) for r in sets] == [20, 70, 10]
    assert set.union(*sets) == set(range(100))


def test_every_class_gets_as_many_labels() -> None:
    assert torch.bincount(drawn().labeled.y).tolist() == [5, 5, 5, 5]


def test_joint_holdout_is_the_labelled_set() -> None:
    s = drawn()
    assert rows(s.holdout) == rows(s.labeled)


def test_separate_holdout_takes_two_fifths_of_each_class() -> None:
    s, joint = drawn(holdout="separate"), drawn()
    assert torch.bincount(s.labeled.y).tolist() == [3, 3, 3, 3]
    assert torch.bincount(s.holdout.y).tolist() == [2, 2, 2, 2]
    assert rows(s.labeled) | rows(s.holdout) == rows(joint.labeled)
    assert rows(s.unlabeled) == rows(joint.unlabeled)


def test_the_seed_decides() -> None:
    assert rows(drawn().labeled) == rows(drawn().labeled)
    assert rows(drawn().labeled) != rows(drawn(seed=1).labeled)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_labeled": 22}, "num_labeled=22 is not a positive multiple of the 4 classes; use 20"),
        ({"num_labeled": 2}, "use 4"),
        ({"num_labeled": 400}, "use at most"),
        ({"holdout": "separate", "num_labeled": 4}, "at least 2 labels per class"),
        ({"num_validation": 100}, "num_validation=100 must"),
        ({"classes": 3, "num_labeled": 21}, "integers from 0 to 2"),
        (
            {"samples": Samples(torch.zeros(9, 1), torch.ones(9).long()), "num_validation": 0},
            "one class",
        ),
    ],
)
def test_wrong_numbers_say_what_to_do(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(**changes)


def test_regression_labels_are_drawn_without_classes() -> None:
    samples = Samples(torch.arange(50).float().unsqueeze(1), torch.randn(50, 3))
    s = drawn(samples, classes=None, num_labeled=7)
    assert len(s.labeled.y) == 7
    assert len(s.unlabeled.y) == 33


def test_digits_keep_their_test_set_whatever_the_seed() -> None:
    first, other = (
        draw_splits(
            load_sklearn_digits(None),
            num_labeled=40,
            num_validation=100,
            holdout="joint",
            seed=seed,
        )
        for seed in (0, 1)
    )
    assert torch.equal(first.test.x, other.test.x)
    assert [len(s.x) for s in (first.labeled, first.unlabeled, first.validation, first.test)] == [
        40,
        1060,
        100,
        597,
    ]
    assert first.labeled.x.shape[1:] == (1, 8, 8)
    assert 0 <= float(first.test.x.min()) < float(first.test.x.max()) == 1.0


def test_labels_may_be_a_share_of_each_class() -> None:
    y = torch.tensor([0] * 40 + [1] * 20 + [2] * 10 + [3] * 2)
    s = drawn(Samples(torch.arange(72.0).unsqueeze(1), y), num_labeled=0.1, num_validation=0)
    assert torch.bincount(s.labeled.y).tolist() == [4, 2, 1, 1]  # at least one of each
    assert len(s.unlabeled.x) == 64


def test_all_may_be_labelled() -> None:
    s = drawn(num_labeled=1.0)
    assert (len(s.labeled.x), len(s.unlabeled.x)) == (90, 0)


def test_validation_may_be_a_share_of_the_training_samples() -> None:
    assert len(drawn(num_validation=0.25).validation.x) == 25


def test_a_description_counts_samples_and_classes() -> None:
    s = drawn(num_validation=0)
    assert s.describe(exclude=("holdout",)) == (
        "20 labelled (5 per class), 80 unlabelled (20 per class), 0 validation, "
        "12 test (3 per class)"
    )
    uneven = drawn(
        Samples(
            torch.arange(72.0).unsqueeze(1), torch.tensor([0] * 40 + [1] * 20 + [2] * 10 + [3] * 2)
        ),
        num_labeled=0.1,
        num_validation=0,
    )
    assert "8 labelled (1 to 4 per class)" in uneven.describe()


def make_splits(**changes: object) -> Splits:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(10, 3, generator=draw), torch.arange(10) % 2
    parts = {"labeled": (x, y), "unlabeled": x + 1, "validation": (x + 2, y), "test": (x + 3, y)}
    return Splits.from_arrays(**{**parts, "classes": 2, **changes})  # type: ignore[arg-type]


def test_a_fingerprint_is_that_of_the_content() -> None:
    assert make_splits().fingerprint() == make_splits().fingerprint()
    assert describe_changes(make_splits().fingerprint(), make_splits().fingerprint()) is None


def test_a_fingerprint_covers_every_part_and_its_order() -> None:
    """Each of these was unseen while only the labels and the labelled inputs counted."""
    plain, y = make_splits(), torch.arange(10) % 2
    x = plain.labeled.x
    assert isinstance(x, torch.Tensor)
    one_less = x + 3
    one_less[-1, -1] += 1e-6
    changes = {
        "the inputs of the labelled samples": {"labeled": (x.flip(0), y)},
        "the labels of the labelled samples": {"labeled": (x, 1 - y)},
        "the inputs of the unlabelled samples": {"unlabeled": (x + 1).flip(0)},
        "the inputs of the validation samples": {"validation": (x + 2.5, y)},
        "the labels of the validation samples": {"validation": (x + 2, 1 - y)},
        "the inputs of the test samples": {"test": (one_less, y)},
        "the inputs and labels of the test samples": {"test": (x[:9], y[:9])},
        "the preprocessing": {"normalization": Normalize(torch.ones(1), torch.ones(1))},
    }
    before = plain.fingerprint()
    for wanted, change in changes.items():
        assert describe_changes(before, make_splits(**change).fingerprint()) == wanted
    weighted = plain.labeled._replace(weight=torch.arange(10.0))
    other = replace(plain, labeled=weighted).fingerprint()
    assert describe_changes(before, other) == "the weights of the labelled samples"
    other = replace(plain, holdout=plain.labeled.take(torch.arange(4))).fingerprint()
    assert describe_changes(before, other) == "the inputs and labels of the hold-out samples"


def test_a_fingerprint_does_not_confuse_types_and_shapes() -> None:
    x = torch.zeros(10, 4, dtype=torch.uint8)
    digests = {
        make_splits(unlabeled=values).fingerprint()["unlabeled.inputs"]
        for values in (x, x.to(torch.int8), x.reshape(5, 8), x.reshape(10, 2, 2))
    }
    assert len(digests) == 4


def test_shares_are_rounded_and_never_nothing() -> None:
    wanted = {
        (0.05, 1_281_167): 64_058,
        (0.1, 15): 2,
        (0.29, 100): 29,
        (0.001, 10): 1,
        (0.0, 10): 0,
        (7, 3): 7,
    }
    assert {case: resolve_count(*case) for case in wanted} == wanted


def listed(samples: Samples) -> list[int]:
    return [int(value) for value in samples.x[:, 0]]


def test_these_rows_are_drawn_by_these_seeds() -> None:
    """Another draw would make runs of a version incomparable with those of the one before."""
    s = drawn()
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0)).tolist()
    assert listed(s.validation) == order[:10] == VALIDATION_ROWS
    by_class = [[row for row in order[10:] if row % 4 == c] for c in range(4)]
    assert listed(s.labeled) == [row for group in by_class for row in group[:5]] == LABELED_ROWS
    assert listed(s.unlabeled) == [row for group in by_class for row in group[5:]]
    assert listed(drawn(seed=3).validation) == OTHER_VALIDATION_ROWS


def test_a_subset_of_the_test_samples_is_the_same_for_every_seed_and_in_order() -> None:
    for seed in (0, 1, 2):
        assert listed(drawn(num_test=5, seed=seed).test) == TEST_ROWS
    assert listed(drawn(num_test=0.5).test) == HALF_OF_THE_TEST_ROWS
    assert listed(drawn(num_test=1.0).test) == listed(drawn(num_test=12).test) == [*range(12)]


@pytest.mark.parametrize("count", [0, 13])
def test_a_number_of_test_samples_that_there_is_not_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"num_test={count} must be from 1 to 12"):
        drawn(num_test=count)


def test_one_test_sample_is_not_all_of_them() -> None:
    assert len(drawn(num_test=1).test.y) == 1


def test_additional_unlabelled_samples_come_after_those_left_over() -> None:
    more = Samples(torch.full((3, 1), 1000.0), torch.full((3,), -1))
    data = DataSet(train=numbered(), test=numbered(each=3), unlabeled=more, classes=4)
    s = draw_splits(data, num_labeled=20, num_validation=10, holdout="joint", seed=0)
    assert listed(s.unlabeled) == listed(drawn().unlabeled) + [1000] * 3
    assert s.unlabeled.y[-3:].tolist() == [-1] * 3


@pytest.mark.parametrize(("each", "trained"), [(2, 1), (3, 2), (5, 3), (10, 6)])
def test_a_separate_holdout_leaves_the_first_three_fifths(each: int, trained: int) -> None:
    groups = [torch.arange(each), torch.arange(100, 100 + each)]
    train, holdout = split_holdout(groups)
    assert [g.tolist() for g in train] == [g[:trained].tolist() for g in groups]
    assert [g.tolist() for g in holdout] == [g[trained:].tolist() for g in groups]


def test_all_but_one_training_sample_may_be_validation_samples() -> None:
    samples = Samples(torch.arange(10.0).unsqueeze(1), torch.randn(10, 1))
    s = drawn(samples, classes=None, num_labeled=1, num_validation=9)
    assert (len(s.labeled.y), len(s.unlabeled.y), len(s.validation.y)) == (1, 0, 9)
    with pytest.raises(InputError, match="num_validation=10 must"):
        drawn(samples, classes=None, num_labeled=1, num_validation=10)


def test_as_many_labels_as_the_smallest_class_has_may_be_asked_for() -> None:
    y = torch.tensor([0] * 6 + [1] * 3)
    samples = Samples(torch.arange(9.0).unsqueeze(1), y)
    data = DataSet(train=samples, test=samples, classes=2)
    settings = {"num_validation": 0, "holdout": "joint", "seed": 0}
    s = draw_splits(data, num_labeled=6, **settings)
    assert torch.bincount(s.labeled.y).tolist() == [3, 3]
    with pytest.raises(InputError, match="has only 3 training samples; use at most 6"):
        draw_splits(data, num_labeled=8, **settings)


def test_a_share_of_nothing_is_one_label_of_each_class() -> None:
    assert torch.bincount(drawn(num_labeled=0.0).labeled.y).tolist() == [1, 1, 1, 1]


def test_too_many_labels_are_told_by_class_or_for_the_whole_set() -> None:
    with pytest.raises(InputError, match="needs 30 labels per class, but one class has only"):
        drawn(num_labeled=120)
    samples = Samples(torch.arange(50).float().unsqueeze(1), torch.randn(50, 3))
    message = "num_labeled=41 is too many: the set has only 40 training samples; use at most 40"
    with pytest.raises(InputError, match=message):
        drawn(samples, classes=None, num_labeled=41)
    assert len(drawn(samples, classes=None, num_labeled=40).labeled.y) == 40
