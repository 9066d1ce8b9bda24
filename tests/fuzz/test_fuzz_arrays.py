"""Arrays of one's own, and faces, in .npz files of odd types, shapes and bytes."""

from typing import Any

import numpy as np
import pytest
from harmless import Check
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loaders import LOADERS
from seeds import faces as whole_faces
from seeds import npz
from strategies import cases, files

pytestmark = pytest.mark.slow

PLAIN = st.one_of(
    hnp.floating_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    st.sampled_from(
        ["?", "S3", "U2", "c8", "M8[s]", "m8[ns]", "f16", "V2", "i4,f4", "S0", "U0"]
    ).map(np.dtype),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)
ROWS = st.integers(0, 5)


@st.composite
def likely(draw: st.DrawFn) -> bytes:
    """A table or images and labels of some plain type, with odd values."""
    rows = draw(st.integers(2, 5))
    shape = draw(
        st.sampled_from(
            [(3,), (1,), (4, 5), (3, 4, 4), (6, 5, 3), (2, 4, 4), (4, 4, 2), (1, 1), (0, 3)]
        )
    )
    values = draw(
        st.sampled_from(
            [np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_, np.longdouble]
        )
    )
    x = draw(hnp.arrays(values, (rows, *shape)))
    labels = st.sampled_from(
        [np.array([0, 1, -1, 0, 1]), np.array(["a", "b", "", "a", "c"]), np.arange(5.0)]
    )
    other = st.sampled_from([np.float64, np.float32, np.int8, np.uint64, "S2", "U2"]).flatmap(
        lambda d: hnp.arrays(d, 5)
    )
    points = hnp.arrays(np.float64, (5, 2, 2), elements=st.floats(0, 4))
    return npz(x=x, y=draw(st.one_of(labels, labels, other, points))[:rows])


@st.composite
def arrays(draw: st.DrawFn) -> bytes:
    """x and y, most with as many rows, and perhaps others."""
    rows, made = draw(ROWS), {}
    for name in draw(
        st.sampled_from([("x", "y"), ("x", "y"), ("x", "y"), ("x", "y", "z"), ("x",), ("y",), ()])
    ):
        inner = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
        shape = (rows, *inner) if draw(st.integers(0, 9)) else draw(SHAPES)
        made[name] = drawn(draw, shape)
    return npz(**made)


def drawn(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    dtype = draw(PLAIN)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = draw(
        st.one_of(
            st.binary(min_size=size, max_size=size), st.just(b"\0" * size), st.just(b"\xff" * size)
        )
    )
    return np.ndarray(shape, dtype, raw) if dtype.itemsize else np.zeros(shape, dtype)


@cases(800)
@given(content=st.one_of(likely(), likely(), arrays()))
def test_any_arrays_are_read_or_refused(check: Check, content: bytes) -> None:
    check("npz", content)


@cases(500)
@given(content=files(LOADERS["npz"].seeds()))
def test_any_npz_is_read_or_refused(check: Check, content: bytes) -> None:
    check("npz", content)


@cases(800)
@given(content=files(LOADERS["npz-array"].seeds()))
def test_any_array_of_an_npz_is_read_or_refused(check: Check, content: bytes) -> None:
    check("npz-array", content)


@st.composite
def faces(draw: st.DrawFn) -> bytes:
    """Whole faces, but for one or two arrays."""
    made: dict[str, Any] = whole_faces()
    for name in draw(st.lists(st.sampled_from(sorted(made)), min_size=1, max_size=2, unique=True)):
        match draw(st.sampled_from(["dtype", "value", "shape", "remove"])):
            case "dtype":
                made[name] = made[name].astype(
                    draw(st.sampled_from(["f2", "i8", "u1", "c16", "f16", "U4", "?"]))
                )
            case "value" if made[name].dtype.kind == "f":
                made[name] = np.full_like(made[name], draw(st.floats(width=16)))
                made[name].flat[draw(st.integers(0, 9))] = draw(st.floats())
            case "shape":
                made[name] = drawn(draw, draw(SHAPES))
            case _:
                del made[name]
    return npz(**made)


@cases(400)
@given(content=st.one_of(faces(), faces(), files(LOADERS["landmarks"].seeds())))
def test_any_faces_are_read_or_refused(check: Check, content: bytes) -> None:
    check("landmarks", content)
