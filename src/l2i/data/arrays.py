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

from l2i.data.limits import check_memory, plain_file

MOST_HEADER = 10_000  # characters, which numpy parses as Python literals
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # all that numpy writes; others cannot be unpacked bit by bit
UNPACKED = "write it with numpy.savez, which does not compress"


class Claim(NamedTuple):
    """What the start of an .npy says is in it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int  # of the values, in bytes

    @property
    def end(self) -> int:
        """Where the values end."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class Npz(NamedTuple):
    """Arrays by name, and the names of all there are."""

    arrays: dict[str, NDArray[Any]]
    names: list[str]


def read_arrays(path: Path, wanted: Sequence[str]) -> Npz:
    """Those of the wanted arrays that an .npz holds; a ValueError or one of zipfile's where it is damaged."""
    plain_file(path)
    with warnings.catch_warnings(), zipfile.ZipFile(path) as packed:
        warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 wrote
        names = [name.removesuffix(".npy") for name in packed.namelist()]
        members = {name: packed.getinfo(f"{name}.npy") for name in wanted if f"{name}.npy" in packed.NameToInfo}
        check_memory(path, sum(member.file_size for member in members.values()), UNPACKED)
        return Npz({name: _member(packed, member) for name, member in members.items()}, names)


def _member(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """An array; zipfile gives no more bytes than the directory says, and no more than these are made room for."""
    if member.compress_type not in PACKED:
        raise ValueError("packed in a way that numpy does not write")
    with packed.open(member) as file:
        check_claim(claimed(file), member.file_size)
    with packed.open(member) as file:
        return np.asarray(npy.read_array(file, allow_pickle=False, max_header_size=MOST_HEADER))


def read_array(path: Path) -> NDArray[Any]:
    """The array of an .npy file; a ValueError where it is damaged."""
    plain_file(path)
    with warnings.catch_warnings(), path.open("rb") as file:
        warnings.simplefilter("ignore")
        check_claim(claimed(file), os.fstat(file.fileno()).st_size)
        file.seek(0)
        return np.asarray(npy.read_array(file, allow_pickle=False, max_header_size=MOST_HEADER))


def claimed(file: IO[bytes]) -> Claim:
    """What the header says; a ValueError where it is none of plain values."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:  # the third is for names of fields
        raise ValueError("not plain values")
    shape, _, dtype = readers[version](file, max_header_size=MOST_HEADER)
    plain = not dtype.hasobject and dtype.fields is None and dtype.itemsize
    if not plain or any(size < 0 for size in shape):
        raise ValueError("not plain values")
    return Claim(dtype, shape, file.tell())


def check_claim(claim: Claim, size: int) -> None:
    """That a file of so many bytes holds the values it says."""
    if claim.end != size:
        raise ValueError("shorter or longer than it says")
