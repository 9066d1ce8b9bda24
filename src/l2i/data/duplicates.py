"""Samples that a run is measured on and has seen before: validation and test samples among those it learns from."""

from __future__ import annotations

import hashlib
from collections import Counter
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from l2i.data.samples import SPLIT_TITLES, Samples, Splits

if TYPE_CHECKING:
    from l2i.data.image_files import ImageFiles

MIN_DUPLICATE_RATE = 0.01  # share of a set's samples; published sets have a few duplicates
MIN_DUPLICATES = 3  # samples: one or two in a small set are chance
MIN_STANDARD_ERRORS = 3.0  # standard errors above what repeats within a set
MAX_FILES, MAX_BYTES = 50_000, 2**29  # image files, and what is read of them, above which they are not compared: it takes long


class SampleHashes(NamedTuple):
    """A set's samples by what they hold."""

    keys: list[bytes]
    labels: list[bytes]

    @property
    def repeat_rate(self) -> float:
        """The share of samples that the set has more than once."""
        counts = Counter(self.keys)
        return sum(count for count in counts.values() if count > 1) / max(1, len(self.keys))


def describe_duplicates(splits: Splits) -> list[str]:
    """A sentence for each pair of sets that share notably many samples, exactly the same; labels that leak come first.

    Rows of a table with few values repeat by chance. How many do so within either set is what is to be expected
    between the two, and only what goes beyond it is told.
    """
    hashes = hash_splits(splits)
    training_hashes = {"labeled": merge_hashes(hashes["labeled"], hashes["holdout"]), "unlabeled": hashes["unlabeled"]}
    sentences = [describe_overlap(name, hashes[name], "labeled", training_hashes["labeled"]) for name in ("validation", "test")]
    sentences += [describe_overlap(name, hashes[name], "unlabeled", training_hashes["unlabeled"]) for name in ("validation", "test")]
    sentences += [describe_overlap("test", hashes["test"], "validation", hashes["validation"])]
    return [sentence for sentence in sentences if sentence is not None]


def describe_overlap(name: str, hashes: SampleHashes, other_name: str, other_hashes: SampleHashes) -> str | None:
    """What the samples of set `name` have in common with those of set `other`."""
    other_keys, own_keys = set(other_hashes.keys), set(hashes.keys)
    shared = sum(key in other_keys for key in hashes.keys)
    shared_back = sum(key in own_keys for key in other_hashes.keys)
    expected_rate = max(hashes.repeat_rate, other_hashes.repeat_rate)
    if not (is_notable(shared, len(hashes.keys), expected_rate) or is_notable(shared_back, len(other_hashes.keys), expected_rate)):
        return None
    sentence = f"{shared:,} of {len(hashes.keys):,} {SPLIT_TITLES[name]} samples are also among the {SPLIT_TITLES[other_name]} ones"
    if other_name == "labeled":
        pairs = set(zip(other_hashes.keys, other_hashes.labels, strict=True))
        num_same_label = sum(pair in pairs for pair in zip(hashes.keys, hashes.labels, strict=True))
        return f"{sentence}, {num_same_label:,} with the same label: the {SPLIT_TITLES[name]} figure is too good; take them out of one"
    if other_name == "unlabeled":
        return f"{sentence}: the {SPLIT_TITLES[name]} figure is of samples seen in training; take them out for one of new samples"
    return f"{sentence}: what is chosen by the validation figure looks too good on them; take them out of one"


def is_notable(count: int, size: int, expected_rate: float) -> bool:
    """Whether `count` of `size` samples are more than repeat anyway."""
    threshold = expected_rate + MIN_STANDARD_ERRORS * sqrt(expected_rate * (1 - expected_rate) / max(1, size)) + MIN_DUPLICATE_RATE
    return count >= MIN_DUPLICATES and count >= threshold * size


def hash_splits(splits: Splits) -> dict[str, SampleHashes]:
    """All sets; image files by content, and not at all where there are too many, or one of them cannot be read."""
    sets: dict[str, Samples] = {name: getattr(splits, name) for name in SPLIT_TITLES}
    files = {name: s.x for name, s in sets.items() if not isinstance(s.x, Tensor)}
    try:
        file_hashes = hash_files(files)
    except OSError:  # it is named when its step comes
        file_hashes = None
    if file_hashes is None:
        return {name: SampleHashes([], []) for name in SPLIT_TITLES}
    return {
        name: SampleHashes(file_hashes[name] if name in files else hash_rows(select_raw_inputs(splits, s)), hash_rows(s.y))
        for name, s in sets.items()
    }


def select_raw_inputs(splits: Splits, samples: Samples) -> Tensor:
    """Raw samples; of several versions of a text the first."""
    assert isinstance(samples.x, Tensor)
    return samples.x[:, 0] if splits.vocabulary is not None and samples.x.ndim == 3 else samples.x


def hash_rows(x: Tensor) -> list[bytes]:
    """A key for each row, of all its bytes."""
    rows = x.reshape(len(x), -1).numpy(force=True) if len(x) else ()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def hash_files(sets: dict[str, ImageFiles]) -> dict[str, list[bytes]] | None:
    """A key for each file: its size, with a checksum where another file has the same; None where that is too much."""
    if sum(map(len, sets.values())) > MAX_FILES:
        return None
    paths = {name: [Path(files.paths[row]) for row in files.rows.tolist()] for name, files in sets.items()}
    sizes = {path: path.stat().st_size for path in {path for set_paths in paths.values() for path in set_paths}}
    counts = Counter(sizes.values())
    if sum(size for size in sizes.values() if counts[size] > 1) > MAX_BYTES:
        return None
    checksums = {path: hashlib.blake2b(path.read_bytes()).digest() for path, size in sizes.items() if counts[size] > 1}
    keys = {path: str(size).encode() + checksums.get(path, b"") for path, size in sizes.items()}
    return {name: [keys[path] for path in set_paths] for name, set_paths in paths.items()}


def merge_hashes(first: SampleHashes, second: SampleHashes) -> SampleHashes:
    """Both, the samples of the second that the first has not."""
    first_keys = set(first.keys)
    new_rows = [i for i, key in enumerate(second.keys) if key not in first_keys]
    return SampleHashes(first.keys + [second.keys[i] for i in new_rows], first.labels + [second.labels[i] for i in new_rows])
