"""Tables of one's own: CSV and Parquet files of odd cells, types and bytes."""

import decimal
from typing import Any

import pyarrow as pa
import pytest
from harmless import Check
from hypothesis import given, reject
from hypothesis import strategies as st
from loaders import LOADERS
from seeds import parquet
from strategies import cases, damaged, files

pytestmark = pytest.mark.slow

NAMES = ["kind", "size", "age", "note", "city", "id"]
WORDS = [
    "",
    "cat",
    "dog",
    "1",
    "2.0",
    "-3e2",
    "1e999",
    "nan",
    "inf",
    "0x10",
    "1_0",
    "½",
    "٣",
    "²",
    "1,5",
    "True",
    "NA",
    "\0",
]
CELLS = st.one_of(
    st.sampled_from(WORDS),
    st.text(st.sampled_from("ab1,;\t|\"'\n\r é€\0\ufeff\u2028"), max_size=6),
    st.integers().map(str),
    st.floats().map(str),
    st.just("9" * 5000),
)
ENCODINGS = st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])


PLAIN = [
    st.sampled_from(["1", "2", "3.5", "-4", ""]),
    st.sampled_from(["cat", "dog", "", "cow"]),
    st.integers(0, 9).map(str),
    st.text(st.sampled_from("ab c"), max_size=9),
]


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Columns of numbers or words with some odd cells, under names that are looked for."""
    names = draw(st.permutations(NAMES))[: draw(st.sampled_from([6, 6, 6, 5, 1]))]
    kinds = {name: draw(st.sampled_from([*PLAIN, CELLS])) for name in names}
    rows = [[draw(kinds[name]) for name in names] for _ in range(draw(st.integers(0, 7)))]
    for _ in range(draw(st.integers(0, 2)) if rows else 0):
        rows[draw(st.integers(0, len(rows) - 1))][draw(st.integers(0, len(names) - 1))] = draw(
            CELLS
        )
    if not draw(st.integers(0, 5)):
        rows.append(draw(st.lists(CELLS, max_size=8)))
    between, end = draw(st.sampled_from(";;,\t|")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quoted = draw(st.booleans())
    lines = [
        between.join(f'"{cell}"' if quoted else cell for cell in row) for row in (names, *rows)
    ]
    return end.join(lines).encode(draw(ENCODINGS), "replace")


@cases(600)
@given(content=tables())
def test_any_table_is_read_or_refused(check: Check, content: bytes) -> None:
    check("csv", content)


@cases(600)
@given(content=files(LOADERS["csv"].seeds()))
def test_any_csv_is_read_or_refused(check: Check, content: bytes) -> None:
    check("csv", content)


TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), st.one_of(st.sampled_from(WORDS), st.text(max_size=4))),
    "large string": (pa.large_string(), st.sampled_from(WORDS)),
    "string view": (pa.string_view(), st.sampled_from(WORDS)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "double": (pa.float64(), st.floats()),
    "half": (pa.float16(), st.floats(width=16)),
    "bool": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(38, 2), st.integers(-(10**30), 10**30).map(decimal.Decimal)),
    "large decimal": (pa.decimal256(76, 0), st.integers(-(10**75), 10**75).map(decimal.Decimal)),
    "date": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "seconds": (pa.timestamp("s"), st.integers(-(2**62), 2**62)),
    "somewhere": (pa.timestamp("us", "Nowhere/City"), st.integers(-(2**62), 2**62)),
    "time": (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    "duration": (pa.duration("s"), st.integers(-(2**62), 2**62)),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(0, 9), max_size=2)),
    "struct": (pa.struct([("a", pa.int8())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    "null": (pa.null(), st.none()),
}


@st.composite
def columns(draw: st.DrawFn) -> bytes:
    """A Parquet file of columns of any type, some as a dictionary."""
    rows, made = draw(st.integers(0, 5)), {}
    for name in draw(
        st.lists(st.sampled_from([*NAMES, "day", "__index_level_0__", ""]), max_size=4, unique=True)
    ):
        kind, values = TYPES[draw(st.sampled_from(sorted(TYPES)))]
        cells = draw(st.lists(st.one_of(st.none(), values, values), min_size=rows, max_size=rows))
        array = pa.array(cells, kind)
        plain = (
            not pa.types.is_nested(kind) and not pa.types.is_null(kind) and kind != pa.string_view()
        )
        made[name] = array.dictionary_encode() if plain and draw(st.booleans()) else array
    try:
        return parquet(made)
    except pa.ArrowInvalid:  # what Arrow itself cannot write, such as a time beyond its unit's
        reject()


@cases(500)
@given(content=columns())
def test_any_columns_are_read_or_refused(check: Check, content: bytes) -> None:
    check("parquet", content)


@cases(300)
@given(content=damaged(LOADERS["parquet"].seeds()))
def test_damaged_parquet_is_read_or_refused(check: Check, content: bytes) -> None:
    check("parquet", content)
