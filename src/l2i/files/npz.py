"""Read arrays from .npz and .npy files, checking the size they claim before allocating it."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from l2i.files.safety import check_memory, check_regular_file

MAX_HEADER_CHARS = 10_000  # numpy parses headers as Python literals
# all that numpy writes; zipfile cannot unpack the others piece by piece
ALLOWED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
SAVEZ_HINT = "write it with numpy.savez, which does not compress"


def read_npz_arrays(path: Path, wanted: Sequence[str]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Read those wanted arrays that an .npz holds, and the names of all arrays in it.

    A damaged file is a ValueError or zipfile error.
    """
    check_regular_file(path)
    # numpy warns of headers written by Python 2
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path) as archive:
        present = [name for name in wanted if f"{name}.npy" in archive.NameToInfo]
        members = [archive.getinfo(f"{name}.npy") for name in present]
        check_memory(path, sum(member.file_size for member in members), SAVEZ_HINT)
        arrays = [_read_member(archive, member) for member in members]
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        return dict(zip(present, arrays, strict=True)), names


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array; zipfile yields no more bytes than the directory states."""
    if member.compress_type not in ALLOWED_COMPRESSION:
        raise ValueError("packed in a way that numpy does not write")
    with archive.open(member) as file:
        _check_header(file, member.file_size)
    with archive.open(member) as file:
        return _read_array(file)


def read_npy_array(path: Path) -> NDArray[Any]:
    """Read the array of an .npy file; a damaged file is a ValueError."""
    check_regular_file(path)
    with warnings.catch_warnings(action="ignore"), path.open("rb") as file:
        _check_header(file, os.fstat(file.fileno()).st_size)
        file.seek(0)
        return _read_array(file)


def _read_array(file: IO[bytes]) -> NDArray[Any]:
    return np.asarray(npy.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER_CHARS))


def _check_header(file: IO[bytes], file_size: int) -> None:
    """Check that the header describes plain values that fill the rest of the file exactly."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:  # version 3 is for structured arrays
        raise ValueError("not plain values")
    shape, _, dtype = readers[version](file, max_header_size=MAX_HEADER_CHARS)
    is_plain = not dtype.hasobject and dtype.fields is None and dtype.itemsize
    if not is_plain or min(shape, default=0) < 0:
        raise ValueError("not plain values")
    if file.tell() + math.prod(shape) * dtype.itemsize != file_size:
        raise ValueError("shorter or longer than it says")
