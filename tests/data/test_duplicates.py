"""Samples that a run is measured on and has seen before."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from image_folders import write_class_folders
from l2i import Splits, recipes, replace
from l2i.data import duplicates
from l2i.data.duplicates import describe_duplicates
from l2i.data.transforms.text import build_vocabulary
from l2i.training.setup import load_splits


def rows(count: int, seed: int = 0, values: int | None = None) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = (
        generator.normal(size=(count, 4))
        if values is None
        else generator.integers(values, size=(count, 4))
    )
    return x.astype("float32"), generator.integers(3, size=count)


def splits(values: int | None = None, **changes: Any) -> Splits:
    x, y = rows(2000, values=values)
    parts: dict[str, Any] = {
        "labeled": (x[:60], y[:60]),
        "unlabeled": x[60:1000],
        "validation": (x[1000:1500], y[1000:1500]),
        "test": (x[1500:], y[1500:]),
    }
    return Splits.from_arrays(**{**parts, **changes}, classes=3)


def with_rows(part: tuple[Any, Any], more: tuple[Any, Any]) -> tuple[Any, Any]:
    return np.concatenate([part[0], more[0]]), np.concatenate([part[1], more[1]])


def of(given: Splits, name: str, count: int) -> tuple[Any, Any]:
    samples = getattr(given, name)
    return samples.x[:count].numpy(), samples.y[:count].numpy()


@pytest.mark.parametrize("values", [None, 2, 4, 8, 30])
def test_sets_apart_do_not_leak_however_few_values_there_are(values: int | None) -> None:
    assert describe_duplicates(splits(values)) == []


def test_validation_samples_among_the_labelled_are_counted() -> None:
    clean = splits()
    x, y = of(clean, "validation", 12)
    wrong = np.concatenate([y[:10], (y[10:] + 1) % 3])
    (actual,) = describe_duplicates(splits(labeled=with_rows(of(clean, "labeled", 60), (x, wrong))))
    assert actual.startswith(
        "12 of 500 validation samples are also labelled samples, 10 with the same label"
    )


@pytest.mark.parametrize("name", ["validation", "test"])
def test_samples_seen_without_their_labels_are_told_apart(name: str) -> None:
    clean = splits()
    more = np.concatenate([of(clean, "unlabeled", 900)[0], of(clean, name, 500)[0]])
    (actual,) = describe_duplicates(splits(unlabeled=more))
    assert actual.startswith(f"500 of 500 {name} samples are also unlabelled samples: ")


def test_labels_taken_from_a_large_test_set_are_found() -> None:
    """20 of 3,000 test samples are few, but they are all that is learned from."""
    large = rows(3000, seed=1)
    actual = describe_duplicates(splits(labeled=(large[0][:20], large[1][:20]), test=large))
    assert [sentence.split(":")[0] for sentence in actual] == [
        "20 of 3,000 test samples are also labelled samples, 20 with the same label"
    ]


def test_validation_samples_among_the_test_samples_are_found() -> None:
    actual = describe_duplicates(splits(validation=of(splits(), "test", 100)))
    assert len(actual) == 1 and actual[0].startswith(
        "100 of 500 test samples are also validation samples"
    )


def test_unlabelled_samples_may_hold_the_labelled() -> None:
    clean = splits()
    assert (
        describe_duplicates(splits(unlabeled=torch.cat([clean.labeled.x, clean.unlabeled.x]))) == []
    )


def test_a_few_duplicates_are_not_told() -> None:
    clean = splits()
    assert (
        describe_duplicates(
            splits(labeled=with_rows(of(clean, "labeled", 60), of(clean, "test", 2)))
        )
        == []
    )
    assert (
        describe_duplicates(
            splits(unlabeled=np.concatenate([clean.unlabeled.x, of(clean, "test", 4)[0]]))
        )
        == []
    )


def test_copies_are_found_though_rows_repeat_by_chance() -> None:
    clean = splits(values=8)
    copied = np.concatenate([of(clean, "unlabeled", 900)[0], of(clean, "validation", 500)[0]])
    (actual,) = describe_duplicates(splits(values=8, unlabeled=copied))
    assert actual.startswith("500 of 500 validation samples")


def test_the_embedded_digits_do_not_leak() -> None:
    assert describe_duplicates(load_splits(recipes.get("digits"))) == []


def test_a_text_is_its_first_version() -> None:
    """Texts in training come with back-translations, those of the test set without."""
    versions, special = torch.randint(5, 100, (90, 3, 8), dtype=torch.int32), torch.arange(100) < 5
    tokens = build_vocabulary(
        versions[:, 0],
        pad_id=0,
        is_special=special,
        is_continuation=torch.zeros(100, dtype=torch.bool),
    )
    parts = {
        "labeled": (versions[:20], torch.arange(20) % 2),
        "unlabeled": versions[20:60],
        "vocabulary": tokens,
    }
    ends = torch.zeros(30, dtype=torch.int64)
    assert (
        describe_duplicates(Splits.from_arrays(**parts, test=(versions[60:, 0], ends), classes=2))
        == []
    )
    assert (
        describe_duplicates(Splits.from_arrays(**parts, test=(versions[20:50, 1], ends), classes=2))
        == []
    )
    (actual,) = describe_duplicates(
        Splits.from_arrays(**parts, test=(versions[20:50, 0], ends), classes=2)
    )
    assert actual.startswith("30 of 30 test samples are also unlabelled samples")


def images(root: Path) -> Splits:
    run = replace(recipes.get("imagenet/fixmatch"), data={"root": str(root), "num_labeled": 6})
    return load_splits(run)


def test_image_files_are_compared_by_content(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "images", classes=2, per_class=8)
    assert describe_duplicates(images(root)) == []
    for place in sorted((root / "val").glob("*/*")):
        target = root / "train" / place.parent.name / f"copy-{place.name}"
        shutil.copyfile(place, target)
    actual = describe_duplicates(images(root))
    assert actual and all("of 8 test samples are also " in sentence for sentence in actual)
    assert sum(int(sentence.split()[0]) for sentence in actual) >= 6


def test_a_file_that_cannot_be_read_is_left_to_its_step(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "images", classes=2, per_class=8)
    given = images(root)
    next((root / "train").glob("*/*")).unlink()
    assert describe_duplicates(given) == []


def test_files_of_one_size_are_told_apart_by_their_content(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "images", classes=2, per_class=8)
    files = sorted(root.glob("*/*/*"))
    for number, path in enumerate(files):  # nothing decodes them here
        path.write_bytes(number.to_bytes(8, "little"))
    assert describe_duplicates(images(root)) == []
    for path in files:
        path.write_bytes(bytes(8))
    assert describe_duplicates(images(root)) == []  # all alike within each set, too
    train = [path for path in files if "train" in path.parts]
    held = [path for path in files if "val" in path.parts]
    for number, path in enumerate((*train, *held)):
        path.write_bytes((number % len(train)).to_bytes(8, "little"))
    assert describe_duplicates(images(root))


@pytest.mark.parametrize(("count", "told"), [(4, False), (5, True)])
def test_one_in_a_hundred_is_told(count: int, told: bool) -> None:
    """Of 500 test samples that is 5."""
    clean = splits()
    more = np.concatenate([clean.unlabeled.x, of(clean, "test", count)[0]])
    actual = describe_duplicates(splits(unlabeled=more))
    assert [sentence.split(":")[0] for sentence in actual] == (
        [f"{count} of 500 test samples are also unlabelled samples"] if told else []
    )


@pytest.mark.parametrize(("count", "told"), [(2, False), (3, True)])
def test_one_or_two_in_a_small_set_are_chance(count: int, told: bool) -> None:
    clean = splits()
    few = tuple(part[:20] for part in of(clean, "test", 500))
    labeled = with_rows(of(clean, "labeled", 60), tuple(part[:count] for part in few))
    assert bool(describe_duplicates(splits(labeled=labeled, test=few))) == told


def test_hold_out_samples_count_as_labelled_ones() -> None:
    clean = splits()
    held = clean.test.take(torch.arange(50))
    (actual,) = describe_duplicates(dataclasses.replace(clean, holdout=held))
    assert actual.startswith(
        "50 of 500 test samples are also labelled samples, 50 with the same label"
    )


@pytest.mark.parametrize(
    ("count", "size", "expected", "notable"),
    [
        (66, 100, 0.5, True),  # 0.5 + 3 · √(0.25 / 100) + 0.01
        (65, 100, 0.5, False),
        (3, 300, 0.0, True),
        (2, 100, 0.0, False),  # fewer than three
        (3, 301, 0.0, False),  # less than one in a hundred
        (0, 0, 0.0, False),
    ],
)
def test_what_is_notable_exceeds_repeats_by_three_standard_errors_and_one_in_a_hundred(
    count: int, size: int, expected: float, notable: bool
) -> None:
    assert duplicates._is_notable(count, size, expected) == notable


@pytest.mark.parametrize(("name", "fits", "exceeds"), [("FILES", 24, 23), ("BYTES", 192, 191)])
def test_too_many_files_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fits: int, exceeds: int
) -> None:
    """Of 24 files with 8 bytes each."""
    root = write_class_folders(tmp_path / "images", classes=2, per_class=8)
    files = sorted(root.glob("*/*/*"))
    assert len(files) == 24
    for number, path in enumerate(files):
        path.write_bytes((number % 8).to_bytes(8, "little"))
    given = dataclasses.replace(images(root), holdout=images(root).labeled.take(torch.arange(0)))
    monkeypatch.setattr(duplicates, f"MAX_{name}", fits)
    assert any(duplicates._hash_splits(given).values())
    monkeypatch.setattr(duplicates, f"MAX_{name}", exceeds)
    assert not any(duplicates._hash_splits(given).values())
