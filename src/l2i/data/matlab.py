"""Matrices out of MATLAB's .mat files, which are packed: unpacked bit by bit and counted, before scipy makes room."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from l2i.data.limits import check_memory, plain_file

NUMBERS = ("double", "single", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
HEADER, ORDERS = 128, {b"IM": "<", b"MI": ">"}
PACKED = 15  # the kind of an element that is compressed
CHUNK = 2**16


def read_matrices(path: Path, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The matrices of these names; a KeyError, ValueError or one of scipy's where they are not there as numbers."""
    from scipy.io import loadmat, whosmat  # takes a while to import

    plain_file(path, path.parent)
    total = 0
    for size in sizes(path):
        total += size
        check_memory(path, 8 * total, "get it from its publisher again")  # a byte there may be a number of 8 here
    kinds = {name: kind for name, _, kind in whosmat(path)}
    for name in names:
        if kinds[name] not in NUMBERS:
            raise ValueError(f"{name} is no matrix of numbers")
    found = loadmat(path, variable_names=list(names))
    return {name: found[name] for name in names}


def sizes(path: Path) -> Iterator[int]:
    """How many bytes a file unpacks to, piece by piece."""
    with path.open("rb") as file:
        start = file.read(HEADER)
        if 0 in start[:4] or start[-2:] not in ORDERS:  # version 4, which packs nothing
            yield os.fstat(file.fileno()).st_size
            return
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{ORDERS[start[-2:]]}II", tag)
            if kind == PACKED:
                yield from inflated(file, size)
            else:
                file.seek(size, os.SEEK_CUR)
                yield size


def inflated(file: IO[bytes], size: int) -> Iterator[int]:
    """How many bytes the next ones of a file are when unpacked."""
    unpacker = zlib.decompressobj()
    while size > 0 and (packed := file.read(min(size, CHUNK))):
        size -= len(packed)
        while packed:
            yield len(unpacker.decompress(packed, 2**20))
            packed = unpacker.unconsumed_tail
