"""Tables out of Parquet files, where a few bytes may be a billion cells: these are counted before they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from l2i.errors import InputError
from l2i.files.safety import check_columns, check_memory, check_regular_file
from l2i.fit.options import BLANK_MARKERS, format_names

if TYPE_CHECKING:
    import pandas as pd

PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # the columns in which pandas keeps the names of rows
CELL_BYTES, LONG_CELL_BYTES = 8, 64  # bytes of a number, or of a place among words; and of a date written out
MAX_BATCH_ROWS, MAX_BATCH_CELLS = 4096, 2**22  # that are read at a time, at most
PREFIX_ENCODING = "DELTA_BYTE_ARRAY"
SHRINK_HINT = "save it as CSV, or give fewer rows or columns"


class ParquetTable(NamedTuple):
    """Columns of words and numbers, and the names of those that hold neither."""

    table: Any
    unsupported: list[str]


def read_parquet_frame(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """All rows, columns as strings or of a numeric type, missing where they are blank; and what is left out."""
    import pandas as pd

    table, unsupported = read_parquet(path)
    index_columns = [name for name in (*table.column_names, *unsupported) if PANDAS_INDEX.fullmatch(name)]
    nested = [name for name in unsupported if name not in index_columns]
    columns = {name: _load_column(path, table, name) for name in table.column_names if name not in index_columns}
    notes = [f"left out, as the row names that pandas wrote: {format_names(index_columns)}"] if index_columns else []
    notes += [f"left out, as their cells are neither words nor numbers: {format_names(nested)}"] if nested else []
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows)), tuple(notes)


def read_parquet(path: Path) -> ParquetTable:
    """All columns of words and numbers; words are held once however often they are there, as Arrow's dictionaries."""
    try:
        with check_regular_file(path).open("rb") as file:
            return _read_parquet_file(path, file)
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(f"{path} is damaged, or no Parquet file ({type(error).__name__}); write it again") from None


def _read_parquet_file(path: Path, file: Any) -> ParquetTable:
    import pyarrow.parquet as pq

    parquet_file = pq.ParquetFile(file)
    column_types = {field.name: field.type for field in parquet_file.schema_arrow}
    names = parquet_file.schema_arrow.names
    check_columns(path, max(len(names), parquet_file.metadata.num_columns))
    if len(column_types) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} has two columns named '{duplicate}'; rename one of them")
    supported = {name: column_type for name, column_type in column_types.items() if _is_supported_type(column_type)}
    leaves = {leaf: supported[name] for leaf, name in enumerate(_list_leaf_columns(parquet_file)) if name in supported}
    _check_column_chunks(parquet_file, list(leaves))
    groups = [parquet_file.metadata.row_group(number) for number in range(parquet_file.metadata.num_row_groups)]
    _check_encodings(path, groups, leaves)
    check_memory(path, _estimate_bytes(groups, leaves), SHRINK_HINT)
    reader = pq.ParquetFile(file, read_dictionary=list(supported), pre_buffer=False).reader
    table = _read_row_batches(path, reader, len(groups), list(leaves))
    return ParquetTable(table.select(list(supported)), [name for name in names if name not in supported])


def _check_column_chunks(parquet_file: Any, leaves: list[int]) -> None:
    """That what is said of columns is whole, by reading none of their rows: otherwise to ask ends the process."""
    for number in range(parquet_file.metadata.num_row_groups if leaves else 0):
        next(parquet_file.reader.iter_batches(0, [number], column_indices=leaves, use_threads=False), None)


def _read_row_batches(path: Path, reader: Any, num_groups: int, leaves: list[int]) -> Any:
    """All rows of some columns, some thousands at a time, so that words are counted before many are there."""
    import pyarrow as pa

    batch_rows = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_CELLS // max(1, len(leaves))))
    batches, text_bytes = [], 0
    for batch in reader.iter_batches(batch_rows, range(num_groups), column_indices=leaves, use_threads=False):
        batches.append(batch)
        text_bytes += sum(map(_count_text_bytes, batch.columns))
        check_memory(path, text_bytes, SHRINK_HINT)
    return pa.Table.from_batches(batches, None if batches else reader.schema_arrow)


def _check_encodings(path: Path, groups: list[Any], leaves: dict[int, Any]) -> None:
    """That no words are written as what they share with the word before: a page of that may be terabytes."""
    for group in groups:
        for column in map(group.column, leaves):
            if PREFIX_ENCODING in column.encodings:
                name = column.path_in_schema
                raise InputError(f"{path}: column '{name}' is written as {PREFIX_ENCODING}; write it as PLAIN or a dictionary")


def _is_supported_type(arrow_type: Any) -> bool:
    """Whether cells of Arrow's type are words or numbers."""
    from pyarrow import types as of

    if of.is_dictionary(arrow_type):
        return _is_supported_type(arrow_type.value_type)
    tests = (of.is_integer, of.is_floating, of.is_decimal, of.is_boolean, of.is_string, of.is_large_string)
    return any(test(arrow_type) for test in (*tests, of.is_temporal, of.is_null))


def _list_leaf_columns(parquet_file: Any) -> list[str | None]:
    """The names of the columns as they lie in the file, None for those that may have many values a row."""
    columns = map(parquet_file.schema.column, range(parquet_file.metadata.num_columns))
    return [None if column.max_repetition_level else column.path for column in columns]


def _estimate_bytes(groups: list[Any], leaves: dict[int, Any]) -> int:
    """Bytes that columns take in memory, words not counted, which may be packed in many ways."""
    from pyarrow import types as of

    cell_bytes = {leaf: LONG_CELL_BYTES if of.is_temporal(arrow_type) or of.is_decimal(arrow_type) else CELL_BYTES for leaf, arrow_type in leaves.items()}
    return sum(max(group.num_rows, group.column(leaf).num_values) * w for group in groups for leaf, w in cell_bytes.items())


def _count_text_bytes(cells: Any) -> int:
    """Bytes of all cells of words, each as often as it is there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_string_dictionary(cells.type):
        return 0
    lengths = pc.binary_length(cells.dictionary).cast(pa.int64())
    return pc.sum(pc.take(lengths, cells.indices)).as_py() or 0


def _is_string_dictionary(arrow_type: Any) -> bool:
    from pyarrow import types as of

    return bool(of.is_dictionary(arrow_type)) and bool(of.is_string(arrow_type.value_type) or of.is_large_string(arrow_type.value_type))


def _load_column(path: Path, table: Any, name: str) -> pd.Series:
    import pyarrow as pa

    try:
        return _to_series(table[name], name)
    except (pa.ArrowException, UnicodeError):  # such as times in a zone that this machine does not know
        raise InputError(
            f"{path}: column '{name}' of type {table[name].type} cannot be read here; write it as words or numbers"
        ) from None


def _to_series(column: Any, name: str) -> pd.Series:
    """A column as strings or numbers."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow_type = column.type
    if _is_string_dictionary(arrow_type):
        return pd.Series(_decode_strings(column), dtype=object, name=name)
    if pa.types.is_dictionary(arrow_type):
        return _to_series(column.cast(arrow_type.value_type), name)
    if pa.types.is_integer(arrow_type):
        dtype = np.uint64 if arrow_type == pa.uint64() else np.int64
        values = np.asarray(column.fill_null(0).to_numpy(), dtype=dtype)
        return pd.Series(pd.arrays.IntegerArray(values, np.asarray(column.is_null().to_numpy(), dtype=bool)), name=name)
    if pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type):
        return pd.Series(column.cast(pa.float64()).to_pandas(), name=name)
    strings = pc.if_else(column, "True", "False") if pa.types.is_boolean(arrow_type) else column.cast(pa.string())
    return _to_series(strings.dictionary_encode(), name)


def _decode_strings(column: Any) -> list[Any]:
    """Words without spaces around them, NaN where nothing or a blank is written; those that are alike are one."""
    chunks = column.unify_dictionaries().chunks
    stripped = [None if word is None else word.strip() for word in (chunks[0].dictionary.to_pylist() if chunks else ())]
    strings = [np.nan if word is None or word in BLANK_MARKERS else word for word in stripped]
    return [np.nan if code is None else strings[code] for chunk in chunks for code in chunk.indices.to_pylist()]
