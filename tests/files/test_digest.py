"""Checksums: runs and fits keep them, so that their values are part of the format."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from l2i.files.digest import hash_arrays, hash_bytes, hash_content, hash_file, hash_strings


def blake(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def with_length(piece: bytes) -> bytes:
    return len(piece).to_bytes(8, "little") + piece


def test_a_checksum_of_pieces_knows_where_each_of_them_ends() -> None:
    assert hash_bytes(b"ab", b"c") == blake(with_length(b"ab") + with_length(b"c"))
    different = {hash_bytes(*pieces) for pieces in ([b"abc"], [b"ab", b"c"], [b"c", b"ab"], [])}
    assert len(different) == 4


def test_a_checksum_of_strings_is_that_of_their_utf_8() -> None:
    assert hash_strings(["ä", "", "b"]) == hash_bytes("ä".encode(), b"", b"b")
    assert hash_strings(["\udcff"]) != hash_strings(["\udcfe"])  # of names that are not UTF-8


def test_a_checksum_of_arrays_is_that_of_types_shapes_and_values() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert hash_arrays(array) == hash_bytes(b"<f8 [2, 3]", array.tobytes())
    assert hash_arrays(array, array[:1]) == hash_bytes(
        b"<f8 [2, 3]", array.tobytes(), b"<f8 [1, 3]", array[:1].tobytes()
    )


@pytest.mark.parametrize(
    "other",
    [
        np.arange(6.0).reshape(3, 2),
        np.arange(6.0),
        np.arange(6.0).reshape(2, 3).view(np.int64),
        np.array([[0, 1, 2], [3, 4, np.nextafter(5, 6)]]),
    ],
)
def test_arrays_with_other_shapes_types_or_values_have_other_checksums(other: np.ndarray) -> None:
    assert hash_arrays(other) != hash_arrays(np.arange(6.0).reshape(2, 3))


def test_how_an_array_lies_in_memory_does_not_matter() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for view in (array.T, array[::2], array[:, ::-1]):
        assert hash_arrays(view) == hash_arrays(view.copy(order="C"))
    assert hash_arrays(np.empty((0, 3))) != hash_arrays(np.empty((0, 4)))


def test_a_file_and_its_content_have_one_checksum(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000  # more than is read at once
    (tmp_path / "x").write_bytes(content)
    assert hash_file(tmp_path / "x") == hash_content(content) == blake(content)
    assert hash_content(b"") == "cae66941d9efbd404e4d88758ea67670"
