"""Guards against untrusted files: regular, inside their folder, of bounded size in memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from l2i.errors import InputError

GIB = 2**30
ALWAYS_ALLOWED_BYTES = GIB  # in memory, for any file, however small it is on disk
MAX_EXPANSION = 20  # times the size on disk, if that is more
MAX_COLUMNS = 100_000


def check_regular_file(path: Path, root: Path | None = None) -> Path:
    """Return `path`, after checking that it is a regular file that no link leads out of `root`."""
    try:
        file_stat = path.stat()
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise InputError(f"{path} {problem}; check that it exists and is readable") from None
    if root is not None:
        check_within(path, root)
    if not stat.S_ISREG(file_stat.st_mode):  # pipes block, and devices never end
        raise InputError(f"{path} is not a regular file; replace or remove it")
    check_memory(path, file_stat.st_size, "it is a sparse file: write it again")
    return path


def is_file(path: Path) -> bool:
    """Return whether a path is a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except OSError:  # longer than a path may be
        return False


@contextmanager
def translate_any_error(problem: str, fix: str) -> Iterator[None]:
    """Turn any exception into an InputError: damaged files raise many kinds."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem} ({type(error).__name__}); {fix}") from None


def check_tree(folder: Path) -> None:
    """Check that a folder holds files and folders only, and no link that leads out of it."""
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if path.is_symlink():
                check_within(path, folder)
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise InputError(f"{path} is neither a file nor a folder; remove it")


def scan_folder(folder: str, root: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder except hidden ones; no link may lead out of `root`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_symlink() and not (path.exists() and is_within(path, root)):
                problem = f"a broken link, or one that points outside {root}"
                raise InputError(f"{entry.path} is {problem}; replace it with a copy")
            yield entry


def is_within(path: str | Path, root: str | Path) -> bool:
    """Return whether a path lies inside a folder once all links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def check_within(path: Path, root: Path) -> None:
    """Check that no link leads out of a folder."""
    if not is_within(path, root):
        raise InputError(f"{path} is a link that points outside {root}; replace it with a copy")


def get_disk_usage(path: Path) -> int:
    """Return the bytes a file takes on disk, not counting holes."""
    file_stat = path.stat()
    blocks: int | None = getattr(file_stat, "st_blocks", None)  # absent on Windows
    return file_stat.st_size if blocks is None else min(file_stat.st_size, 512 * blocks)


def check_memory(path: Path, needed: int, fix: str) -> None:
    """Check that a file does not unpack to far more than its size on disk."""
    if needed > ALWAYS_ALLOWED_BYTES and needed > MAX_EXPANSION * get_disk_usage(path):
        limit = f"more than 1 GiB and {MAX_EXPANSION} times its size on disk"
        raise InputError(f"{path} would take {needed / GIB:,.1f} GiB of memory, {limit}; {fix}")


def check_columns(path: Path, count: int) -> None:
    """Check that a table is not absurdly wide."""
    if count > MAX_COLUMNS:
        counts = f"{count:,} columns, more than {MAX_COLUMNS:,}"
        raise InputError(f"{path} has {counts}; drop those that are not needed")
