"""What files of a stranger may do to the machine: be plain files within their folder, and unpack to a bounded size.

MERGED:
Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.

"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from l2i.errors import InputError

GIB = 2**30
ALWAYS_ALLOWED_BYTES = GIB  # bytes in memory that any file may come to, however small it is on disk
MAX_EXPANSION = 20  # or so many times its size on disk, where that is more
MAX_COLUMNS = 100_000


def check_regular_file(path: Path, root: Path | None = None) -> Path:
    """The path, where it is a regular file that no link leads out of `root`; pipes block, and devices have no end."""
    try:
        file_stat = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is there and readable") from None
    if root is not None and not is_within(path, root):
        raise InputError(f"{path} is a link that leads out of {root}; put a copy in its place")
    if not stat.S_ISREG(file_stat.st_mode):
        raise InputError(f"{path} is not a regular file; put one in its place, or take it out")
    check_memory(path, file_stat.st_size, "it has holes: write it anew")
    return path


def check_tree(folder: Path) -> None:
    """That a folder which is written to as well has no link that leads out of it, and nothing but files and folders."""
    for inner, folders, names in os.walk(folder):
        for path in (Path(inner, name) for name in (*folders, *names)):
            if path.is_symlink() and not is_within(path, folder):
                raise InputError(f"{path} is a link that leads out of {folder}; put a copy in its place")
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise InputError(f"{path} is neither a file nor a folder; remove it")


def is_within(path: str | Path, root: str | Path) -> bool:
    """Whether a path ends within a folder, through whatever links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def get_disk_usage(path: Path) -> int:
    """Bytes that a file takes there: of one with holes, not the holes."""
    file_stat = path.stat()
    blocks: int | None = getattr(file_stat, "st_blocks", None)  # which Windows does not tell
    return file_stat.st_size if blocks is None else min(file_stat.st_size, 512 * blocks)


def check_memory(path: Path, needed: int, fix: str) -> None:
    """That what a file unpacks to is no more than its size on disk accounts for; `fix` says what to do otherwise."""
    if needed > ALWAYS_ALLOWED_BYTES and needed > MAX_EXPANSION * get_disk_usage(path):
        raise InputError(
            f"{path} would take {needed / GIB:,.1f} GiB of memory, more than 1 GiB and {MAX_EXPANSION} times its size on disk; "
            f"{fix}"
        )


def check_columns(path: Path, count: int) -> None:
    """That a table is no wider than tables are."""
    if count > MAX_COLUMNS:
        raise InputError(f"{path} has {count:,} columns, more than {MAX_COLUMNS:,}; leave out what is not needed")


def scan_folder(folder: str, root: str) -> Iterator[os.DirEntry[str]]:
    """What is in a folder but hidden files; no link may lead out of the root."""
    with os.scandir(folder) as scan:
        for entry in scan:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not (Path(entry.path).exists() and is_within(entry.path, root)):
                raise InputError(f"{entry.path} is a link that leads nowhere or out of {root}; put a copy in its place")
            yield entry
