"""Pickles and .mat files of a stranger.

CIFAR's and AFLW's readers run nothing, and fill neither memory nor stack.
"""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bombs import zlib_zeros
from confined import confined, message_of
from scipy.io import savemat

from formats import python2_pickle, write_cifar10, write_imm
from l2i.data.datasets.cifar import read_cifar10
from l2i.data.datasets.faces import read_imm

ENCODE = b"c_codecs\nencode\nq\0"


def text(word: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word


PROGRAMS = {
    "reduce": b"cos\nsystem\n(S'touch touched'\ntR.",
    "reduce posix": b"cposix\nsystem\n(S'touch touched'\ntR.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0dtouch touched\x85R.",
    "inst": b"(S'touch touched'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'touch touched'\no.",
    "newobj": b"\x80\x02csubprocess\nPopen\n(S'touch'\nS'touched'\nl\x85\x81.",
    "newobj ex": b"\x80\x04\x8c\x0asubprocess\x8c\x05Popen\x93]"
    b"(\x8c\x05touch\x8c\x07touchede\x85}\x92.",
    "build": b"c__main__\n__builtins__\n}S'x'\nS'y'\nsb.",
    "build of what is admitted": ENCODE + b"(N}S'made'\n}st" + b"b.",
    "ext": b"\x80\x02\x82\x01.",
    "ext 4": b"\x80\x02\x84\xff\xff\xff\x7f.",
    "persistent id": b"P/etc/passwd\n.",
    "persistent id of an object": b"(S'a'\nS'b'\ntQ.",
    "attributes of a class": b"\x80\x04\x8c\x05numpy\x8c\x1andarray.__class__.__base__\x93.",
    "import alone": b"cantigravity\nfly\n.",
    "eval": b"c__builtin__\neval\n(S'1'\ntR.",
    "getattr": b"c__builtin__\ngetattr\n(cos\npath\nS'x'\ntR.",
    "buffers": b"\x80\x05\x97.",
}
BOMBS = {
    "place in memory": b"}r\xff\xff\xff\x7f.",
    "place in memory as text": b"}p99999999999\n.",
    "length": b"\x80\x05\x8e\xff\xff\xff\xff\x0f\0\0\0a.",
    "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
    "tuples as a key": b"}" + b")" + b"\x85" * 1_000_000 + b"I1\ns.",
    "tuples as keys of another": b"})" + b"\x85" * 9 + b"q\1" + b"0h\1\x85" * 3 + b"I1\ns.",
    "tuples by marks": b"}" + b"(" * 500_000 + b"t" * 500_000 + b"I1\ns.",
    "lists within lists": b"]" * 100_000 + b"a" * 99_999 + b".",
    "a number of many digits": b"I" + b"9" * 5_000_000 + b"\n.",
}


def loaded(root: Path, program: bytes) -> str:
    """What reading CIFAR comes to where one of its files is a program."""
    write_cifar10(root, per_class=1, test_per_class=1)
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(program)

    def read() -> Any:
        os.chdir(root)
        return read_cifar10(str(root))

    actual = message_of(read, room=2**29)
    assert not (root / "touched").exists()
    assert "data_batch_3" in actual
    return actual


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_instruction_of_a_pickle_runs_anything(name: str, tmp_path: Path) -> None:
    actual = loaded(tmp_path, PROGRAMS[name])
    assert "could run code, so it was not loaded" in actual or "is damaged" in actual


@pytest.mark.parametrize("name", BOMBS)
def test_a_few_bytes_fill_neither_memory_nor_stack(name: str, tmp_path: Path) -> None:
    assert "is damaged" in loaded(tmp_path, BOMBS[name])


def test_lists_that_are_there_twice_each_are_not_written_out(tmp_path: Path) -> None:
    labels: Any = [0, 1]
    for _ in range(40):
        labels = [labels, labels]
    rows = np.zeros((2, 3072), dtype=np.uint8)
    program = pickle.dumps({b"data": rows, b"labels": labels}, protocol=2)
    assert len(program) < 20_000
    assert "labels is not a list of integers" in loaded(tmp_path, program)


def test_a_text_that_is_encoded_again_and_again_is_one(tmp_path: Path) -> None:
    again = b"h\0h\1" + text(b"latin1") + b"\x86R"
    program = b"]" + ENCODE + b"0" + text(b"a" * 1_000_000) + b"q\x010(" + again * 5000 + b"e."
    assert "is damaged" in loaded(tmp_path, program)  # a list, where a dict should be


def test_a_file_that_python_3_wrote_is_still_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path, per_class=2, test_per_class=1)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    fields = pickle.loads(path.read_bytes(), encoding="bytes")
    for protocol in (2, 4):
        path.write_bytes(pickle.dumps(fields, protocol=protocol))
        assert confined(lambda: len(read_cifar10(str(tmp_path))[0].x)) == 20
    path.write_bytes(python2_pickle(fields))
    assert confined(lambda: len(read_cifar10(str(tmp_path))[0].x)) == 20


def element(kind: int, body: bytes) -> bytes:
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


def matrix(name: bytes, shape: tuple[int, int], kind: int) -> bytes:
    """The start of a variable of a .mat file, of one of MATLAB's classes."""
    flags = element(6, struct.pack("<II", kind, 0))
    return flags + element(5, struct.pack("<ii", *shape)) + element(1, name)


def mat(path: Path, *elements: bytes) -> None:
    path.write_bytes(
        b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + b"".join(elements)
    )


CELL, DOUBLE = 1, 6
PACKED = 15


def points(root: Path) -> Path:
    write_imm(root, train=3, test=3)
    return next(root.rglob("aflw_train_keypoints.mat"))


def test_points_that_unpack_to_gibibytes_are_refused(tmp_path: Path) -> None:
    path = points(tmp_path)
    mat(path, struct.pack("<II", PACKED, len(zlib_zeros(2048))) + zlib_zeros(2048))
    assert "would take 1.0 GiB of memory" in message_of(lambda: read_imm(str(tmp_path)), room=2**29)


@pytest.mark.parametrize("packed", [False, True])
def test_points_that_are_two_thousand_million_cells_are_refused(
    tmp_path: Path, packed: bool
) -> None:
    path = points(tmp_path)
    whole = element(14, matrix(b"gt", (2**31 - 1, 1), CELL))
    mat(path, element(PACKED, zlib.compress(whole)) if packed else whole)
    assert "is missing, damaged, or lacks gt and hw" in message_of(
        lambda: read_imm(str(tmp_path)), room=2**29
    )


def test_points_of_a_gigantic_shape_make_no_room(tmp_path: Path) -> None:
    path = points(tmp_path)
    body = matrix(b"gt", (2**31 - 1, 2**31 - 1), DOUBLE) + struct.pack("<II", 9, 2**32 - 8)
    mat(path, struct.pack("<II", 14, len(body)) + body)
    assert "is missing, damaged, or lacks gt and hw" in message_of(
        lambda: read_imm(str(tmp_path)), room=2**29
    )


def test_points_as_objects_are_refused(tmp_path: Path) -> None:
    path = points(tmp_path)
    savemat(path, {"gt": np.array([{"a": 1}, "b"], dtype=object), "hw": np.ones((3, 2))})
    assert "is missing, damaged, or lacks gt and hw" in message_of(lambda: read_imm(str(tmp_path)))
