"""Checksums of files and of data in memory: 16 bytes of BLAKE2b, as hexadecimal digits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16


def hash_bytes(*pieces: bytes | memoryview) -> str:
    """Return the checksum of pieces in order, which also depends on where each of them ends."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        hasher.update(len(piece).to_bytes(8, "little"))
        hasher.update(piece)
    return hasher.hexdigest()


def hash_strings(strings: Iterable[str]) -> str:
    """Return the checksum of strings in order."""
    return hash_bytes(*(string.encode("utf-8", "surrogatepass") for string in strings))


def hash_arrays(*arrays: NDArray[Any]) -> str:
    """Return the checksum of arrays: their types, shapes and values."""
    pieces: list[bytes | memoryview] = []
    for array in map(np.ascontiguousarray, arrays):
        pieces.append(f"{array.dtype.str} {list(array.shape)}".encode())
        pieces.append(array.reshape(-1).view(np.uint8).data)
    return hash_bytes(*pieces)


def hash_content(content: bytes) -> str:
    """Return the checksum of a file's content."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def hash_file(path: Path) -> str:
    """Return the checksum of a file's content, read piece by piece."""
    with path.open("rb") as file:
        hasher = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
    return hasher.hexdigest()
