"""Duplicates between the sets of a run: validation and test samples among those it learns from."""

from __future__ import annotations

import hashlib
from collections import Counter
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from l2i.data.samples import SPLIT_TITLES, Samples, Splits

if TYPE_CHECKING:
    from l2i.files.images import ImageFiles

MIN_DUPLICATE_RATE = 0.01  # of a set's samples; published sets have a few duplicates
MIN_DUPLICATES = 3  # one or two in a small set are chance
MIN_STANDARD_ERRORS = 3.0  # above the rate of repeats within a set
MAX_FILES, MAX_BYTES = 50_000, 2**29  # image files, and bytes of them, that may be compared in time
COMPARED_SETS = (  # labels that leak come first
    ("validation", "labeled"),
    ("test", "labeled"),
    ("validation", "unlabeled"),
    ("test", "unlabeled"),
    ("test", "validation"),
)
Hashes = list[tuple[bytes, bytes]]  # of inputs and labels


def describe_duplicates(splits: Splits) -> list[str]:
    """Describe, in one sentence each, the pairs of sets that share notably many equal samples.

    Rows of a table with few values repeat by chance. The rate of repeats within either set is what
    to expect between the two, and only what exceeds it is reported.
    """
    hashes = _hash_splits(splits)
    labeled_keys = {x for x, _ in hashes["labeled"]}
    hashes["labeled"] += [(x, y) for x, y in hashes["holdout"] if x not in labeled_keys]
    sentences = (_describe_overlap(hashes, *names) for names in COMPARED_SETS)
    return [sentence for sentence in sentences if sentence is not None]


def _describe_overlap(sets: dict[str, Hashes], name: str, other_name: str) -> str | None:
    hashes, other = sets[name], sets[other_name]
    keys, other_keys = {x for x, _ in hashes}, {x for x, _ in other}
    shared = sum(x in other_keys for x, _ in hashes)
    shared_back = sum(x in keys for x, _ in other)
    expected_rate = max(_compute_repeat_rate(hashes), _compute_repeat_rate(other))
    pairs = ((shared, len(hashes)), (shared_back, len(other)))
    if not any(_is_notable(count, size, expected_rate) for count, size in pairs):
        return None
    title, other_title = SPLIT_TITLES[name], SPLIT_TITLES[other_name]
    num_same_label = sum(map(set(other).__contains__, hashes))
    consequence = {
        "labeled": f", {num_same_label:,} with the same label: the {title} metric is optimistic; "
        "remove them from one of the sets",
        "unlabeled": f": the {title} metric includes samples seen in training; "
        "remove them to measure on new samples only",
        "validation": ": selection by the validation metric makes the test metric optimistic; "
        "remove them from one of the sets",
    }[other_name]
    samples = f"{shared:,} of {len(hashes):,} {title} samples"
    return f"{samples} are also {other_title} samples{consequence}"


def _compute_repeat_rate(hashes: Hashes) -> float:
    counts = Counter(x for x, _ in hashes)
    return sum(count for count in counts.values() if count > 1) / max(1, len(hashes))


def _is_notable(count: int, size: int, expected_rate: float) -> bool:
    standard_error = sqrt(expected_rate * (1 - expected_rate) / max(1, size))
    threshold = expected_rate + MIN_STANDARD_ERRORS * standard_error + MIN_DUPLICATE_RATE
    return count >= MIN_DUPLICATES and count >= threshold * size


def _hash_splits(splits: Splits) -> dict[str, Hashes]:
    """Hash all sets, or none if there are too many image files, or one cannot be read."""
    sets: dict[str, Samples] = {name: getattr(splits, name) for name in SPLIT_TITLES}
    files = {name: s.x for name, s in sets.items() if not isinstance(s.x, Tensor)}
    try:
        keys = _hash_files(files)
    except OSError:  # training reports it when it needs the file
        keys = None
    if keys is None:
        return {name: [] for name in SPLIT_TITLES}
    for name, samples in sets.items():
        if isinstance(x := samples.x, Tensor):
            is_versions = splits.vocabulary is not None and x.ndim == 3
            keys[name] = _hash_rows(x[:, 0] if is_versions else x)
    labels = {name: _hash_rows(samples.y) for name, samples in sets.items()}
    return {name: list(zip(keys[name], labels[name], strict=True)) for name in sets}


def _hash_rows(x: Tensor) -> list[bytes]:
    rows = x.reshape(len(x), -1).numpy(force=True) if len(x) else ()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def _hash_files(sets: dict[str, ImageFiles]) -> dict[str, list[bytes]] | None:
    """Key files by size, with a checksum if several have one size; None if that takes too long."""
    if sum(map(len, sets.values())) > MAX_FILES:
        return None
    paths = {name: [Path(x.paths[row]) for row in x.rows.tolist()] for name, x in sets.items()}
    sizes = {path: path.stat().st_size for path in {p for group in paths.values() for p in group}}
    counts = Counter(sizes.values())
    ambiguous = [path for path, size in sizes.items() if counts[size] > 1]
    if sum(sizes[path] for path in ambiguous) > MAX_BYTES:
        return None
    keys = {path: str(size).encode() for path, size in sizes.items()}
    for path in ambiguous:
        keys[path] += hashlib.blake2b(path.read_bytes()).digest()
    return {name: [keys[path] for path in group] for name, group in paths.items()}
