"""Read tables from CSV and Parquet files, as strings, numbers and blanks."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from l2i.data.datasets.imdb import allow_long_fields
from l2i.errors import InputError
from l2i.files.output import ProgressCallback, ignore_progress
from l2i.files.safety import check_columns, check_regular_file, get_disk_usage
from l2i.fit.readers.cells import GetRole, RawTable, clean_cells
from l2i.fit.readers.columns import check_unique_names
from l2i.fit.readers.parquet import read_parquet_frame

if TYPE_CHECKING:
    import pandas as pd

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MAX_CELLS = 20_000_000  # if lines may be short; a table of full lines has at most a cell per byte
MAX_LINE_CHARS = 2**26  # of a header
MIN_COLUMNS_ONE_PASS = 1000  # from here on pandas is faster with all lines at once
TAB = "\t"
SEPARATORS = (",", ";", TAB, "|")
SNIFFED_BYTES = 4096
CONTROL_CODES = set(range(32)) - {*b"\t\n\v\f\r"}  # which are not in text
TOO_MANY_FIELDS = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def read_table(
    path: Path,
    *,
    encoding: str = "auto",
    separator: str = "auto",
    missing: Sequence[str] = (),
    get_role: GetRole = lambda name: "number",
    check_names: Callable[[list[str]], None] = lambda names: None,
    progress: ProgressCallback = ignore_progress,
) -> RawTable:
    """Read all rows and columns of a file; raise InputError if it has none.

    `get_role` returns what a column may hold; `check_names` is called with the names of the columns
    before the rows are read.
    """
    if not check_regular_file(path).stat().st_size:
        raise InputError(f"{path} is empty; it needs a header and rows")
    if path.suffix.lower() == ".parquet":
        frame, notes = read_parquet_frame(path)
        check_names(list(frame.columns))
        separator = ","
    else:
        frame, notes, separator = _read_csv(path, encoding, separator, check_names)
    table = clean_cells(frame, progress, missing=missing, get_role=get_role, separator=separator)
    table = table._replace(notes=(*notes, *table.notes))
    if not len(table.frame):
        raise InputError(f"{path} has a header but no rows; add some")
    return table


def _read_csv(
    path: Path, encoding: str, separator: str, check_names: Callable[[list[str]], None]
) -> tuple[pd.DataFrame, tuple[str, ...], str]:
    """Return the cells as strings, notes on how they were read, and the separator."""
    import pandas as pd

    file_encoding, notes = _detect_encoding(path, encoding)
    try:
        delimiter = _detect_separator(path, file_encoding, separator)
        names = _read_header(path, file_encoding, delimiter)
        check_names(names)
        num_columns = len(names)
        _check_row_lengths(path, file_encoding, delimiter, num_columns)
        frame = pd.read_csv(
            path,
            sep=delimiter,
            encoding=file_encoding,
            dtype=str,
            na_filter=False,
            compression=None,
            low_memory=num_columns < MIN_COLUMNS_ONE_PASS,
            skip_blank_lines=num_columns > 1,
        )
    except UnicodeError:
        encoding_name = "UTF-8" if file_encoding == "utf-8-sig" else file_encoding
        fix = "use --encoding latin-1, or save it as UTF-8"
        raise InputError(f"{path} is not valid {encoding_name}; {fix}") from None
    except LookupError:
        fix = "use --encoding utf-8 or latin-1"
        raise InputError(f"unknown encoding '{encoding}'; {fix}") from None
    except InputError:
        raise
    except (ValueError, csv.Error) as error:  # pandas' errors are ValueErrors
        raise _make_parse_error(path, str(error)) from None
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took the first cells for row names
        fix = "fix the header or the line"
        raise InputError(f"{path}, line 2: more cells than the header has columns; {fix}")
    frame.columns = [str(name).strip() for name in frame.columns]
    if delimiter != ",":
        notes += (f"separator: {'tab' if delimiter == TAB else repr(delimiter)}",)
    return frame, notes, delimiter


def _make_parse_error(path: Path, message: str) -> InputError:
    match = TOO_MANY_FIELDS.search(message)
    if match is None:
        reason = " ".join(message.split())[:120]
        return InputError(f"{path} cannot be parsed as a table ({reason}); fix it")
    expected, line, actual = match.groups()
    problem = f"{actual} cells, expected {expected}"
    fix = "fix the line, and quote cells that contain the separator"
    return InputError(f"{path}, line {line}: {problem}; {fix}")


def _detect_encoding(path: Path, encoding: str) -> tuple[str, tuple[str, ...]]:
    """Return the encoding that the bytes of the file prove, or else the requested one; and notes.

    Text that is not UTF-8 is taken for Windows-1252, in which western spreadsheets save.
    """
    with path.open("rb") as file:
        first_bytes = file.read(SNIFFED_BYTES)
    if first_bytes.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16", ()
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        return "utf-8-sig", ()
    if encoding.lower() != "auto":
        return "utf-8-sig" if first_bytes.startswith(b"\xef\xbb\xbf") else encoding, ()
    halves = first_bytes[::2], first_bytes[1::2]
    for name, (text, zeros) in (("utf-16-le", halves), ("utf-16-be", halves[::-1])):
        if 0 not in text and zeros.count(0) > 0.9 * len(zeros):
            return name, (f"encoding: {name}",)
    if _is_encoded(path, "utf-8") or CONTROL_CODES & set(first_bytes):  # no text at all
        return "utf-8-sig", ()
    name = next((name for name in ("cp1252", "latin-1") if _is_encoded(path, name)), "latin-1")
    title = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}[name]
    return name, (f"encoding: {title}, as the file is not UTF-8; choose another with --encoding",)


def _is_encoded(path: Path, encoding: str) -> bool:
    """Return whether all bytes of a file are text in an encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as file:
        try:
            for chunk in iter(partial(file.read, 2**20), b""):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _detect_separator(path: Path, encoding: str, separator: str) -> str:
    """Return the requested separator, or the most frequent one in the first line."""
    if separator != "auto":
        delimiter = TAB if separator in ("tab", "\\t") else separator
        if len(delimiter) != 1:
            fix = "use one, or 'tab' or 'auto'"
            raise InputError(f"--separator {separator!r} is not a single character; {fix}")
        return delimiter
    with path.open(encoding=encoding, newline="") as file:
        first_line = next((line for line in _iter_lines(path, file) if line.strip()), "")
    unquoted = re.sub(r'"[^"]*"', "", first_line)
    return max(SEPARATORS, key=unquoted.count)  # the first of equals, so a comma if there is none


def _read_header(path: Path, encoding: str, separator: str) -> list[str]:
    """Return the column names; raise InputError for none, too many, or two alike."""
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(_iter_lines(path, file), delimiter=separator)
        stripped_rows = ([cell.strip() for cell in row] for row in rows)
        names = next((row for row in stripped_rows if any(row)), [])
    if not names:
        raise InputError(f"{path} is empty; it needs a header and rows")
    check_columns(path, len(names))
    check_unique_names(path, [name for name in names if name])
    return names


def _iter_lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of a file; raise InputError for one longer than any header may be."""
    while line := file.readline(MAX_LINE_CHARS):
        if len(line) == MAX_LINE_CHARS:
            length = f"{MAX_LINE_CHARS:,} characters or more"
            raise InputError(f"{path} starts with a line of {length}; is it a table?")
        yield line


def _check_row_lengths(path: Path, encoding: str, separator: str, num_columns: int) -> None:
    """Refuse many short lines under a wide header, which pandas would fill up with blanks."""
    max_rows = max(MAX_CELLS, get_disk_usage(path)) // num_columns
    with path.open(encoding=encoding, newline="") as file:
        chunks = iter(partial(file.read, 2**20), "")
        num_line_ends = sum(chunk.count("\n") + chunk.count("\r") for chunk in chunks)
    if num_line_ends <= max_rows:
        return
    with path.open(encoding=encoding, newline="") as file, allow_long_fields():
        # line ends within quotes do not count
        num_rows = sum(1 for row in csv.reader(file, delimiter=separator) if row)
    if num_rows > max_rows:
        problem = f"{num_columns:,} columns and many of its {num_rows:,} rows have fewer cells"
        raise InputError(f"{path} has {problem}; fix the header or the rows")
