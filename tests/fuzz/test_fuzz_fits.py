"""The three files of a fit: fit.json with other values, rows and outputs damaged or retyped."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harmless import Check
from hypothesis import given
from hypothesis import strategies as st
from loaders import LOADERS
from safetensors.numpy import save
from strategies import cases, files, json_files

pytestmark = pytest.mark.slow

FITS = [json.loads(content) for content in LOADERS["fit-json"].seeds()]
ROWS = {
    "id": ["1", "2", "3", "4"],
    "part": ["labeled", "validation", "test", "unlabeled"],
    "changes": [0, 1, 2, 3],
}
OUTPUTS: dict[str, Any] = {
    "outputs.l2i": np.ones((4, 2), np.float32),
    "spread": np.ones((4, 2), np.float32),
}


@cases(1000)
@given(content=json_files(FITS))
def test_any_fit_json_is_read_or_refused(check: Check, content: bytes) -> None:
    check("fit-json", content)


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    cells = st.one_of(
        st.none(),
        st.integers(-9, 9),
        st.floats(),
        st.text(max_size=3),
        st.lists(st.just(1), max_size=1),
    )
    made: dict[str, Any] = dict(ROWS)
    for name in draw(st.lists(st.sampled_from(sorted(made)), min_size=1, max_size=2, unique=True)):
        made[name] = [draw(cells)] * 4
        if draw(st.booleans()):
            del made[name]
    count = draw(st.sampled_from([4, 4, 4, 0, 3]))
    return pd.DataFrame(made).head(count).to_parquet(index=draw(st.booleans()))


@cases(300)
@given(content=st.one_of(rows(), files(LOADERS["fit-rows"].seeds())))
def test_any_rows_of_a_fit_are_read_or_refused(check: Check, content: bytes) -> None:
    check("fit-rows", content)


@st.composite
def outputs(draw: st.DrawFn) -> bytes:
    made = {**OUTPUTS, "given": draw(st.sampled_from([np.zeros((4, 2)), np.array([0, 1, 0, -1])]))}
    for name in draw(st.lists(st.sampled_from(sorted(made)), min_size=1, max_size=2, unique=True)):
        shape = draw(
            st.sampled_from([*3 * [(4, 2)], *2 * [(4,)], (4, 1), (2, 2), (0, 2), (4, 2, 1), ()])
        )
        value = draw(st.sampled_from([0, 1, -1, np.nan, np.inf]))
        with np.errstate(invalid="ignore"):
            made[name] = np.full(shape, value).astype(
                draw(st.sampled_from(["f4", "f8", "f2", "i8", "u1", "?"]))
            )
        if not draw(st.integers(0, 4)):
            del made[name]
    return save(made)


@cases(600)
@given(content=st.one_of(outputs(), files(LOADERS["fit-outputs"].seeds())))
def test_any_outputs_of_a_fit_are_read_or_refused(check: Check, content: bytes) -> None:
    check("fit-outputs", content)
