"""idx files of a stranger: packed ones that unpack to more than they are, and headers that lie."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from bombs import MIB, zeros_packed
from confined import confined, message_of

from formats import idx, write_idx
from l2i.data.datasets.mnist import read_fashion_mnist

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GZIP = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


def header(*shape: int) -> bytes:
    """The start of a file that claims to hold so many values."""
    return struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)


def bomb(start: bytes, mebibytes: int) -> bytes:
    """A gzip file that unpacks to so many mebibytes."""
    return GZIP + zeros_packed(start, mebibytes) + bytes(8)


def said_of(root: Path, name: str, content: bytes, *, room: int = 2**29) -> str:
    """What reading the set comes to where one of its files is this."""
    path = write_idx(root, packed=name.endswith(".gz")) / name
    path.write_bytes(content)
    actual = message_of(lambda: read_fashion_mnist(str(root)), room=room)
    assert str(path) in actual
    return actual


@pytest.mark.parametrize(
    ("name", "start"), [(f"{IMAGES}.gz", header(2**17, 256, 256)), (f"{LABELS}.gz", header(2**30))]
)
def test_a_file_that_unpacks_to_eight_gibibytes_is_refused_unread(
    name: str, start: bytes, tmp_path: Path
) -> None:
    content = bomb(start, 8192)
    assert len(content) < 10 * MIB
    said = said_of(tmp_path, name, content)
    assert (
        "would take 8.0 GiB of memory, more than 1 GiB and 20 times its size on disk; "
        "download it from" in said
    )


@pytest.mark.parametrize("start", [header(120, 28, 28), b"", header(0, 28, 28), header(120)])
def test_no_more_is_unpacked_than_the_header_says(start: bytes, tmp_path: Path) -> None:
    said = said_of(tmp_path, f"{IMAGES}.gz", bomb(start, 4096))
    assert "it is damaged" in said or "cannot be right" in said


@pytest.mark.parametrize(
    "shape", [(2**14, 256, 256), (2**32 - 1, 1, 1), (2**32 - 1, 256, 256), (1, 2**31, 2**31)]
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_header_that_claims_gigabytes_makes_no_room_for_them(
    shape: tuple[int, int, int], end: str, tmp_path: Path
) -> None:
    content = header(*shape) + bytes(100)
    said = said_of(tmp_path, IMAGES + end, gzip.compress(content) if end else content)
    assert any(part in said for part in ("it is damaged", "cannot be right", "GiB of memory"))


def test_a_hole_behind_a_whole_file_is_not_walked_through(tmp_path: Path) -> None:
    path = write_idx(tmp_path, packed=True) / f"{IMAGES}.gz"
    os.truncate(path, 2**30)
    assert "it is damaged" in message_of(lambda: read_fashion_mnist(str(tmp_path)), room=2**29)
    os.truncate(path, 2**40)
    assert "it is a sparse file" in message_of(
        lambda: read_fashion_mnist(str(tmp_path)), room=2**29
    )


def test_a_file_that_really_shrinks_a_lot_is_read(tmp_path: Path) -> None:
    write_idx(tmp_path, packed=True)
    images = gzip.compress(idx(np.zeros((120, 200, 200))))
    assert len(images) < 120 * 200 * 200 / 500
    (tmp_path / f"{IMAGES}.gz").write_bytes(images)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(idx(np.zeros((40, 200, 200))))
    )
    assert confined(lambda: tuple(read_fashion_mnist(str(tmp_path))[0].x.shape)) == (
        120,
        1,
        200,
        200,
    )
