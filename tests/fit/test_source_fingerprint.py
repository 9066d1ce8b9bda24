"""The checksums by which a fit knows its data: each part of the rows has its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up import source_of

from l2i.fit.readers.source import Source

FRAME = pd.DataFrame({"a": [1.0, 2.0, 3.0, np.nan], "b": [5.0, 6.0, 7.0, 8.0]})
TABLE = source_of(FRAME, np.array([0, 1, -1, -1]))
WORDS = replace(
    TABLE, inputs=FRAME.assign(b=["x", "y", "z", ""]), kinds={"a": "number", "b": "category"}
)
PIXELS = source_of(
    np.arange(48, dtype=np.uint8).reshape(4, 3, 2, 2),
    np.array([[0.5, 1.0], [2.0, 3.0], [np.nan, np.nan], [4.0, np.nan]]),
    sizes=np.arange(8).reshape(4, 2),
)


def changed_parts(before: Source, after: Source) -> set[str]:
    one, other = before.fingerprint(), after.fingerprint()
    return {key for key in one | other if one.get(key) != other.get(key)}


def with_cell(source: Source, row: int, column: str, value: object) -> Source:
    assert isinstance(source.inputs, pd.DataFrame)
    frame = source.inputs.copy()
    frame.loc[row, column] = value
    return replace(source, inputs=frame)


@pytest.mark.parametrize("source", [TABLE, WORDS, PIXELS])
def test_the_same_rows_have_the_same_fingerprint(source: Source) -> None:
    assert changed_parts(source, replace(source, notes=("a note",))) == set()
    assert (source.fingerprint().keys() >= {"names of the classes"}) == (source.classes is not None)


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        (TABLE, with_cell(TABLE, 1, "a", 2.5), {"labeled.inputs"}),
        (TABLE, with_cell(TABLE, 3, "a", 0.0), {"unlabeled.inputs"}),
        (WORDS, with_cell(WORDS, 0, "b", "X"), {"labeled.inputs"}),
        (WORDS, with_cell(WORDS, 2, "b", "y"), {"unlabeled.inputs"}),
        (TABLE, replace(TABLE, ids=["r1", "r0", "r2", "r3"]), {"labeled.ids"}),
        (TABLE, replace(TABLE, ids=["r0", "r1", "r2", "r9"]), {"unlabeled.ids"}),
        (TABLE, replace(TABLE, given_labels=np.array([0, 0, -1, -1])), {"labeled.labels"}),
        (TABLE, replace(TABLE, classes=("yes", "no")), {"names of the classes"}),
        (
            PIXELS,
            replace(PIXELS, sizes=np.arange(8)[::-1].reshape(4, 2)),
            {"labeled.inputs", "unlabeled.inputs"},
        ),
    ],
)
def test_a_change_is_found_in_its_part_alone(
    before: Source, after: Source, parts: set[str]
) -> None:
    assert changed_parts(before, after) == parts


def test_names_of_columns_and_the_order_of_rows_count() -> None:
    renamed = replace(
        TABLE, inputs=FRAME.rename(columns={"a": "c"}), kinds={"c": "number", "b": "number"}
    )
    assert changed_parts(TABLE, renamed) == {"labeled.inputs", "unlabeled.inputs"}
    order = [0, 2, 1, 3]  # labelled rows in the same order, and unlabelled ones too
    mixed = replace(
        TABLE,
        ids=[TABLE.ids[row] for row in order],
        inputs=FRAME.iloc[order],
        given_labels=TABLE.given_labels[order],
    )
    assert changed_parts(TABLE, mixed) == {"order of the rows"}


def test_a_row_without_one_of_its_targets_is_unlabelled() -> None:
    assert PIXELS.is_unlabeled.tolist() == [False, False, True, True]
    assert TABLE.is_unlabeled.tolist() == [False, False, True, True]
