"""CIFAR's pickles: damaged, of other fields, and of instructions in any order."""

import pickle
import pickletools

import numpy as np
import pytest
from harmless import Check
from hypothesis import given
from hypothesis import strategies as st
from loaders import LOADERS
from seeds import cifar_fields
from strategies import LEAVES, cases, files

from formats import python2_pickle

pytestmark = pytest.mark.slow

OPCODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]
NAMES = [
    b"cnumpy\ndtype\n",
    b"cnumpy\nndarray\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"c_codecs\nencode\n",
]
PIECES = st.one_of(
    st.sampled_from(OPCODES), st.sampled_from(NAMES), st.binary(max_size=4), st.just(b"K\x01")
)


@cases(800)
@given(content=files(LOADERS["pickle"].seeds()))
def test_any_pickle_is_read_or_refused(check: Check, content: bytes) -> None:
    check("pickle", content)


@cases(800)
@given(pieces=st.lists(PIECES, max_size=30))
def test_any_instructions_are_read_or_refused(check: Check, pieces: list[bytes]) -> None:
    whole = python2_pickle({b"data": np.zeros((1, 2), np.uint8)})
    check("pickle", whole[:-1] + b"".join(pieces) + b".")


ROWS = st.one_of(
    LEAVES, st.sampled_from(["u1", "i8", ">u2", "f4"]).map(lambda code: np.zeros((2, 3072), code))
)
LABELS = st.one_of(
    LEAVES,
    st.lists(LEAVES, max_size=3),
    st.sampled_from(["u1", "f4", "u8"]).map(lambda c: np.ones(2, c)),
)


@cases(500)
@given(rows=ROWS, labels=LABELS, protocol=st.sampled_from([0, 1, 2, 3, 4, 5]))
def test_any_fields_are_read_or_refused(
    check: Check, rows: object, labels: object, protocol: int
) -> None:
    try:
        content = pickle.dumps({**cifar_fields(), b"data": rows, b"fine_labels": labels}, protocol)
    except UnicodeEncodeError:  # half a character, which protocol 0 cannot write
        return
    check("pickle", content)
