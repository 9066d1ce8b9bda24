"""Places to write to: those that no file or fit can have are refused, before anything is worked out for them.

MERGED:
Labels of new rows, by the model that a fit chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from l2i.errors import InputError


def check_output_file(out: str | Path, suffixes: tuple[str, ...]) -> Path:
    """A file that can be written, of a kind that its name says."""
    path = Path(out)
    with translate_write_errors(out):
        if path.is_dir():
            raise InputError(f"cannot write '{out}': it is a folder; give the name of a file")
        if path.suffix.lower() not in suffixes:
            raise InputError(f"cannot write '{out}': it must end in {' or '.join(suffixes)}")
        if not path.absolute().parent.is_dir():
            raise InputError(f"cannot write '{out}': its folder is not there; make it first")
    return path


@contextmanager
def translate_write_errors(out: str | Path) -> Iterator[None]:
    """Where a file cannot be written after all, an InputError says so."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write '{out}': {error.strerror}; give another place") from None


def check_outside_data(folder: Path, data: Path) -> None:
    """That the folder of a fit is not in a folder of data, whose folders are read as classes."""
    try:
        is_within = data.is_dir() and folder.resolve().is_relative_to(data.resolve())
    except OSError:  # a name that nothing can have, which is said where it is read or written
        return
    if is_within:
        raise InputError(
            f"the fit would be written to {folder}, within the data in {data.resolve()}; give an --out elsewhere"
        )
