"""Write files atomically, and check output paths before any work is done for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from l2i.errors import InputError

ProgressCallback = Callable[[str], object]
"""Called with a line to report."""


def write_atomic(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write `content` so that a reader sees all of it or nothing, even after a crash."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # a new file: an existing one may be a link
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if os.name == "posix":  # the rename, too, must survive a power cut
        directory_fd = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory_fd)
        os.close(directory_fd)


def check_output_file(out: str | Path, suffixes: tuple[str, ...]) -> Path:
    """Return `out` as a path, after checking that it can be written and has a known suffix."""
    path = Path(out)
    with translate_write_errors(out):
        if path.is_dir():
            raise InputError(f"cannot write '{out}': it is a folder; add a file name")
        if path.suffix.lower() not in suffixes:
            raise InputError(f"cannot write '{out}': it must end in {' or '.join(suffixes)}")
        if not path.absolute().parent.is_dir():
            raise InputError(f"cannot write '{out}': its folder does not exist; create it first")
    return path


@contextmanager
def translate_write_errors(out: str | Path) -> Iterator[None]:
    """Turn an OSError while writing `out` into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write '{out}': {error.strerror}; choose a different path"
        ) from None


def check_outside_data(folder: Path, data: Path) -> None:
    """Check that a fit is not written into a data folder, whose subfolders are read as classes."""
    try:
        is_inside = data.is_dir() and folder.resolve().is_relative_to(data.resolve())
    except OSError:  # an impossible name, which is reported when it is read or written
        return
    if is_inside:
        problem = f"--out {folder} is inside the data folder {data.resolve()}"
        raise InputError(f"{problem}; choose a different --out")


def ignore_progress(line: str) -> None:
    """Report progress to nobody."""


def print_utf8(text: str) -> None:
    """Write text to stdout in UTF-8, whatever the locale, as it would be in a file."""
    buffer = getattr(sys.stdout, "buffer", None)  # a notebook's stream has none
    if buffer is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode())
        buffer.flush()
