"""Read tables from Parquet files, whose cells are counted first: a few bytes may be a billion."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from l2i.errors import InputError
from l2i.files.safety import check_columns, check_memory, check_regular_file, translate_any_error
from l2i.fit.formatting import format_names
from l2i.fit.options import BLANK_MARKERS
from l2i.fit.readers.columns import check_unique_names

if TYPE_CHECKING:
    import pandas as pd

PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # columns in which pandas saves row names
CELL_BYTES, LONG_CELL_BYTES = 8, 64  # of a number or dictionary index; of a date written out
MAX_BATCH_ROWS, MAX_BATCH_CELLS = 4096, 2**22
PREFIX_ENCODING = "DELTA_BYTE_ARRAY"
SHRINK_HINT = "save it as CSV, or use fewer rows or columns"


class ParquetTable(NamedTuple):
    """An Arrow table of strings and numbers, and the names of the other columns."""

    table: Any
    unsupported: list[str]


def read_parquet_frame(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Read columns as strings or of a numeric type, NaN where blank, and note what is ignored."""
    import pandas as pd

    table, unsupported = read_parquet(path)
    all_names = (*table.column_names, *unsupported)
    index_columns = [name for name in all_names if PANDAS_INDEX.fullmatch(name)]
    nested = [name for name in unsupported if name not in index_columns]
    names = [name for name in table.column_names if name not in index_columns]
    columns = {name: _load_column(path, table, name) for name in names}
    notes = []
    if index_columns:
        notes.append(f"ignored (index written by pandas): {format_names(index_columns)}")
    if nested:
        notes.append(f"ignored (neither strings nor numbers): {format_names(nested)}")
    return pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows)), tuple(notes)


def read_parquet(path: Path, content: bytes | None = None) -> ParquetTable:
    """Read all columns of strings and numbers, strings as Arrow dictionaries.

    `content` is that of the file, if it has been read already.
    """
    problem = f"{path} is damaged, or not a Parquet file"
    with (
        translate_any_error(problem, "write it again"),
        check_regular_file(path).open("rb") if content is None else BytesIO(content) as file,
    ):
        return _read_parquet_file(path, file)


def _read_parquet_file(path: Path, file: Any) -> ParquetTable:
    import pyarrow.parquet as pq

    parquet_file = pq.ParquetFile(file)
    schema, metadata = parquet_file.schema_arrow, parquet_file.metadata
    check_columns(path, max(len(schema.names), metadata.num_columns))
    check_unique_names(path, schema.names)
    supported = {field.name: field.type for field in schema if _is_supported_type(field.type)}
    leaves = {  # columns as they lie in the file, without those of several values per row
        index: supported[column.path]
        for index, column in enumerate(map(parquet_file.schema.column, range(metadata.num_columns)))
        if column.path in supported and not column.max_repetition_level
    }
    _check_column_chunks(parquet_file, list(leaves))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    _check_encodings(path, groups, leaves)
    check_memory(path, _estimate_bytes(groups, leaves), SHRINK_HINT)
    reader = pq.ParquetFile(file, read_dictionary=list(supported), pre_buffer=False).reader
    table = _read_row_batches(path, reader, len(groups), list(leaves))
    unsupported = [name for name in schema.names if name not in supported]
    return ParquetTable(table.select(list(supported)), unsupported)


def _is_supported_type(arrow_type: Any) -> bool:
    """Return whether cells of an Arrow type are strings or numbers."""
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return _is_supported_type(arrow_type.value_type)
    is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type)
    is_plain = is_number or types.is_boolean(arrow_type) or types.is_null(arrow_type)
    is_written_out = types.is_decimal(arrow_type) or types.is_temporal(arrow_type)
    return bool(is_plain or is_written_out or _is_string_type(arrow_type))


def _is_string_type(arrow_type: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type))


def _is_string_dictionary(arrow_type: Any) -> bool:
    from pyarrow import types

    return bool(types.is_dictionary(arrow_type)) and _is_string_type(arrow_type.value_type)


def _check_column_chunks(parquet_file: Any, leaves: list[int]) -> None:
    """Check column metadata by reading no rows; using damaged ones later would end the process."""
    reader = parquet_file.reader
    for number in range(parquet_file.metadata.num_row_groups if leaves else 0):
        next(reader.iter_batches(0, [number], column_indices=leaves, use_threads=False), None)


def _check_encodings(path: Path, groups: list[Any], leaves: dict[int, Any]) -> None:
    """Refuse strings that repeat a prefix of the previous one: a page may be terabytes."""
    for group in groups:
        for column in map(group.column, leaves):
            if PREFIX_ENCODING in column.encodings:
                problem = f"column '{column.path_in_schema}' is encoded as {PREFIX_ENCODING}"
                raise InputError(f"{path}: {problem}; use plain or dictionary encoding")


def _estimate_bytes(groups: list[Any], leaves: dict[int, Any]) -> int:
    """Return the bytes of columns in memory, without strings, which may be compressed."""
    from pyarrow import types

    total = 0
    for leaf, arrow_type in leaves.items():
        is_long = types.is_temporal(arrow_type) or types.is_decimal(arrow_type)
        num_cells = sum(max(group.num_rows, group.column(leaf).num_values) for group in groups)
        total += num_cells * (LONG_CELL_BYTES if is_long else CELL_BYTES)
    return total


def _read_row_batches(path: Path, reader: Any, num_groups: int, leaves: list[int]) -> Any:
    """Read a few thousand rows at a time, and count the bytes of strings meanwhile."""
    import pyarrow as pa

    batch_rows = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_CELLS // max(1, len(leaves))))
    batches, text_bytes = [], 0
    for batch in reader.iter_batches(
        batch_rows, range(num_groups), column_indices=leaves, use_threads=False
    ):
        batches.append(batch)
        text_bytes += sum(map(_count_text_bytes, batch.columns))
        check_memory(path, text_bytes, SHRINK_HINT)
    return pa.Table.from_batches(batches, None if batches else reader.schema_arrow)


def _count_text_bytes(cells: Any) -> int:
    """Return the bytes of all strings, repeated ones counted each time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_string_dictionary(cells.type):
        return 0
    lengths = pc.binary_length(cells.dictionary).cast(pa.int64())
    return pc.sum(pc.take(lengths, cells.indices)).as_py() or 0


def _load_column(path: Path, table: Any, name: str) -> pd.Series:
    import pyarrow as pa

    try:
        return _to_series(table[name], name)
    except (pa.ArrowException, UnicodeError):  # such as times in a zone unknown to this machine
        problem = f"column '{name}' of type {table[name].type} cannot be read"
        raise InputError(f"{path}: {problem}; save it as strings or numbers") from None


def _to_series(column: Any, name: str) -> pd.Series:
    """Convert an Arrow column to strings or numbers."""
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
        is_null = np.asarray(column.is_null().to_numpy(), dtype=bool)
        return pd.Series(pd.arrays.IntegerArray(values, is_null), name=name)
    if pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type):
        return pd.Series(column.cast(pa.float64()).to_pandas(), name=name)
    if pa.types.is_boolean(arrow_type):
        strings = pc.if_else(column, "True", "False")
    else:
        strings = column.cast(pa.string())
    return _to_series(strings.dictionary_encode(), name)


def _decode_strings(column: Any) -> list[Any]:
    """Return stripped strings, NaN where blank; equal ones are the same object, to save memory."""
    chunks = column.unify_dictionaries().chunks
    words = chunks[0].dictionary.to_pylist() if chunks else []
    stripped = [BLANK_MARKERS[0] if word is None else word.strip() for word in words]
    strings = [np.nan if word in BLANK_MARKERS else word for word in stripped]
    codes = (code for chunk in chunks for code in chunk.indices.to_pylist())
    return [np.nan if code is None else strings[code] for code in codes]
