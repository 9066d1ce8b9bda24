"""Which image files a user's own data consist of: class folders, any folder, or a table's column of paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from l2i.errors import InputError
from l2i.files.images import IMAGE_SUFFIXES
from l2i.files.safety import is_within, scan_folder
from l2i.fit.options import format_names, pluralize
from l2i.fit.preprocess import to_strings

if TYPE_CHECKING:
    import pandas as pd

READABLE_SUFFIXES = (*IMAGE_SUFFIXES, ".gif")
UNLABELED_DIRS = ("unlabeled", "unlabelled")
FOLDER_LAYOUT_HINT = "make a folder of images for each class, and one named 'unlabeled' for the others"


class ImageFileList(NamedTuple):
    """Image files, and what they are called in messages and results."""

    paths: list[str]
    names: list[str]


class LabeledFiles(NamedTuple):
    """Image files of class folders."""

    files: ImageFileList
    classes: pd.DataFrame
    """One column, 'class', blank for unlabelled images."""
    notes: tuple[str, ...]


def list_class_files(folder: Path) -> LabeledFiles:
    """The images of class folders and of the folder of unlabelled ones, with their classes."""
    import pandas as pd

    root = os.path.realpath(folder)
    children = sorted(scan_folder(root, root), key=lambda entry: entry.name)
    folders = {entry.name: entry.path for entry in children if entry.is_dir()}
    unlabeled_dirs = [path for name, path in folders.items() if name.lower() in UNLABELED_DIRS]
    class_images = {name: _list_class_images(folder, name, path, root) for name, path in folders.items() if path not in unlabeled_dirs}
    if not class_images:
        raise InputError(f"{folder} is {'a folder without class folders' if children else 'an empty folder'}; {FOLDER_LAYOUT_HINT}")
    unlabeled_images = [path for unlabeled_dir in unlabeled_dirs for path in iter_images(unlabeled_dir, root)]
    labels: list[str | None] = [name for name, images in class_images.items() for _ in images]
    classes = pd.DataFrame({"class": pd.Series(labels + [None] * len(unlabeled_images), dtype=object)})
    num_stray = sum(_is_image(entry) for entry in children)
    notes = [f"{pluralize(num_stray, 'image')} beside the class folders left out; move such into 'unlabeled' to use them"]
    files = _make_image_files([path for images in class_images.values() for path in images] + unlabeled_images, root)
    return LabeledFiles(files, classes, tuple(notes[: bool(num_stray)] + _describe_skipped_files(list(folders.values()), root)))


def _describe_skipped_files(folders: list[str], root: str) -> list[str]:
    """That files which are no images of a known kind are left out, and which."""
    skipped_names = [e.name for folder in folders for e in scan_folder(folder, root) if e.is_file() and not _is_image(e)]
    if not skipped_names:
        return []
    suffixes = sorted({Path(name).suffix.lower() or name for name in skipped_names})
    return [
        f"{pluralize(len(skipped_names), 'file')} of other kinds left out ({format_names(suffixes)}); images are read as {', '.join(READABLE_SUFFIXES)}"
    ]


def _list_class_images(folder: Path, name: str, path: str, root: str) -> list[str]:
    children = list(scan_folder(path, root))
    images = sorted(entry.path for entry in children if _is_image(entry))
    subdirs = sorted(entry.name for entry in children if entry.is_dir())
    if subdirs:
        raise InputError(f"the class folder {folder / name} has folders in it, such as '{subdirs[0]}'; {FOLDER_LAYOUT_HINT}")
    if not images:
        raise InputError(f"the class folder {folder / name} holds no images ({', '.join(READABLE_SUFFIXES)}); fill or remove it")
    return images


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(READABLE_SUFFIXES) and entry.is_file()


def iter_images(folder: str, root: str) -> Iterator[str]:
    """All images in a folder and its folders, in order; no folder twice, whatever links there are."""
    visited: set[str] = set()
    pending = [folder]
    while pending:
        current = pending.pop()
        if os.path.realpath(current) in visited:
            continue
        visited.add(os.path.realpath(current))
        children = sorted(scan_folder(current, root), key=lambda entry: entry.name)
        yield from (entry.path for entry in children if _is_image(entry))
        pending += [entry.path for entry in reversed(children) if entry.is_dir()]


def list_image_files(path: Path) -> ImageFileList:
    """The images of a folder, however nested, or a single one."""
    if not path.is_dir():
        if not path.name.lower().endswith(READABLE_SUFFIXES):
            raise InputError(f"{path} is no image ({', '.join(READABLE_SUFFIXES)}); give a folder of images, or one image")
        return ImageFileList([str(path)], [path.name])
    root = os.path.realpath(path)
    paths = list(iter_images(root, root))
    if not paths:
        raise InputError(f"{path} holds no images ({', '.join(READABLE_SUFFIXES)}); give another folder")
    return _make_image_files(paths, root)


def _make_image_files(paths: list[str], root: str) -> ImageFileList:
    names = [os.fsencode(Path(path).relative_to(root).as_posix()).decode("utf-8", "replace") for path in paths]
    return ImageFileList(paths, names)


def resolve_listed_files(column: pd.Series, table: Path) -> ImageFileList:
    """The images that a column names, seen from the table's folder."""
    folder = table.resolve().parent
    names = to_strings(column)
    return ImageFileList([_resolve_inside(folder, name, f"{table}, row {row}") for row, name in enumerate(names, 1)], names)


def _resolve_inside(folder: Path, name: str, location: str) -> str:
    """The path of a listed file, which may be written the Windows way but must not lead out of the folder."""
    if not name:
        raise InputError(f"{location}: the path of the image is blank; fill it in, or take the row out")
    windows_path = PureWindowsPath(name)
    if windows_path.drive or ".." in windows_path.parts or "\0" in name:
        raise InputError(f"{location}: '{name[:80]}' leads out of {folder}; give paths within it")
    path = Path(name) if Path(name).is_absolute() else folder.joinpath(*windows_path.parts)
    if not is_within(path, folder):
        raise InputError(f"{location}: '{name[:80]}' leads out of {folder}; put the image into it")
    return str(path)
