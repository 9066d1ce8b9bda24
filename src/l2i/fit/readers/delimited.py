"""Tables from CSV and Parquet files, before anything is decided about their columns: words, numbers and blanks."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from l2i.data.datasets.imdb import allow_long_fields
from l2i.errors import InputError
from l2i.files.safety import check_columns, check_regular_file, get_disk_usage
from l2i.fit.options import BLANK_MARKERS, ReadOptions, format_names
from l2i.fit.readers.parquet import read_parquet_frame

if TYPE_CHECKING:
    import pandas as pd

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MAX_CELLS = 20_000_000  # of a table with short lines; one of whole lines has at most a cell a byte
MAX_LINE_CHARS = 2**26  # characters of a header
MIN_COLUMNS_ONE_PASS = 1000  # columns from which on pandas is faster with all lines at once
SEPARATORS = (",", ";", "\t", "|")
TOO_MANY_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


class RawTable(NamedTuple):
    """A table as it was found: columns are strings or of a numeric type, missing where they are blank."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


def read_table(path: Path, *, encoding: str, separator: str) -> RawTable:
    """All rows and columns of a file that has both."""
    if not check_regular_file(path).stat().st_size:
        raise InputError(f"{path} is empty; give a table with a header and rows")
    raw = RawTable(*read_parquet_frame(path)) if path.suffix.lower() == ".parquet" else _read_csv(path, encoding, separator)
    if not len(raw.frame):
        raise InputError(f"{path} has a header and no rows; give a table with rows")
    return raw


def _read_csv(path: Path, encoding: str, separator: str) -> RawTable:
    import pandas as pd

    file_encoding = detect_encoding(path, encoding)
    try:
        delimiter = detect_separator(path, file_encoding, separator)
        names = _read_csv_header(path, file_encoding, delimiter)
        _check_row_lengths(path, file_encoding, delimiter, len(names))
        options = {"compression": None, "low_memory": len(names) < MIN_COLUMNS_ONE_PASS, "skip_blank_lines": len(names) > 1}
        frame = pd.read_csv(path, sep=delimiter, encoding=file_encoding, dtype=str, na_filter=False, **options)
    except UnicodeError:
        encoding_name = "UTF-8" if file_encoding == "utf-8-sig" else file_encoding
        raise InputError(f"{path} is not {encoding_name}; give --encoding latin-1, or save it as UTF-8") from None
    except LookupError:
        raise InputError(f"there is no encoding '{encoding}'; give --encoding utf-8 or latin-1") from None
    except InputError:
        raise
    except (ValueError, csv.Error) as error:  # pandas' errors are ValueErrors
        raise _make_parse_error(path, str(error)) from None
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes a cell more in the first row for names of rows
        raise InputError(f"{path}, line 2: more cells than the header has names; mend the header or the line")
    frame.columns = [str(name).strip() for name in frame.columns]
    cells, notes = _clean_cells(frame, decimal_comma=delimiter != ",")
    separator_notes = [] if delimiter == "," else [f"cells are separated by {'tabs' if delimiter == chr(9) else repr(delimiter)}"]
    return RawTable(cells, (*separator_notes, *notes))


def _check_row_lengths(path: Path, encoding: str, separator: str, num_columns: int) -> None:
    """That lines of a byte are not filled up to a wide header: a table of whole lines has at most a cell a byte."""
    max_rows = max(MAX_CELLS, get_disk_usage(path)) // num_columns  # rows
    with path.open(encoding=encoding, newline="") as file:
        num_line_ends = sum(chunk.count("\n") + chunk.count("\r") for chunk in iter(partial(file.read, 2**20), ""))
    if num_line_ends <= max_rows:
        return
    with path.open(encoding=encoding, newline="") as file, allow_long_fields():  # lines within quotes are none
        num_rows = sum(1 for row in csv.reader(file, delimiter=separator) if row)
    if num_rows > max_rows:
        raise InputError(
            f"{path} has {num_columns:,} columns and many of its {num_rows:,} rows have fewer cells; mend the header, or them"
        )


def _make_parse_error(path: Path, message: str) -> InputError:
    match = TOO_MANY_FIELDS.search(message)
    if match:
        expected, line, actual = match.groups()
        return InputError(
            f"{path}, line {line}: {actual} cells where there should be {expected}; mend the line, with quotes around "
            "cells that hold the separator"
        )
    return InputError(f"{path} cannot be read as a table ({' '.join(message.split())[:120]}); mend it")


def detect_encoding(path: Path, encoding: str) -> str:
    """The encoding that the file's first bytes prove, or the one given."""
    with path.open("rb") as file:
        first_bytes = file.read(3)
    if first_bytes.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return "utf-8-sig" if is_utf8 or first_bytes == b"\xef\xbb\xbf" else encoding


def detect_separator(path: Path, encoding: str, separator: str) -> str:
    """The separator given, or the one that the first line holds most of."""
    if separator != "auto":
        delimiter = "\t" if separator in ("tab", "\\t") else separator
        if len(delimiter) != 1:
            raise InputError(f"--separator {separator!r} is not a single character; give one, or 'tab' or 'auto'")
        return delimiter
    with path.open(encoding=encoding, newline="") as file:
        line = re.sub(r'"[^"]*"', "", next((line for line in iter_short_lines(path, file) if line.strip()), ""))
    return max(SEPARATORS, key=line.count)  # the first of equals, so a comma where there is none


def iter_short_lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file, none of them longer than a header of all columns there may be."""
    while line := file.readline(MAX_LINE_CHARS):
        if len(line) == MAX_LINE_CHARS:
            raise InputError(f"{path} begins with a line of {MAX_LINE_CHARS:,} characters or more; mend it")
        yield line


def _read_csv_header(path: Path, encoding: str, separator: str) -> list[str]:
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(iter_short_lines(path, file), delimiter=separator)
        names = [name.strip() for name in next((row for row in rows if any(cell.strip() for cell in row)), [])]
    if not names:
        raise InputError(f"{path} is empty; give a table with a header and rows")
    check_columns(path, len(names))
    _check_unique_names(path, [name for name in names if name])
    return names


def _check_unique_names(path: Path, names: Sequence[str]) -> None:
    previous_names: set[str] = set()
    for name in names:
        if name in previous_names:
            raise InputError(f"{path} has two columns named '{name}'; rename one of them")
        previous_names.add(name)


def _clean_cells(frame: pd.DataFrame, *, decimal_comma: bool) -> tuple[pd.DataFrame, list[str]]:
    """The strings of a table without spaces around them, missing where a blank is written; and what was read so."""
    import pandas as pd

    columns: dict[str, Any] = {}
    blank_counts: dict[str, int] = {}
    comma_columns: list[str] = []
    for name in frame.columns:
        cells = frame[name].str.strip()
        for word, count in cells[cells.isin(BLANK_MARKERS[1:])].value_counts().items():
            blank_counts[word] = blank_counts.get(word, 0) + int(count)
        cells = cells.mask(cells.isin(BLANK_MARKERS))
        if decimal_comma and _has_decimal_commas(cells):
            cells = cells.str.replace(",", ".", regex=False)
            comma_columns.append(name)
        columns[name] = cells
    blank_list = ", ".join(f"'{word}' ({count:,})" for word, count in sorted(blank_counts.items()))
    notes = [f"cells that count as blank: {blank_list}"] if blank_counts else []
    notes += [f"decimal commas are read as points in {format_names(comma_columns)}"] if comma_columns else []
    return pd.DataFrame(columns, index=frame.index), notes


def _has_decimal_commas(cells: pd.Series) -> bool:
    present = cells.dropna()
    return bool(present.str.fullmatch(r"[+-]?\d+(,\d+)?").all() and present.str.contains(",", regex=False).any())


def check_named_columns(options: ReadOptions, columns: Sequence[str], path: Path) -> None:
    """Whether the columns that the options name are there, each named once."""
    single_columns = {"id": options.id, "image": options.image}
    option_columns = {name: getattr(options, name) for name in ("target", "text", "category", "ignore")}
    option_columns |= {name: (value,) for name, value in single_columns.items() if value is not None}
    option_by_column: dict[str, str] = {}
    for option, names in option_columns.items():
        for name in names:
            if name not in columns:
                close_matches = get_close_matches(name, columns, n=1)
                hint = f"perhaps you meant '{close_matches[0]}'" if close_matches else f"it has {format_names(columns)}"
                raise InputError(f"--{option} '{name}': {path} has no such column; {hint}")
            if name in option_by_column:
                raise InputError(f"column '{name}' is named by --{option_by_column[name]} and by --{option}; name it once")
            option_by_column[name] = option


def get_row_ids(frame: pd.DataFrame, column: str | None) -> list[str]:
    """The ids of all rows, each another: those of a column, or numbers from 1."""
    if column is None:
        return [str(row) for row in range(1, len(frame) + 1)]
    cells = frame[column]
    is_blank, is_duplicate = cells.isna().to_numpy(), cells.duplicated().to_numpy()
    if is_blank.any():
        raise InputError(f"column '{column}' of ids is blank in row {int(is_blank.argmax()) + 1}; fill it in")
    if is_duplicate.any():
        row = int(is_duplicate.argmax())
        raise InputError(f"the id '{cells.iloc[row]}' in row {row + 1} is another row's too; give each row its own")
    return [str(cell) for cell in cells.tolist()]
