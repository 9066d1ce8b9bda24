"""What the columns of a table are: numbers, categories or text; found out from their cells, and said aloud."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.own.prepare import BLANK, MOST_CATEGORIES, Kind, numbers, words
from l2i.own.reading import counted, cut, few

if TYPE_CHECKING:
    import pandas as pd

ROW_NAMES = {"id", "ids", "idx", "index", "row", "rows", "rowid", "unnamed"}  # words in the name of such a column
WHOLE = re.compile(r"([+-]?\d+)\.0+")


class Inputs(NamedTuple):
    """The columns that are inputs: numbers as floats, NaN where blank; categories and texts as strings, '' there."""

    frame: pd.DataFrame
    kinds: dict[str, Kind]
    notes: tuple[str, ...]


class LeftOut(NamedTuple):
    """Why a column is no input; columns left out for the same reason share a line."""

    why: str
    own_line: bool = False


def infer(frame: pd.DataFrame, *, text: Sequence[str] = (), category: Sequence[str] = ()) -> Inputs:
    """The kinds of all columns; an InputError where a column is of mixed types, or none is left."""
    import pandas as pd

    forced: dict[str, Kind] = {**dict.fromkeys(text, "text"), **dict.fromkeys(category, "category")}
    found = {name: _kind(frame[name], forced.get(name)) for name in frame.columns}
    kinds: dict[str, Kind] = {name: kind for name, kind in found.items() if not isinstance(kind, LeftOut)}
    out = {name: kind for name, kind in found.items() if isinstance(kind, LeftOut)}
    notes = _left_out_notes(out)
    if not kinds:
        why = f": {notes[0]}" if notes else ""
        raise InputError(
            f"no input columns are left{why}; give a table with inputs, or name them by --text or --category"
        )
    columns = {name: as_kind(frame[name], kind) for name, kind in kinds.items()}
    inputs = pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))
    return Inputs(inputs, kinds, (*_kind_notes(inputs, kinds), *notes, *_blank_notes(inputs, kinds)))


def texts_alone(frame: pd.DataFrame, names: Sequence[str]) -> Inputs:
    """The text columns in the order in which they are named, all others left out."""
    import pandas as pd

    inputs = pd.DataFrame({name: as_kind(frame[name], "text") for name in names}, index=pd.RangeIndex(len(frame)))
    blank = int((inputs == BLANK).all(axis=1).sum())
    if blank == len(inputs):
        raise InputError(f"{few(names)} is blank in every row; name a column with texts by --text")
    others = [str(name) for name in frame.columns if name not in names]
    notes = [f"read as text: {few(names)}" + (", joined in this order" if len(names) > 1 else "")]
    notes += [f"left out, as --encoder reads texts alone: {few(others)}"] if others else []
    return Inputs(inputs, dict.fromkeys(names, "text"), (*notes, *blank_texts(blank)))


def blank_texts(count: int) -> list[str]:
    """That rows have no text, where any have none."""
    return [f"{counted(count, 'row')} without a text, read as an empty one"] if count else []


def as_kind(values: pd.Series, kind: Kind) -> pd.Series:
    """A column in the form in which it is learned from and predicted with."""
    import pandas as pd

    if kind == "number":
        wrong = not_numbers(values)
        if len(wrong):
            raise InputError(
                f"column '{values.name}' is a number but holds {_cell(values, wrong[0])}; mend it, or leave it blank"
            )
        return pd.Series(numbers(values), name=values.name)
    plain = words(values)
    return pd.Series([whole(word) for word in plain] if kind == "category" else plain, dtype=object, name=values.name)


def whole(word: str) -> str:
    """A whole number without the '.0' that programs add to it where a column has blanks."""
    match = WHOLE.fullmatch(word)
    return match[1] if match else word


def not_numbers(values: pd.Series) -> NDArray[np.int64]:
    """The places of the cells that are neither blank nor numbers."""
    import pandas as pd

    wrong = pd.to_numeric(values, errors="coerce").isna() & values.notna()
    return np.flatnonzero(wrong.to_numpy(dtype=bool))


def _cell(values: pd.Series, place: int) -> str:
    return f"'{str(values.iloc[place])[:40]}' in row {place + 1}"


def _kind(values: pd.Series, forced: Kind | None) -> Kind | LeftOut:
    there = values.dropna()
    if there.empty and forced is not None:
        raise InputError(f"column '{values.name}', named by --{forced}, is blank in every row; name another")
    if there.empty:
        return LeftOut("blank in every row")
    if len(there) == len(values) and there.nunique() == 1 and len(values) > 1:
        return LeftOut("the same in every row")
    if forced is not None:
        return forced
    wrong = not_numbers(values)
    if not len(wrong):
        return LeftOut("numbers of the rows") if _numbers_rows(values) else "number"
    if 2 * len(wrong) <= len(there):
        raise _mixed(values, wrong)
    different = int(there.nunique())
    if different <= MOST_CATEGORIES and 2 * different <= len(values):
        return "category"
    return LeftOut(
        f"column '{values.name}' has {different:,} different values in {counted(len(values), 'row')}: left out; "
        f"--text {values.name} reads it as text",
        own_line=True,
    )


def _mixed(values: pd.Series, wrong: NDArray[np.int64]) -> InputError:
    name = values.name
    return InputError(
        f"column '{name}' mixes numbers with {counted(len(wrong), 'cell')} of words, first "
        f"{_cell(values, int(wrong[0]))}; mend it, or give --category {name}, --text {name} or --ignore {name}"
    )


def _numbers_rows(values: pd.Series) -> bool:
    """Whether a column named like an index holds 0 to N − 1 or 1 to N, in any order."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", str(values.name))
    if not ROW_NAMES & {part.lower() for part in parts}:
        return False
    found = np.sort(numbers(values))  # NaN, the blanks, come last and equal nothing
    return any(np.array_equal(found, np.arange(len(found)) + first) for first in (0, 1))


def _left_out_notes(out: dict[str, LeftOut]) -> list[str]:
    shared: dict[str, list[str]] = {}
    for name, reason in out.items():
        if not reason.own_line:
            shared.setdefault(reason.why, []).append(name)
    notes = [f"left out, as {why}: {few(names)}" for why, names in shared.items()]
    return notes + [reason.why for reason in out.values() if reason.own_line]


def _kind_notes(inputs: pd.DataFrame, kinds: dict[str, Kind]) -> list[str]:
    of_kind = {kind: [name for name in kinds if kinds[name] == kind] for kind in ("number", "category", "text")}
    titles = {"number": "read as numbers", "category": "read as categories", "text": "read as text"}
    notes = [f"{titles[kind]}: {few(names)}" for kind, names in of_kind.items() if names]
    many = {name: int(inputs[name].nunique()) for name in of_kind["category"]}
    return notes + [
        f"column '{name}' has {count:,} categories: the {MOST_CATEGORIES} most frequent count, others as not known"
        for name, count in many.items()
        if count > MOST_CATEGORIES
    ]


def _blank_notes(inputs: pd.DataFrame, kinds: dict[str, Kind]) -> list[str]:
    missing = {name: int(inputs[name].isna().sum()) for name in kinds if kinds[name] == "number"}
    empty = {name: int((inputs[name] == "").sum()) for name in kinds if kinds[name] != "number"}
    told = {
        "blank cells are filled with the mean and marked": missing,
        "blank cells are a category of their own, or a text without words": empty,
    }
    listed = {title: [f"'{name}' ({n:,})" for name, n in counts.items() if n] for title, counts in told.items()}
    return [f"{title}: {cut(names)}" for title, names in listed.items() if names]
