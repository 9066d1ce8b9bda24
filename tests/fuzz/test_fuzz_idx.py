"""MNIST's files: damaged, plain and packed, and of other sizes than they say."""

import gzip
import struct

import pytest
from harmless import Check
from hypothesis import given
from hypothesis import strategies as st
from loaders import LOADERS
from strategies import cases, files

pytestmark = pytest.mark.slow

SIDES = st.one_of(st.integers(0, 6), st.sampled_from([255, 256, 257, 2**16, 2**31, 2**32 - 1]))


@cases(400)
@given(content=files(LOADERS["idx"].seeds()))
def test_any_idx_file_is_read_or_refused(check: Check, content: bytes) -> None:
    check("idx", content)


@cases(300)
@given(content=files(LOADERS["idx-gz"].seeds()))
def test_any_packed_idx_file_is_read_or_refused(check: Check, content: bytes) -> None:
    check("idx-gz", content)


@cases(300)
@given(
    axes=st.sampled_from([0, 1, 2, 3, 4]),
    sides=st.lists(SIDES, max_size=4),
    values=st.binary(max_size=80),
)
def test_any_sizes_are_read_or_refused(
    check: Check, axes: int, sides: list[int], values: bytes
) -> None:
    content = struct.pack(f">{1 + len(sides)}I", 0x0800 + axes, *sides) + values
    check("idx", content)
    check("idx-gz", gzip.compress(content, mtime=0))
