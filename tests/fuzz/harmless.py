"""The rule for loaders of a stranger's file: return or raise an InputError, say nothing else."""

import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from l2i.errors import InputError

Check = Callable[[str, bytes], bool]  # of a loader's name and content: whether it could be read


@dataclass(frozen=True, kw_only=True)
class Loader:
    """How a file of some content is read in a folder of its own, as a command does it."""

    read: Callable[[Path, bytes], object]
    seeds: Callable[[], list[bytes]]
    """Whole files."""
    prepare: Callable[[Path], object] = lambda folder: None
    """Puts into the folder, once, what lies beside the file."""


def harmless(loader: Loader, folder: Path, content: bytes) -> bool:
    """Whether the content could be read; only an InputError is caught, a warning is an error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            loader.read(folder, content)
            read = True
        except InputError:
            read = False
    assert not said, f"{said[0].category.__name__}: {said[0].message}"
    return read


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def way(content: bytes, count: int) -> int:
    """One of so many ways to read a file, the same for the same content."""
    return zlib.crc32(content) % count
