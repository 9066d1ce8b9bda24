"""Tables from CSV and Parquet files, before anything is decided about their columns: words, numbers and blanks."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from l2i.errors import InputError
from l2i.own.reading import ReadOptions, few

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".txt", ".parquet")
BLANKS = ("", "NA", "N/A", "nan", "NaN", "null", "None", "?")  # cells that hold nothing
SEPARATORS = (",", ";", "\t", "|")
PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # the columns in which pandas keeps the names of rows
TOO_WIDE = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


class Raw(NamedTuple):
    """A table as it was found: columns are strings or of a numeric type, missing where they are blank."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


def read_table(path: Path, *, encoding: str, separator: str) -> Raw:
    """All rows and columns of a file that has both."""
    if not path.stat().st_size:
        raise InputError(f"{path} is empty; give a table with a header and rows")
    raw = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path, encoding, separator)
    if not len(raw.frame):
        raise InputError(f"{path} has a header and no rows; give a table with rows")
    return raw


def _csv(path: Path, encoding: str, separator: str) -> Raw:
    import pandas as pd

    used = actual_encoding(path, encoding)
    try:
        between = chosen_separator(path, used, separator)
        names = _header(path, used, between)
        frame = pd.read_csv(
            path, sep=between, encoding=used, dtype=str, na_filter=False, skip_blank_lines=len(names) > 1
        )
    except UnicodeError:
        wanted = "UTF-8" if used == "utf-8-sig" else used
        raise InputError(f"{path} is not {wanted}; give --encoding latin-1, or save it as UTF-8") from None
    except LookupError:
        raise InputError(f"there is no encoding '{encoding}'; give --encoding utf-8 or latin-1") from None
    except (ValueError, csv.Error) as error:  # pandas' errors are ValueErrors
        raise _unparsed(path, str(error)) from None
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes a cell more in the first row for names of rows
        raise InputError(f"{path}, line 2: more cells than the header has names; mend the header or the line")
    frame.columns = [str(name).strip() for name in frame.columns]
    cells, notes = _cells(frame, decimal_comma=between != ",")
    said = [] if between == "," else [f"cells are separated by {'tabs' if between == chr(9) else repr(between)}"]
    return Raw(cells, (*said, *notes))


def _unparsed(path: Path, message: str) -> InputError:
    wide = TOO_WIDE.search(message)
    if wide:
        expected, line, saw = wide.groups()
        return InputError(
            f"{path}, line {line}: {saw} cells where there should be {expected}; mend the line, with quotes around "
            "cells that hold the separator"
        )
    return InputError(f"{path} cannot be read as a table ({' '.join(message.split())[:120]}); mend it")


def actual_encoding(path: Path, encoding: str) -> str:
    """The encoding that the file's first bytes prove, or the one given."""
    with path.open("rb") as file:
        start = file.read(3)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return "utf-8-sig" if plain or start == b"\xef\xbb\xbf" else encoding


def chosen_separator(path: Path, encoding: str, separator: str) -> str:
    """The separator given, or the one that the first line holds most of."""
    if separator != "auto":
        given = "\t" if separator in ("tab", "\\t") else separator
        if len(given) != 1:
            raise InputError(f"--separator {separator!r} is not a single character; give one, or 'tab' or 'auto'")
        return given
    with path.open(encoding=encoding, newline="") as file:
        line = re.sub(r'"[^"]*"', "", next((line for line in file if line.strip()), ""))
    return max(SEPARATORS, key=line.count)  # the first of equals, so a comma where there is none


def _header(path: Path, encoding: str, separator: str) -> list[str]:
    with path.open(encoding=encoding, newline="") as file:
        filled = (row for row in csv.reader(file, delimiter=separator) if any(cell.strip() for cell in row))
        names = [name.strip() for name in next(filled, [])]
    if not names:
        raise InputError(f"{path} is empty; give a table with a header and rows")
    _unique(path, [name for name in names if name])
    return names


def _unique(path: Path, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{path} has two columns named '{name}'; rename one of them")
        seen.add(name)


def _cells(frame: pd.DataFrame, *, decimal_comma: bool) -> tuple[pd.DataFrame, list[str]]:
    """The strings of a table without spaces around them, missing where a blank is written; and what was read so."""
    import pandas as pd

    columns: dict[str, Any] = {}
    blank: dict[str, int] = {}
    commas: list[str] = []
    for name in frame.columns:
        cells = frame[name].str.strip()
        for word, times in cells[cells.isin(BLANKS[1:])].value_counts().items():
            blank[word] = blank.get(word, 0) + int(times)
        cells = cells.mask(cells.isin(BLANKS))
        if decimal_comma and _has_decimal_commas(cells):
            cells = cells.str.replace(",", ".", regex=False)
            commas.append(name)
        columns[name] = cells
    listed = ", ".join(f"'{word}' ({times:,})" for word, times in sorted(blank.items()))
    notes = [f"cells that count as blank: {listed}"] if blank else []
    notes += [f"decimal commas are read as points in {few(commas)}"] if commas else []
    return pd.DataFrame(columns, index=frame.index), notes


def _has_decimal_commas(cells: pd.Series) -> bool:
    there = cells.dropna()
    return bool(there.str.fullmatch(r"[+-]?\d+(,\d+)?").all() and there.str.contains(",", regex=False).any())


def _parquet(path: Path) -> Raw:
    import pandas as pd
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(f"{path} is damaged, or no Parquet file ({type(error).__name__}); write it again") from None
    _unique(path, table.column_names)
    index = [name for name in table.column_names if PANDAS_INDEX.fullmatch(name)]
    columns = {name: _arrow_cells(table[name], str(name)) for name in table.column_names if name not in index}
    nested = [name for name, cells in columns.items() if cells is None]
    notes = [f"left out, as the row names that pandas wrote: {few(index)}"] if index else []
    notes += [f"left out, as their cells are neither words nor numbers: {few(nested)}"] if nested else []
    kept = {name: cells for name, cells in columns.items() if cells is not None}
    return Raw(pd.DataFrame(kept, index=pd.RangeIndex(table.num_rows)), tuple(notes))


def _arrow_cells(column: Any, name: str) -> pd.Series | None:
    """A Parquet column as strings or numbers; None for lists, structures and bytes."""
    import pandas as pd
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _arrow_cells(column.cast(kind.value_type), name)
    if pa.types.is_integer(kind):
        return pd.Series(pd.array(column.to_pylist(), dtype="UInt64" if kind == pa.uint64() else "Int64"), name=name)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pd.Series(column.cast(pa.float64()).to_pandas(), name=name)
    if pa.types.is_boolean(kind):
        words = [None if value is None else str(value) for value in column.to_pylist()]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_temporal(kind):
        words = column.cast(pa.string()).to_pylist()
    elif pa.types.is_null(kind):
        words = [None] * len(column)
    else:
        return None
    cells = pd.Series(words, dtype=object, name=name).str.strip()
    return cells.mask(cells.isin(BLANKS))


def checked_columns(options: ReadOptions, columns: Sequence[str], path: Path) -> None:
    """Whether the columns that the options name are there, each named once."""
    single = {"id": options.id, "image": options.image}
    named = {name: getattr(options, name) for name in ("target", "text", "category", "ignore")}
    named |= {name: (value,) for name, value in single.items() if value is not None}
    seen: dict[str, str] = {}
    for option, names in named.items():
        for name in names:
            if name not in columns:
                near = get_close_matches(name, columns, n=1)
                hint = f"perhaps you meant '{near[0]}'" if near else f"it has {few(columns)}"
                raise InputError(f"--{option} '{name}': {path} has no such column; {hint}")
            if name in seen:
                raise InputError(f"column '{name}' is named by --{seen[name]} and by --{option}; name it once")
            seen[name] = option


def row_ids(frame: pd.DataFrame, column: str | None) -> list[str]:
    """The ids of all rows, each another: those of a column, or numbers from 1."""
    if column is None:
        return [str(row) for row in range(1, len(frame) + 1)]
    cells = frame[column]
    blank, twice = cells.isna().to_numpy(), cells.duplicated().to_numpy()
    if blank.any():
        raise InputError(f"column '{column}' of ids is blank in row {int(blank.argmax()) + 1}; fill it in")
    if twice.any():
        row = int(twice.argmax())
        raise InputError(f"the id '{cells.iloc[row]}' in row {row + 1} is another row's too; give each row its own")
    return [str(cell) for cell in cells.tolist()]
