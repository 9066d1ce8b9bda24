"""Tables out of Parquet files, where a few bytes may be a billion cells: these are counted before they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from l2i.data.limits import check_columns, check_memory, plain_file
from l2i.errors import InputError
from l2i.own.reading import BLANKS, few

if TYPE_CHECKING:
    import pandas as pd

PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # the columns in which pandas keeps the names of rows
CELL, WORDS = 8, 64  # bytes of a number, or of a place among words; and of a date written out
ROWS, CELLS = 4096, 2**22  # that are read at a time, at most
PREFIXES = "DELTA_BYTE_ARRAY"
SMALLER = "save it as CSV, or give fewer rows or columns"


class Parquet(NamedTuple):
    """Columns of words and numbers, and the names of those that hold neither."""

    table: Any
    others: list[str]


def parquet_frame(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """All rows, columns as strings or of a numeric type, missing where they are blank; and what is left out."""
    import pandas as pd

    table, others = read_parquet(path)
    index = [name for name in (*table.column_names, *others) if PANDAS_INDEX.fullmatch(name)]
    nested = [name for name in others if name not in index]
    kept = {name: _column(path, table, name) for name in table.column_names if name not in index}
    notes = [f"left out, as the row names that pandas wrote: {few(index)}"] if index else []
    notes += [f"left out, as their cells are neither words nor numbers: {few(nested)}"] if nested else []
    return pd.DataFrame(kept, index=pd.RangeIndex(table.num_rows)), tuple(notes)


def read_parquet(path: Path) -> Parquet:
    """All columns of words and numbers; words are held once however often they are there, as Arrow's dictionaries."""
    try:
        with plain_file(path).open("rb") as file:
            return _read(path, file)
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(f"{path} is damaged, or no Parquet file ({type(error).__name__}); write it again") from None


def _read(path: Path, file: Any) -> Parquet:
    import pyarrow.parquet as pq

    found = pq.ParquetFile(file)
    kinds = {field.name: field.type for field in found.schema_arrow}
    names = found.schema_arrow.names
    check_columns(path, max(len(names), found.metadata.num_columns))
    if len(kinds) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} has two columns named '{twice}'; rename one of them")
    wanted = {name: kind for name, kind in kinds.items() if _is_plain(kind)}
    leaves = {leaf: wanted[name] for leaf, name in enumerate(_paths(found)) if name in wanted}
    _check_columns(found, list(leaves))
    groups = [found.metadata.row_group(number) for number in range(found.metadata.num_row_groups)]
    _check_packing(path, groups, leaves)
    check_memory(path, _needed(groups, leaves), SMALLER)
    reader = pq.ParquetFile(file, read_dictionary=list(wanted), pre_buffer=False).reader
    table = _table(path, reader, len(groups), list(leaves))
    return Parquet(table.select(list(wanted)), [name for name in names if name not in wanted])


def _check_columns(found: Any, leaves: list[int]) -> None:
    """That what is said of columns is whole, by reading none of their rows: otherwise to ask ends the process."""
    for number in range(found.metadata.num_row_groups if leaves else 0):
        next(found.reader.iter_batches(0, [number], column_indices=leaves, use_threads=False), None)


def _table(path: Path, reader: Any, groups: int, leaves: list[int]) -> Any:
    """All rows of some columns, some thousands at a time, so that words are counted before many are there."""
    import pyarrow as pa

    rows = max(1, min(ROWS, CELLS // max(1, len(leaves))))
    parts, words = [], 0
    for part in reader.iter_batches(rows, range(groups), column_indices=leaves, use_threads=False):
        parts.append(part)
        words += sum(map(_length, part.columns))
        check_memory(path, words, SMALLER)
    return pa.Table.from_batches(parts, None if parts else reader.schema_arrow)


def _check_packing(path: Path, groups: list[Any], leaves: dict[int, Any]) -> None:
    """That no words are written as what they share with the word before: a page of that may be terabytes."""
    for group in groups:
        for column in map(group.column, leaves):
            if PREFIXES in column.encodings:
                name = column.path_in_schema
                raise InputError(f"{path}: column '{name}' is written as {PREFIXES}; write it as PLAIN or a dictionary")


def _is_plain(kind: Any) -> bool:
    """Whether cells of Arrow's type are words or numbers."""
    from pyarrow import types as of

    if of.is_dictionary(kind):
        return _is_plain(kind.value_type)
    tests = (of.is_integer, of.is_floating, of.is_decimal, of.is_boolean, of.is_string, of.is_large_string)
    return any(test(kind) for test in (*tests, of.is_temporal, of.is_null))


def _paths(found: Any) -> list[str | None]:
    """The names of the columns as they lie in the file, None for those that may have many values a row."""
    columns = map(found.schema.column, range(found.metadata.num_columns))
    return [None if column.max_repetition_level else column.path for column in columns]


def _needed(groups: list[Any], leaves: dict[int, Any]) -> int:
    """Bytes that columns take in memory, words not counted, which may be packed in many ways."""
    from pyarrow import types as of

    widths = {leaf: WORDS if of.is_temporal(kind) or of.is_decimal(kind) else CELL for leaf, kind in leaves.items()}
    return sum(max(group.num_rows, group.column(leaf).num_values) * w for group in groups for leaf, w in widths.items())


def _length(cells: Any) -> int:
    """Bytes of all cells of words, each as often as it is there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_words(cells.type):
        return 0
    lengths = pc.binary_length(cells.dictionary).cast(pa.int64())
    return pc.sum(pc.take(lengths, cells.indices)).as_py() or 0


def _is_words(kind: Any) -> bool:
    from pyarrow import types as of

    return bool(of.is_dictionary(kind)) and bool(of.is_string(kind.value_type) or of.is_large_string(kind.value_type))


def _column(path: Path, table: Any, name: str) -> pd.Series:
    import pyarrow as pa

    try:
        return _cells(table[name], name)
    except (pa.ArrowException, UnicodeError):  # such as times in a zone that this machine does not know
        raise InputError(
            f"{path}: column '{name}' of type {table[name].type} cannot be read here; write it as words or numbers"
        ) from None


def _cells(column: Any, name: str) -> pd.Series:
    """A column as strings or numbers."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if _is_words(kind):
        return pd.Series(_words(column), dtype=object, name=name)
    if pa.types.is_dictionary(kind):
        return _cells(column.cast(kind.value_type), name)
    if pa.types.is_integer(kind):
        dtype = np.uint64 if kind == pa.uint64() else np.int64
        values = np.asarray(column.fill_null(0).to_numpy(), dtype=dtype)
        return pd.Series(pd.arrays.IntegerArray(values, np.asarray(column.is_null().to_numpy(), dtype=bool)), name=name)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pd.Series(column.cast(pa.float64()).to_pandas(), name=name)
    words = pc.if_else(column, "True", "False") if pa.types.is_boolean(kind) else column.cast(pa.string())
    return _cells(words.dictionary_encode(), name)


def _words(column: Any) -> list[Any]:
    """Words without spaces around them, NaN where nothing or a blank is written; those that are alike are one."""
    chunks = column.unify_dictionaries().chunks
    plain = [None if word is None else word.strip() for word in (chunks[0].dictionary.to_pylist() if chunks else ())]
    known = [np.nan if word is None or word in BLANKS else word for word in plain]
    return [np.nan if place is None else known[place] for chunk in chunks for place in chunk.indices.to_pylist()]
