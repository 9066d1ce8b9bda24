"""Infer the kinds of input and target columns from their cells, and convert them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.output import ProgressCallback, ignore_progress, report_progress
from l2i.fit.formatting import format_names, join_truncated, pluralize
from l2i.fit.readers.dates import (
    DATE_TITLES,
    DateFormat,
    has_mixed_dates,
    infer_date_format,
    read_dates,
)

if TYPE_CHECKING:
    import pandas as pd

ColumnKind = Literal["number", "category", "text", "date"]
KIND_TITLES = {"number": "numeric", "category": "categorical", "date": "date", "text": "text"}
BLANK = ""  # a blank cell among strings
MAX_CATEGORIES = 100  # per column; rarer ones count as unknown
ID_WORDS = {"id", "ids", "rowid", "rownames", "uuid"}  # anywhere in a name
INDEX_WORDS = {*ID_WORDS, "idx", "index", "row", "rows", "unnamed"}  # if all of its words are such
LAST_ID_WORDS = {  # that make an id of a name which ends with one
    *("key", "code", "serial", "account", "acct", "case", "patient", "customer", "subject"),
    *("number", "num", "no", "nr", "phone", "telephone"),
}
TIME_WORDS = {"year", "month", "week", "day", "date", "hour", "minute", "second", "time", "age"}
IDS, ROW_NUMBERS = "ids", "row numbers"  # what numbers may be that are not inputs
MIN_ROWS_OF_INDEX = 20  # from here on growing numbers may be those of the rows
MAX_INDEX_GAP = 20  # between row numbers, in the mean: of every twentieth row
MIN_WORDS_OF_TEXT = 3  # per cell, in the mean
INTEGER_AS_FLOAT = re.compile(r"\A([+-]?\d+)\.0+\Z")


def check_unique_names(path: Path, names: Sequence[str]) -> None:
    """Raise InputError if two columns have the same name."""
    previous_names: set[str] = set()
    for name in names:
        if name in previous_names:
            raise InputError(f"{path} has two columns named '{name}'; rename one of them")
        previous_names.add(name)


def to_strings(values: pd.Series) -> list[str]:
    """Convert a column to strings, '' where blank."""
    cells = zip(values.tolist(), values.isna().tolist(), strict=True)
    return [BLANK if is_missing else str(value) for value, is_missing in cells]


def to_category_names(values: pd.Series) -> list[str]:
    """Convert a column to strings, without the '.0' that programs add to integers beside blanks."""
    return [INTEGER_AS_FLOAT.sub(r"\1", name) for name in to_strings(values)]


def to_floats(
    values: pd.Series, *, role: str = "column", alternative: str = "leave it blank"
) -> NDArray[np.float64]:
    """Convert a column to numbers, NaN where blank; raise InputError for words and infinities."""
    import pandas as pd

    title = f"{role} '{values.name}'"
    if values.dtype == np.float64:
        floats: NDArray[np.float64] = values.to_numpy()
    else:
        numbers = pd.to_numeric(values, errors="coerce")
        floats = numbers.to_numpy(np.float64, na_value=np.nan)
        bad_rows = np.flatnonzero(np.isnan(floats) & values.notna().to_numpy(dtype=bool))
        if len(bad_rows):
            cell = _quote_cell(values, bad_rows[0])
            raise InputError(f"{title} contains {cell}, not a number; fix it, or {alternative}")
    is_infinite = np.isinf(floats)
    if is_infinite.any():
        raise InputError(f"{title} contains infinity in row {is_infinite.argmax() + 1}; fix it")
    return floats


def find_non_numeric(values: pd.Series) -> NDArray[np.int64]:
    """Return the positions of the cells that are neither blank nor numbers."""
    import pandas as pd

    is_non_numeric = pd.to_numeric(values, errors="coerce").isna() & values.notna()
    return np.flatnonzero(is_non_numeric.to_numpy(dtype=bool))


def find_blank(values: pd.Series) -> pd.Series:
    """Return which cells of a converted column are blank: NaN among numbers, '' among strings."""
    return values.isna() if values.dtype == np.float64 else values.isna() | (values == BLANK)


def _quote_cell(values: pd.Series, row: int) -> str:
    return f"'{str(values.iloc[row])[:40]}' in row {row + 1}"


def make_mixed_error(
    values: pd.Series, bad_rows: NDArray[np.int64], role: str, alternative: str
) -> InputError:
    """Return the error of a column of numbers and words."""
    cells, first = pluralize(len(bad_rows), "cell"), _quote_cell(values, bad_rows[0])
    problem = f"{role} '{values.name}' mixes numbers and text ({cells}, first {first})"
    return InputError(f"{problem}; fix it, or use {alternative}")


def convert_columns(
    frame: pd.DataFrame,
    kinds: dict[str, ColumnKind],
    date_formats: dict[str, str],
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """Convert columns to what preprocessing takes: numbers, dates to floats; others to strings."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name in report_progress(kinds, len(kinds), "converted", progress, noun="columns"):
        kind = kinds[name]
        if kind == "number":
            columns[name] = to_floats(frame[name])
        elif kind == "date":
            columns[name] = read_dates(frame[name], date_formats[name])
        else:
            convert = to_category_names if kind == "category" else to_strings
            columns[name] = pd.Series(convert(frame[name]), dtype=object)
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


class InputColumns(NamedTuple):
    """Input columns: numbers and dates as floats, NaN where blank; categories, texts as strings."""

    frame: pd.DataFrame
    kinds: dict[str, ColumnKind]
    notes: tuple[str, ...]
    date_formats: dict[str, str]


class SkippedColumn(NamedTuple):
    """Why a column is not an input; columns skipped for the same reason share a note."""

    reason: str
    has_own_note: bool = False


def infer_columns(
    frame: pd.DataFrame,
    *,
    text: Sequence[str] = (),
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    progress: ProgressCallback = ignore_progress,
) -> InputColumns:
    """Infer the kind of every column; raise InputError for mixed types, or if none is left."""
    forced: dict[str, ColumnKind] = dict.fromkeys(text, "text")
    forced |= dict.fromkeys(category, "category")
    forced |= dict.fromkeys(number, "number")
    kinds: dict[str, ColumnKind] = {}
    skipped: dict[str, SkippedColumn] = {}
    dates: dict[str, DateFormat] = {}
    names = list(frame.columns)
    for name in report_progress(names, len(names), "checked", progress, noun="columns"):
        kind = _infer_kind(frame[name], forced.get(name))
        if isinstance(kind, SkippedColumn):
            skipped[name] = kind
        elif isinstance(kind, DateFormat):
            kinds[name], dates[name] = "date", kind
        else:
            kinds[name] = kind
    if not kinds:  # numbers that grow from row to row are inputs if there are no others
        kinds = {name: "number" for name, why in skipped.items() if why.reason == ROW_NUMBERS}
        skipped = {name: why for name, why in skipped.items() if name not in kinds}
    skipped_notes = _describe_skipped(skipped)
    if not kinds:
        reason = f": {skipped_notes[0]}" if skipped_notes else ""
        fix = "add input columns, or name some with --number, --category or --text"
        raise InputError(f"no input columns are left{reason}; {fix}")
    date_formats = {name: date.format for name, date in dates.items()}
    inputs = convert_columns(frame, kinds, date_formats, progress)
    kind_notes = [*_describe_kinds(inputs, kinds), *_describe_ambiguous(dates)]
    notes = [*kind_notes, *skipped_notes, *_describe_blanks(inputs, kinds)]
    return InputColumns(inputs, kinds, tuple(notes), date_formats)


def select_text_columns(frame: pd.DataFrame, names: Sequence[str]) -> InputColumns:
    """Take the named columns as text, in that order, and leave out all others."""
    kinds: dict[str, ColumnKind] = dict.fromkeys(names, "text")
    inputs = convert_columns(frame, kinds, {})
    num_blank = int((inputs == BLANK).all(axis=1).sum())
    if num_blank == len(inputs):
        fix = "choose a different --text"
        raise InputError(f"{format_names(names)} is blank in every row; {fix}")
    order = ", joined in this order" if len(names) > 1 else ""
    notes = [f"text columns: {format_names(names)}{order}"]
    other_columns = [str(name) for name in frame.columns if name not in names]
    if other_columns:
        notes.append(f"ignored (--encoder uses text columns only): {format_names(other_columns)}")
    return InputColumns(inputs, kinds, (*notes, *describe_blank_texts(num_blank)), {})


def _infer_kind(
    values: pd.Series, forced: ColumnKind | None
) -> ColumnKind | DateFormat | SkippedColumn:
    name, present = values.name, values.dropna()
    if present.empty:
        if forced is not None:
            fix = "choose a different column"
            raise InputError(f"--{forced} '{name}': the column is blank in every row; {fix}")
        return SkippedColumn("blank in every row")
    if len(present) == len(values) > 1 and (values == values.iloc[0]).all():
        return SkippedColumn("constant")
    if forced is not None:
        return forced
    bad_rows = find_non_numeric(values)
    if not len(bad_rows):
        reason = find_id_reason(values)
        return "number" if reason is None else SkippedColumn(reason)
    if 2 * len(bad_rows) <= len(present):
        alternative = f"--category {name}, --text {name} or --ignore {name}"
        raise make_mixed_error(values, bad_rows, "column", alternative)
    date_format = infer_date_format(values)
    if date_format is None and has_mixed_dates(values):
        return SkippedColumn("dates in several formats; write them as year-month-day")
    return date_format or _infer_word_kind(values, present)


def _infer_word_kind(values: pd.Series, present: pd.Series) -> ColumnKind | SkippedColumn:
    """Return whether words are categories; those that hardly repeat are texts, or ids."""
    num_distinct = int(present.nunique())
    if 2 * num_distinct <= len(values):
        return "category"
    words = present.astype(str).str.split()
    if num_distinct == len(values) and words.str.len().mean() < MIN_WORDS_OF_TEXT:
        return SkippedColumn("a different name in every row; keep with --text")
    return SkippedColumn(
        f"ignored ({num_distinct:,} distinct values in {pluralize(len(values), 'row')}): "
        f"'{values.name}'; use --text {values.name} to read it as text",
        has_own_note=True,
    )


def find_id_reason(values: pd.Series) -> str | None:
    """Return why numbers seem to name rows rather than to describe them, or None.

    All of them are whole and distinct; and the column is named like an id, or they grow from row
    to row as those of a table do of which rows were left out.
    """
    floats = to_floats(values)
    if np.isnan(floats).any() or (floats % 1 != 0).any() or len(np.unique(floats)) < len(floats):
        return None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", str(values.name))]
    is_index = bool(words) and set(words) <= INDEX_WORDS
    if is_index or ID_WORDS & set(words) or LAST_ID_WORDS & set(words[-1:]):
        return IDS
    steps = np.diff(floats)
    grows_like_index = len(floats) >= MIN_ROWS_OF_INDEX and steps.min() == 1
    is_dense = steps.size and 0 <= floats[0] <= MAX_INDEX_GAP * 5 and steps.mean() <= MAX_INDEX_GAP
    return ROW_NUMBERS if grows_like_index and is_dense and not TIME_WORDS & set(words) else None


def _describe_ambiguous(dates: dict[str, DateFormat]) -> list[str]:
    """Note dates whose day and month could be exchanged."""
    return [
        f"column '{name}': dates are read as {DATE_TITLES[date.format]}; "
        "write them as year-month-day if that is wrong"
        for name, date in dates.items()
        if date.is_ambiguous
    ]


def _describe_skipped(skipped: dict[str, SkippedColumn]) -> list[str]:
    names_by_reason: dict[str, list[str]] = {}
    for name, column in skipped.items():
        if not column.has_own_note:
            names_by_reason.setdefault(column.reason, []).append(name)
    notes = [
        f"ignored ({why + '; keep with --number' * (why in (IDS, ROW_NUMBERS))}): "
        f"{format_names(names)}"
        for why, names in names_by_reason.items()
    ]
    return notes + [column.reason for column in skipped.values() if column.has_own_note]


def _describe_kinds(inputs: pd.DataFrame, kinds: dict[str, ColumnKind]) -> list[str]:
    notes = []
    for kind, title in KIND_TITLES.items():
        if names := [name for name in kinds if kinds[name] == kind]:
            notes.append(f"{title} columns: {format_names(names)}")
    for name in kinds:
        count = int(inputs[name].nunique()) if kinds[name] == "category" else 0
        if count > MAX_CATEGORIES:
            limit = f"the {MAX_CATEGORIES} most frequent are kept, others treated as unknown"
            notes.append(f"column '{name}' has {count:,} categories: {limit}")
    return notes


def _describe_blanks(inputs: pd.DataFrame, kinds: dict[str, ColumnKind]) -> list[str]:
    counts = {name: int(find_blank(inputs[name]).sum()) for name in kinds}
    titles = {
        True: "blank cells are filled with the mean and flagged",
        False: "blank cells are a category of their own, or an empty text",
    }
    notes = []
    for is_number, title in titles.items():
        names = [name for name in kinds if (kinds[name] in ("number", "date")) == is_number]
        items = [f"'{name}' ({counts[name]:,})" for name in names if counts[name]]
        if items:
            notes.append(f"{title}: {join_truncated(items)}")
    return notes


def describe_blank_texts(count: int) -> list[str]:
    """Note how many rows have no text, if any."""
    return [f"{pluralize(count, 'row')} without text, treated as empty"] if count else []
