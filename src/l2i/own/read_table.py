"""Tables from CSV and Parquet files, before anything is decided about their columns: words, numbers and blanks."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from l2i.data.limits import check_columns, on_disk, plain_file
from l2i.data.paraphrases import long_fields
from l2i.errors import InputError
from l2i.own.read_parquet import parquet_frame
from l2i.own.reading import BLANKS, ReadOptions, few

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".txt", ".parquet")
MOST_CELLS = 20_000_000  # of a table with short lines; one of whole lines has at most a cell a byte
MOST_LINE = 2**26  # characters of a header
WIDE = 1000  # columns from which on pandas is faster with all lines at once
SEPARATORS = (",", ";", "\t", "|")
TOO_WIDE = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


class Raw(NamedTuple):
    """A table as it was found: columns are strings or of a numeric type, missing where they are blank."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


def read_table(path: Path, *, encoding: str, separator: str) -> Raw:
    """All rows and columns of a file that has both."""
    if not plain_file(path).stat().st_size:
        raise InputError(f"{path} is empty; give a table with a header and rows")
    raw = Raw(*parquet_frame(path)) if path.suffix.lower() == ".parquet" else _csv(path, encoding, separator)
    if not len(raw.frame):
        raise InputError(f"{path} has a header and no rows; give a table with rows")
    return raw


def _csv(path: Path, encoding: str, separator: str) -> Raw:
    import pandas as pd

    used = actual_encoding(path, encoding)
    try:
        between = chosen_separator(path, used, separator)
        names = _header(path, used, between)
        _check_rows(path, used, between, len(names))
        options = {"compression": None, "low_memory": len(names) < WIDE, "skip_blank_lines": len(names) > 1}
        frame = pd.read_csv(path, sep=between, encoding=used, dtype=str, na_filter=False, **options)
    except UnicodeError:
        wanted = "UTF-8" if used == "utf-8-sig" else used
        raise InputError(f"{path} is not {wanted}; give --encoding latin-1, or save it as UTF-8") from None
    except LookupError:
        raise InputError(f"there is no encoding '{encoding}'; give --encoding utf-8 or latin-1") from None
    except InputError:
        raise
    except (ValueError, csv.Error) as error:  # pandas' errors are ValueErrors
        raise _unparsed(path, str(error)) from None
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes a cell more in the first row for names of rows
        raise InputError(f"{path}, line 2: more cells than the header has names; mend the header or the line")
    frame.columns = [str(name).strip() for name in frame.columns]
    cells, notes = _cells(frame, decimal_comma=between != ",")
    said = [] if between == "," else [f"cells are separated by {'tabs' if between == chr(9) else repr(between)}"]
    return Raw(cells, (*said, *notes))


def _check_rows(path: Path, encoding: str, separator: str, columns: int) -> None:
    """That lines of a byte are not filled up to a wide header: a table of whole lines has at most a cell a byte."""
    most = max(MOST_CELLS, on_disk(path)) // columns  # rows
    with path.open(encoding=encoding, newline="") as file:
        ends = sum(part.count("\n") + part.count("\r") for part in iter(partial(file.read, 2**20), ""))
    if ends <= most:
        return
    with path.open(encoding=encoding, newline="") as file, long_fields():  # lines within quotes are none
        rows = sum(1 for row in csv.reader(file, delimiter=separator) if row)
    if rows > most:
        raise InputError(
            f"{path} has {columns:,} columns and many of its {rows:,} rows have fewer cells; mend the header, or them"
        )


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
        line = re.sub(r'"[^"]*"', "", next((line for line in short_lines(path, file) if line.strip()), ""))
    return max(SEPARATORS, key=line.count)  # the first of equals, so a comma where there is none


def short_lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file, none of them longer than a header of all columns there may be."""
    while line := file.readline(MOST_LINE):
        if len(line) == MOST_LINE:
            raise InputError(f"{path} begins with a line of {MOST_LINE:,} characters or more; mend it")
        yield line


def _header(path: Path, encoding: str, separator: str) -> list[str]:
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(short_lines(path, file), delimiter=separator)
        names = [name.strip() for name in next((row for row in rows if any(cell.strip() for cell in row)), [])]
    if not names:
        raise InputError(f"{path} is empty; give a table with a header and rows")
    check_columns(path, len(names))
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
