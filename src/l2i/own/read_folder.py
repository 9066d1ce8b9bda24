"""Which image files a user's own data consist of: class folders, any folder, or a table's column of paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from l2i.data.folders import SUFFIXES, entries
from l2i.data.limits import leads_within
from l2i.errors import InputError
from l2i.own.prepare import words
from l2i.own.reading import counted, few

if TYPE_CHECKING:
    import pandas as pd

IMAGES = (*SUFFIXES, ".gif")
UNLABELED = ("unlabeled", "unlabelled")
SHAPE = "make a folder of images for each class, and one named 'unlabeled' for the others"


class Files(NamedTuple):
    """Image files, and what they are called in messages and results."""

    paths: list[str]
    names: list[str]


class Labelled(NamedTuple):
    """Image files of class folders."""

    files: Files
    classes: pd.DataFrame
    """One column, 'class', blank for unlabelled images."""
    notes: tuple[str, ...]


def class_files(folder: Path) -> Labelled:
    """The images of class folders and of the folder of unlabelled ones, with their classes."""
    import pandas as pd

    root = os.path.realpath(folder)
    inside = sorted(entries(root, root), key=lambda entry: entry.name)
    folders = {entry.name: entry.path for entry in inside if entry.is_dir()}
    blank = [path for name, path in folders.items() if name.lower() in UNLABELED]
    of_class = {name: _class_images(folder, name, path, root) for name, path in folders.items() if path not in blank}
    if not of_class:
        raise InputError(f"{folder} is {'a folder without class folders' if inside else 'an empty folder'}; {SHAPE}")
    others = [path for start in blank for path in images_below(start, root)]
    labels: list[str | None] = [name for name, images in of_class.items() for _ in images]
    classes = pd.DataFrame({"class": pd.Series(labels + [None] * len(others), dtype=object)})
    beside = sum(_is_image(entry) for entry in inside)
    notes = [f"{counted(beside, 'image')} beside the class folders left out; move such into 'unlabeled' to use them"]
    files = _files([path for images in of_class.values() for path in images] + others, root)
    return Labelled(files, classes, tuple(notes[: bool(beside)] + _other_kinds(list(folders.values()), root)))


def _other_kinds(folders: list[str], root: str) -> list[str]:
    """That files which are no images of a known kind are left out, and which."""
    others = [e.name for folder in folders for e in entries(folder, root) if e.is_file() and not _is_image(e)]
    if not others:
        return []
    kinds = sorted({Path(name).suffix.lower() or name for name in others})
    return [
        f"{counted(len(others), 'file')} of other kinds left out ({few(kinds)}); images are read as {', '.join(IMAGES)}"
    ]


def _class_images(folder: Path, name: str, path: str, root: str) -> list[str]:
    inside = list(entries(path, root))
    images = sorted(entry.path for entry in inside if _is_image(entry))
    below = sorted(entry.name for entry in inside if entry.is_dir())
    if below:
        raise InputError(f"the class folder {folder / name} has folders in it, such as '{below[0]}'; {SHAPE}")
    if not images:
        raise InputError(f"the class folder {folder / name} holds no images ({', '.join(IMAGES)}); fill or remove it")
    return images


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGES) and entry.is_file()


def images_below(folder: str, root: str) -> Iterator[str]:
    """All images in a folder and its folders, in order; no folder twice, whatever links there are."""
    seen: set[str] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if os.path.realpath(here) in seen:
            continue
        seen.add(os.path.realpath(here))
        inside = sorted(entries(here, root), key=lambda entry: entry.name)
        yield from (entry.path for entry in inside if _is_image(entry))
        waiting += [entry.path for entry in reversed(inside) if entry.is_dir()]


def new_files(path: Path) -> Files:
    """The images of a folder, however nested, or a single one."""
    if not path.is_dir():
        if not path.name.lower().endswith(IMAGES):
            raise InputError(f"{path} is no image ({', '.join(IMAGES)}); give a folder of images, or one image")
        return Files([str(path)], [path.name])
    root = os.path.realpath(path)
    found = list(images_below(root, root))
    if not found:
        raise InputError(f"{path} holds no images ({', '.join(IMAGES)}); give another folder")
    return _files(found, root)


def _files(paths: list[str], root: str) -> Files:
    names = [os.fsencode(Path(path).relative_to(root).as_posix()).decode("utf-8", "replace") for path in paths]
    return Files(paths, names)


def listed_files(column: pd.Series, table: Path) -> Files:
    """The images that a column names, seen from the table's folder."""
    folder = table.resolve().parent
    names = words(column)
    return Files([_inside(folder, name, f"{table}, row {row}") for row, name in enumerate(names, 1)], names)


def _inside(folder: Path, name: str, where: str) -> str:
    """The path of a listed file, which may be written the Windows way but must not lead out of the folder."""
    if not name:
        raise InputError(f"{where}: the path of the image is blank; fill it in, or take the row out")
    parts = PureWindowsPath(name)
    if parts.drive or ".." in parts.parts or "\0" in name:
        raise InputError(f"{where}: '{name[:80]}' leads out of {folder}; give paths within it")
    path = Path(name) if Path(name).is_absolute() else folder.joinpath(*parts.parts)
    if not leads_within(path, folder):
        raise InputError(f"{where}: '{name[:80]}' leads out of {folder}; put the image into it")
    return str(path)
