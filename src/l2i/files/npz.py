"""Arrays out of .npz and .npy files: what they claim to hold is checked before room is made for it."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from l2i.files.safety import check_memory, check_regular_file

MAX_HEADER_CHARS = 10_000  # characters, which numpy parses as Python literals
ALLOWED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # all that numpy writes; others cannot be unpacked bit by bit
SAVEZ_HINT = "write it with numpy.savez, which does not compress"


class NpyHeader(NamedTuple):
    """What the start of an .npy says is in it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_start: int  # of the values, in bytes

    @property
    def data_end(self) -> int:
        """Where the values end."""
        return self.data_start + math.prod(self.shape) * self.dtype.itemsize


class NpzContents(NamedTuple):
    """Arrays by name, and the names of all there are."""

    arrays: dict[str, NDArray[Any]]
    names: list[str]


def read_npz_arrays(path: Path, wanted: Sequence[str]) -> NpzContents:
    """Those of the wanted arrays that an .npz holds; a ValueError or one of zipfile's where it is damaged."""
    check_regular_file(path)
    with warnings.catch_warnings(), zipfile.ZipFile(path) as archive:
        warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        members = {name: archive.getinfo(f"{name}.npy") for name in wanted if f"{name}.npy" in archive.NameToInfo}
        check_memory(path, sum(member.file_size for member in members.values()), SAVEZ_HINT)
        return NpzContents({name: _read_member(archive, member) for name, member in members.items()}, names)


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array; zipfile gives no more bytes than the directory says, and no more than these are made room for."""
    if member.compress_type not in ALLOWED_COMPRESSION:
        raise ValueError("packed in a way that numpy does not write")
    with archive.open(member) as file:
        check_npy_size(read_npy_header(file), member.file_size)
    with archive.open(member) as file:
        return np.asarray(npy.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER_CHARS))


def read_npy_array(path: Path) -> NDArray[Any]:
    """The array of an .npy file; a ValueError where it is damaged."""
    check_regular_file(path)
    with warnings.catch_warnings(), path.open("rb") as file:
        warnings.simplefilter("ignore")
        check_npy_size(read_npy_header(file), os.fstat(file.fileno()).st_size)
        file.seek(0)
        return np.asarray(npy.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER_CHARS))


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """What the header says; a ValueError where it is none of plain values."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:  # the third is for names of fields
        raise ValueError("not plain values")
    shape, _, dtype = readers[version](file, max_header_size=MAX_HEADER_CHARS)
    is_plain = not dtype.hasobject and dtype.fields is None and dtype.itemsize
    if not is_plain or any(size < 0 for size in shape):
        raise ValueError("not plain values")
    return NpyHeader(dtype, shape, file.tell())


def check_npy_size(header: NpyHeader, file_size: int) -> None:
    """That a file of so many bytes holds the values it says."""
    if header.data_end != file_size:
        raise ValueError("shorter or longer than it says")
