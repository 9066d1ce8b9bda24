"""Few bytes that unpack to many."""

from __future__ import annotations

import zlib

MIB = 2**20


def zeros_packed(start: bytes, mebibytes: int) -> bytes:
    """A deflated stream of `start` and zeros; each mebibyte of them is the same thousand bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * mebibytes + packer.flush()


def zlib_zeros(mebibytes: int) -> bytes:
    """The same as zlib writes it, but for the checksum at the end."""
    return b"\x78\x9c" + zeros_packed(b"", mebibytes)
