"""What the columns of a table are: numbers, categories or text; found out from their cells, and said aloud."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.fit.options import format_names, join_truncated, pluralize
from l2i.fit.preprocess import BLANK, MAX_CATEGORIES, ColumnKind, to_floats, to_strings

if TYPE_CHECKING:
    import pandas as pd

INDEX_NAME_WORDS = {"id", "ids", "idx", "index", "row", "rows", "rowid", "unnamed"}  # words in the name of such a column
WHOLE_NUMBER = re.compile(r"([+-]?\d+)\.0+")


class InputColumns(NamedTuple):
    """The columns that are inputs: numbers as floats, NaN where blank; categories and texts as strings, '' there."""

    frame: pd.DataFrame
    kinds: dict[str, ColumnKind]
    notes: tuple[str, ...]


class SkippedColumn(NamedTuple):
    """Why a column is no input; columns left out for the same reason share a line."""

    reason: str
    has_own_line: bool = False


def infer_columns(frame: pd.DataFrame, *, text: Sequence[str] = (), category: Sequence[str] = ()) -> InputColumns:
    """The kinds of all columns; an InputError where a column is of mixed types, or none is left."""
    import pandas as pd

    forced: dict[str, ColumnKind] = {**dict.fromkeys(text, "text"), **dict.fromkeys(category, "category")}
    inferred = {name: _infer_kind(frame[name], forced.get(name)) for name in frame.columns}
    kinds: dict[str, ColumnKind] = {name: kind for name, kind in inferred.items() if not isinstance(kind, SkippedColumn)}
    skipped = {name: kind for name, kind in inferred.items() if isinstance(kind, SkippedColumn)}
    notes = _describe_skipped(skipped)
    if not kinds:
        reason = f": {notes[0]}" if notes else ""
        raise InputError(
            f"no input columns are left{reason}; give a table with inputs, or name them by --text or --category"
        )
    columns = {name: convert_to_kind(frame[name], kind) for name, kind in kinds.items()}
    inputs = pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))
    return InputColumns(inputs, kinds, (*_describe_kinds(inputs, kinds), *notes, *_describe_blanks(inputs, kinds)))


def select_text_columns(frame: pd.DataFrame, names: Sequence[str]) -> InputColumns:
    """The text columns in the order in which they are named, all others left out."""
    import pandas as pd

    inputs = pd.DataFrame({name: convert_to_kind(frame[name], "text") for name in names}, index=pd.RangeIndex(len(frame)))
    num_blank = int((inputs == BLANK).all(axis=1).sum())
    if num_blank == len(inputs):
        raise InputError(f"{format_names(names)} is blank in every row; name a column with texts by --text")
    other_columns = [str(name) for name in frame.columns if name not in names]
    notes = [f"read as text: {format_names(names)}" + (", joined in this order" if len(names) > 1 else "")]
    notes += [f"left out, as --encoder reads texts alone: {format_names(other_columns)}"] if other_columns else []
    return InputColumns(inputs, dict.fromkeys(names, "text"), (*notes, *describe_blank_texts(num_blank)))


def describe_blank_texts(count: int) -> list[str]:
    """That rows have no text, where any have none."""
    return [f"{pluralize(count, 'row')} without a text, read as an empty one"] if count else []


def convert_to_kind(values: pd.Series, kind: ColumnKind) -> pd.Series:
    """A column in the form in which it is learned from and predicted with."""
    import pandas as pd

    if kind == "number":
        bad_rows = find_non_numeric(values)
        if len(bad_rows):
            raise InputError(
                f"column '{values.name}' is a number but holds {_quote_cell(values, bad_rows[0])}; mend it, or leave it blank"
            )
        return pd.Series(to_floats(values), name=values.name)
    strings = to_strings(values)
    return pd.Series([strip_decimal_zeros(word) for word in strings] if kind == "category" else strings, dtype=object, name=values.name)


def strip_decimal_zeros(word: str) -> str:
    """A whole number without the '.0' that programs add to it where a column has blanks."""
    match = WHOLE_NUMBER.fullmatch(word)
    return match[1] if match else word


def find_non_numeric(values: pd.Series) -> NDArray[np.int64]:
    """The places of the cells that are neither blank nor numbers."""
    import pandas as pd

    is_non_numeric = pd.to_numeric(values, errors="coerce").isna() & values.notna()
    return np.flatnonzero(is_non_numeric.to_numpy(dtype=bool))


def _quote_cell(values: pd.Series, row: int) -> str:
    return f"'{str(values.iloc[row])[:40]}' in row {row + 1}"


def _infer_kind(values: pd.Series, forced: ColumnKind | None) -> ColumnKind | SkippedColumn:
    present = values.dropna()
    if present.empty and forced is not None:
        raise InputError(f"column '{values.name}', named by --{forced}, is blank in every row; name another")
    if present.empty:
        return SkippedColumn("blank in every row")
    if len(present) == len(values) and present.nunique() == 1 and len(values) > 1:
        return SkippedColumn("the same in every row")
    if forced is not None:
        return forced
    bad_rows = find_non_numeric(values)
    if not len(bad_rows):
        return SkippedColumn("numbers of the rows") if _is_row_index(values) else "number"
    if 2 * len(bad_rows) <= len(present):
        raise _make_mixed_error(values, bad_rows)
    num_distinct = int(present.nunique())
    if num_distinct <= MAX_CATEGORIES and 2 * num_distinct <= len(values):
        return "category"
    return SkippedColumn(
        f"column '{values.name}' has {num_distinct:,} different values in {pluralize(len(values), 'row')}: left out; "
        f"--text {values.name} reads it as text",
        has_own_line=True,
    )


def _make_mixed_error(values: pd.Series, bad_rows: NDArray[np.int64]) -> InputError:
    name = values.name
    return InputError(
        f"column '{name}' mixes numbers with {pluralize(len(bad_rows), 'cell')} of words, first "
        f"{_quote_cell(values, int(bad_rows[0]))}; mend it, or give --category {name}, --text {name} or --ignore {name}"
    )


def _is_row_index(values: pd.Series) -> bool:
    """Whether a column named like an index holds 0 to N − 1 or 1 to N, in any order."""
    name_words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", str(values.name))
    if not INDEX_NAME_WORDS & {part.lower() for part in name_words}:
        return False
    sorted_values = np.sort(to_floats(values))  # NaN, the blanks, come last and equal nothing
    return any(np.array_equal(sorted_values, np.arange(len(sorted_values)) + first) for first in (0, 1))


def _describe_skipped(skipped: dict[str, SkippedColumn]) -> list[str]:
    names_by_reason: dict[str, list[str]] = {}
    for name, column in skipped.items():
        if not column.has_own_line:
            names_by_reason.setdefault(column.reason, []).append(name)
    notes = [f"left out, as {reason}: {format_names(names)}" for reason, names in names_by_reason.items()]
    return notes + [column.reason for column in skipped.values() if column.has_own_line]


def _describe_kinds(inputs: pd.DataFrame, kinds: dict[str, ColumnKind]) -> list[str]:
    names_by_kind = {kind: [name for name in kinds if kinds[name] == kind] for kind in ("number", "category", "text")}
    titles = {"number": "read as numbers", "category": "read as categories", "text": "read as text"}
    notes = [f"{titles[kind]}: {format_names(names)}" for kind, names in names_by_kind.items() if names]
    category_counts = {name: int(inputs[name].nunique()) for name in names_by_kind["category"]}
    return notes + [
        f"column '{name}' has {count:,} categories: the {MAX_CATEGORIES} most frequent count, others as not known"
        for name, count in category_counts.items()
        if count > MAX_CATEGORIES
    ]


def _describe_blanks(inputs: pd.DataFrame, kinds: dict[str, ColumnKind]) -> list[str]:
    missing = {name: int(inputs[name].isna().sum()) for name in kinds if kinds[name] == "number"}
    empty = {name: int((inputs[name] == "").sum()) for name in kinds if kinds[name] != "number"}
    counts_by_title = {
        "blank cells are filled with the mean and marked": missing,
        "blank cells are a category of their own, or a text without words": empty,
    }
    names_by_title = {title: [f"'{name}' ({n:,})" for name, n in counts.items() if n] for title, counts in counts_by_title.items()}
    return [f"{title}: {join_truncated(names)}" for title, names in names_by_title.items() if names]
