"""IMDb's film reviews from the files their authors publish, a review a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from l2i.data.folders import entries
from l2i.data.limits import leads_within
from l2i.data.texts import TextSet, cleaned
from l2i.errors import InputError

PAGE = "https://ai.stanford.edu/~amaas/data/sentiment/"
ARCHIVE = "aclImdb"  # the folder that it unpacks to
CLASSES = ("neg", "pos")  # by number
UNLABELED = "unsup"
LONGEST = 2**24  # bytes of a review
NAME = re.compile(r"([0-9]+)_([0-9]+)\.txt")  # the review's number in its folder, and its rating


def imdb(root: str | None) -> TextSet:
    """The reviews as plain text: negative ones, then positive ones, each by number, then those without labels."""
    given, folder = find(root)
    train, test = folder / "train", folder / "test"
    listed = [reviews(train / kind, given) for kind in CLASSES]
    tested = [reviews(test / kind, given) for kind in CLASSES]
    extra = numbered(train / UNLABELED, given) if (train / UNLABELED).is_dir() else []
    labeled = [path for paths in listed for path in paths]
    return TextSet(
        train=[review(path) for path in labeled],
        y=[number for number, paths in enumerate(listed) for _ in paths],
        unlabeled=[review(path) for path in extra],
        test=[review(path) for paths in tested for path in paths],
        test_y=[number for number, paths in enumerate(tested) for _ in paths],
        classes=len(CLASSES),
        names=[f"{path.parent.name}_{path.name}" for path in labeled + extra],
    )


def find(root: str | None) -> tuple[Path, Path]:
    """The folder that was given, and the one that holds train and test."""
    if root is not None:
        given = Path(root).expanduser()
        for folder in (given / ARCHIVE, given):
            if any((folder / split / kind).is_dir() for split in ("train", "test") for kind in CLASSES):
                return given, folder
    where = "no folder is given" if root is None else f"{ARCHIVE} is not in {root}"
    raise InputError(
        f"IMDb is not there: {where}. Get the archive from {PAGE}, unpack it, and give the folder you unpacked it in "
        "as --data.root, or in L2I_DATA"
    )


def reviews(folder: Path, root: Path) -> list[Path]:
    """A class's files, of which there must be some."""
    if not folder.is_dir():
        raise InputError(f"IMDb: the folder {folder} is missing; unpack the archive from {PAGE} again")
    paths = numbered(folder, root)
    if not paths:
        raise InputError(f"IMDb: the folder {folder} holds no reviews; unpack the archive from {PAGE} again")
    return paths


def numbered(folder: Path, root: Path) -> list[Path]:
    """A folder's .txt files by the reviews' numbers, whatever order the file system gives them in."""
    if not leads_within(folder, root):
        raise InputError(f"{folder} is a link that leads out of {root}; put a copy in its place")
    try:
        paths = [Path(entry.path) for entry in entries(str(folder), str(root)) if named(entry)]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}); see that it is readable") from None
    return sorted(paths, key=order)


def named(entry: os.DirEntry[str]) -> bool:
    """Whether a file is a review by its name; what only has such a name may block whoever reads it."""
    if entry.name.endswith(".txt") and not entry.is_file() and not entry.is_dir():
        raise InputError(f"{entry.path} is not a regular file; take it out of the folder")
    return entry.name.endswith(".txt")


def order(path: Path) -> tuple[int, int, str]:
    """A review's number, rating and file name."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise InputError(f"{path} is not named NUMBER_RATING.txt as IMDb's reviews are; take it out of the folder")
    return int(match[1]), int(match[2]), path.name


def review(path: Path) -> str:
    """A file's text, cleaned."""
    try:
        if path.stat().st_size > LONGEST:
            raise InputError(f"{path} has over {LONGEST >> 20} MiB, which no review has; take it out of the folder")
        text = cleaned(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; unpack the archive from {PAGE} again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is a readable file") from None
    if not text:
        raise InputError(f"{path} is empty; unpack the archive from {PAGE} again, or take the file out of the folder")
    return text
