"""Samples that a run is measured on and has seen before: validation and test samples among those it learns from."""

from __future__ import annotations

import hashlib
from collections import Counter
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from l2i.data.split import SETS, Samples, Splits

if TYPE_CHECKING:
    from l2i.data.folders import Files

NOTABLE = 0.01  # share of a set's samples; published sets have a few duplicates
FEWEST = 3  # samples: one or two in a small set are chance
SURELY = 3.0  # standard errors above what repeats within a set
FILES, BYTES = 50_000, 2**29  # image files, and what is read of them, above which they are not compared: it takes long


class Known(NamedTuple):
    """A set's samples by what they hold."""

    keys: list[bytes]
    labels: list[bytes]

    @property
    def repeated(self) -> float:
        """The share of samples that the set has more than once."""
        counts = Counter(self.keys)
        return sum(count for count in counts.values() if count > 1) / max(1, len(self.keys))


def leaks(splits: Splits) -> list[str]:
    """A sentence for each pair of sets that share notably many samples, exactly the same; labels that leak come first.

    Rows of a table with few values repeat by chance. How many do so within either set is what is to be expected
    between the two, and only what goes beyond it is told.
    """
    sets = known(splits)
    learned = {"labeled": joined(sets["labeled"], sets["holdout"]), "unlabeled": sets["unlabeled"]}
    found = [told(name, sets[name], "labeled", learned["labeled"]) for name in ("validation", "test")]
    found += [told(name, sets[name], "unlabeled", learned["unlabeled"]) for name in ("validation", "test")]
    found += [told("test", sets["test"], "validation", sets["validation"])]
    return [sentence for sentence in found if sentence is not None]


def told(name: str, mine: Known, other: str, theirs: Known) -> str | None:
    """What the samples of set `name` have in common with those of set `other`."""
    there, here = set(theirs.keys), set(mine.keys)
    shared = sum(key in there for key in mine.keys)
    back = sum(key in here for key in theirs.keys)
    usual = max(mine.repeated, theirs.repeated)
    if not (notable(shared, len(mine.keys), usual) or notable(back, len(theirs.keys), usual)):
        return None
    words = f"{shared:,} of {len(mine.keys):,} {SETS[name]} samples are also among the {SETS[other]} ones"
    if other == "labeled":
        pairs = set(zip(theirs.keys, theirs.labels, strict=True))
        same = sum(pair in pairs for pair in zip(mine.keys, mine.labels, strict=True))
        return f"{words}, {same:,} with the same label: the {SETS[name]} figure is too good; take them out of one"
    if other == "unlabeled":
        return f"{words}: the {SETS[name]} figure is of samples seen in training; take them out for one of new samples"
    return f"{words}: what is chosen by the validation figure looks too good on them; take them out of one"


def notable(count: int, size: int, usual: float) -> bool:
    """Whether `count` of `size` samples are more than repeat anyway."""
    expected = usual + SURELY * sqrt(usual * (1 - usual) / max(1, size)) + NOTABLE
    return count >= FEWEST and count >= expected * size


def known(splits: Splits) -> dict[str, Known]:
    """All sets; image files by content, and not at all where there are too many, or one of them cannot be read."""
    sets: dict[str, Samples] = {name: getattr(splits, name) for name in SETS}
    files = {name: s.x for name, s in sets.items() if not isinstance(s.x, Tensor)}
    try:
        of_files = file_keys(files)
    except OSError:  # it is named when its step comes
        of_files = None
    if of_files is None:
        return {name: Known([], []) for name in SETS}
    return {
        name: Known(of_files[name] if name in files else rows_of(inputs(splits, s)), rows_of(s.y))
        for name, s in sets.items()
    }


def inputs(splits: Splits, samples: Samples) -> Tensor:
    """Raw samples; of several versions of a text the first."""
    assert isinstance(samples.x, Tensor)
    return samples.x[:, 0] if splits.tokens is not None and samples.x.ndim == 3 else samples.x


def rows_of(x: Tensor) -> list[bytes]:
    """A key for each row, of all its bytes."""
    rows = x.reshape(len(x), -1).numpy(force=True) if len(x) else ()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def file_keys(sets: dict[str, Files]) -> dict[str, list[bytes]] | None:
    """A key for each file: its size, with a checksum where another file has the same; None where that is too much."""
    if sum(map(len, sets.values())) > FILES:
        return None
    paths = {name: [Path(files.paths[row]) for row in files.rows.tolist()] for name, files in sets.items()}
    sizes = {path: path.stat().st_size for path in {path for each in paths.values() for path in each}}
    counts = Counter(sizes.values())
    if sum(size for size in sizes.values() if counts[size] > 1) > BYTES:
        return None
    sums = {path: hashlib.blake2b(path.read_bytes()).digest() for path, size in sizes.items() if counts[size] > 1}
    keys = {path: str(size).encode() + sums.get(path, b"") for path, size in sizes.items()}
    return {name: [keys[path] for path in each] for name, each in paths.items()}


def joined(first: Known, second: Known) -> Known:
    """Both, the samples of the second that the first has not."""
    mine = set(first.keys)
    rest = [i for i, key in enumerate(second.keys) if key not in mine]
    return Known(first.keys + [second.keys[i] for i in rest], first.labels + [second.labels[i] for i in rest])
