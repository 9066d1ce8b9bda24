"""Find image files: in class folders, in any folder, or listed in a column of a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from l2i.errors import InputError
from l2i.files.images import IMAGE_SUFFIXES
from l2i.files.safety import is_within, scan_folder
from l2i.fit.formatting import format_names, pluralize
from l2i.fit.readers.columns import to_strings

if TYPE_CHECKING:
    import pandas as pd

READABLE_SUFFIXES = (*IMAGE_SUFFIXES, ".gif")
SUFFIX_LIST = ", ".join(READABLE_SUFFIXES)
UNLABELED_DIRS = ("unlabeled", "unlabelled")
LAYOUT_HINT = "make one folder of images per class, and one named 'unlabeled' for the others"


class ImageFileList(NamedTuple):
    """Image files, and their names in messages and results."""

    paths: list[str]
    names: list[str]


def list_class_files(folder: Path) -> tuple[ImageFileList, pd.DataFrame, tuple[str, ...]]:
    """List the images in class folders and of unlabelled ones, their 'class' column, and notes."""
    import pandas as pd

    root = os.path.realpath(folder)
    children = _scan_sorted(root, root)
    folders = {entry.name: entry.path for entry in children if entry.is_dir()}
    class_names = [name for name in folders if name.lower() not in UNLABELED_DIRS]
    if not class_names:
        problem = "has no class folders" if children else "is empty"
        raise InputError(f"{folder} {problem}; {LAYOUT_HINT}")
    paths: list[str] = []
    labels: list[str | None] = []
    for name in class_names:
        images = _list_class_images(folder / name, folders[name], root)
        paths += images
        labels += [name] * len(images)
    for name in folders:
        if name not in class_names:
            paths += _iter_images(folders[name], root)
    labels += [None] * (len(paths) - len(labels))
    notes = []
    num_stray = sum(map(_is_image, children))
    if num_stray:
        stray = f"ignored {pluralize(num_stray, 'image')} outside the class folders"
        notes.append(f"{stray}; move them into 'unlabeled' to use them")
    notes += _describe_other_files(folders.values(), root)
    classes = pd.DataFrame({"class": pd.Series(labels, dtype=object)})
    return _make_file_list(paths, root), classes, tuple(notes)


def _list_class_images(shown_path: Path, path: str, root: str) -> list[str]:
    children = _scan_sorted(path, root)
    subdirs = [entry.name for entry in children if entry.is_dir()]
    if subdirs:
        problem = f"contains folders, such as '{subdirs[0]}'"
        raise InputError(f"class folder {shown_path} {problem}; {LAYOUT_HINT}")
    images = [entry.path for entry in children if _is_image(entry)]
    if not images:
        fix = "add some, or remove it"
        raise InputError(f"class folder {shown_path} contains no images ({SUFFIX_LIST}); {fix}")
    return images


def _describe_other_files(folders: Iterable[str], root: str) -> list[str]:
    """Note which files are ignored as they are not images."""
    entries = [entry for folder in folders for entry in scan_folder(folder, root)]
    names = [entry.name for entry in entries if entry.is_file() and not _is_image(entry)]
    if not names:
        return []
    suffixes = sorted({Path(name).suffix.lower() or name for name in names})
    files = f"{pluralize(len(names), 'file')} of other formats ({format_names(suffixes)})"
    return [f"ignored {files}; images end in {SUFFIX_LIST}"]


def list_image_files(path: Path) -> ImageFileList:
    """List the images in a folder, however nested, or a single image."""
    if not path.is_dir():
        if not path.name.lower().endswith(READABLE_SUFFIXES):
            fix = "use a folder of images, or one image"
            raise InputError(f"{path} is not an image ({SUFFIX_LIST}); {fix}")
        return ImageFileList([str(path)], [path.name])
    root = os.path.realpath(path)
    paths = list(_iter_images(root, root))
    if not paths:
        raise InputError(f"{path} contains no images ({SUFFIX_LIST}); choose a different folder")
    return _make_file_list(paths, root)


def _iter_images(folder: str, root: str) -> Iterator[str]:
    """Yield all images below a folder, in order, and visit none twice, however it is linked."""
    visited: set[str] = set()
    pending = [folder]
    while pending:
        current = pending.pop()
        if os.path.realpath(current) in visited:
            continue
        visited.add(os.path.realpath(current))
        children = _scan_sorted(current, root)
        yield from (entry.path for entry in children if _is_image(entry))
        pending += [entry.path for entry in reversed(children) if entry.is_dir()]


def _scan_sorted(folder: str, root: str) -> list[os.DirEntry[str]]:
    return sorted(scan_folder(folder, root), key=lambda entry: entry.name)


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(READABLE_SUFFIXES) and entry.is_file()


def _make_file_list(paths: list[str], root: str) -> ImageFileList:
    relative_paths = [Path(path).relative_to(root).as_posix() for path in paths]
    names = [os.fsencode(path).decode("utf-8", "replace") for path in relative_paths]
    return ImageFileList(paths, names)


def resolve_listed_files(column: pd.Series, table: Path) -> ImageFileList:
    """Resolve the image paths in a column, relative to the table's folder."""
    folder = table.resolve().parent
    names = to_strings(column)
    paths = [
        _resolve_inside(folder, name, f"{table}, row {row}") for row, name in enumerate(names, 1)
    ]
    return ImageFileList(paths, names)


def _resolve_inside(folder: Path, name: str, location: str) -> str:
    """Resolve the path of a listed file, perhaps a Windows path, which must stay in the folder."""
    if not name:
        fix = "fill it in, or remove the row"
        raise InputError(f"{location}: the image path is blank; {fix}")
    windows_path = PureWindowsPath(name)
    if windows_path.drive or ".." in windows_path.parts or "\0" in name:
        raise InputError(f"{location}: '{name[:80]}' is outside {folder}; use paths within it")
    path = Path(name) if Path(name).is_absolute() else folder.joinpath(*windows_path.parts)
    if not is_within(path, folder):
        raise InputError(f"{location}: '{name[:80]}' is outside {folder}; move the image into it")
    return str(path)
