"""Clean the cells of a table: blanks, words for missing numbers, units and decimal commas."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from l2i.files.output import ProgressCallback, report_progress
from l2i.fit.formatting import format_names, join_truncated
from l2i.fit.options import BLANK_MARKERS

if TYPE_CHECKING:
    import pandas as pd

MISSING_WORDS = (  # for numbers; among categories such a word may be one of them
    "-",
    "--",
    ".",
    "*",
    "n.a.",
    "na",
    "none",
    "missing",
    "unknown",
    "not available",
    "#value!",
    "#div/0!",
    "#ref!",
    "k.a.",
    "k. a.",
)
MAX_SAMPLE = 1000  # words that tell whether a column has units
UNITS = r"[$€£¥₹%]|USD|EUR|GBP|CHF|JPY"
NUMBER_PATTERNS = {  # by whether a comma starts the decimals
    False: r"\d{1,3}(?:[,' ]\d{3})+(?:\.\d+)?|\d*\.?\d+|\d+\.",
    True: r"\d{1,3}(?:[.' ]\d{3})+(?:,\d+)?|\d*,?\d+|\d+,",
}
SEPARATOR_PATTERNS = {False: r"[,' ]", True: r"[.' ]"}
WITH_UNIT = (
    r"^(?P<debit>\()?(?P<sign>[+-]?)\s*(?P<before>{units})?\s*(?P<inner>[+-]?)(?P<number>{number})"
    r"\s*(?P<after>{units})?(?(debit)\))$"
)
MAX_INTEGER_CLASSES = 20  # integers with more distinct values are numbers, not classes
CellRole = Literal["number", "target", "label", "words"]
"""What cells may be: numbers, and words for missing; numbers only; numbers or names of classes;
words, which stay as they are."""
GetRole = Callable[[str], CellRole]


class RawTable(NamedTuple):
    """A table as it is in the file: columns of strings or of a numeric type, NaN where blank."""

    frame: pd.DataFrame
    notes: tuple[str, ...]


def clean_cells(
    frame: pd.DataFrame,
    progress: ProgressCallback,
    *,
    missing: Sequence[str] = (),
    get_role: GetRole = lambda name: "number",
    separator: str = ",",
) -> RawTable:
    """Strip cells, and make numbers of those that are meant as such; NaN where blank.

    `missing` are further cells that count as blank, `get_role` returns what a column may hold.
    Where the `separator` of cells is no comma, numbers may have decimal commas.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    blank_counts: dict[str, int] = {}
    comma_columns: list[str] = []
    examples: list[str] = []
    names = list(frame.columns)
    has_decimal_commas = separator == ";" and any(
        _has_decimal_commas(_strip(frame[name]), separator) for name in names
    )
    for name in report_progress(names, len(names), "read", progress, noun="columns"):
        cells = _mask_blanks(frame[name], missing, blank_counts)
        role = get_role(name)
        if cells.dtype == object and role != "words":
            converted = _convert_numbers(cells, separator, has_decimal_commas=has_decimal_commas)
            # names of classes stay, whatever they look like
            if role != "label" or _is_mostly_continuous(converted.cells):
                cells = converted.cells
                comma_columns += [name] if converted.has_commas else []
                examples += [converted.example] if converted.example else []
            if role == "number":
                cells = _mask(cells, _find_missing_words(cells), blank_counts)
        columns[name] = cells
    notes = []
    if blank_counts:
        items = [f"'{marker}' ({count:,})" for marker, count in sorted(blank_counts.items())]
        notes.append(f"cells treated as blank: {', '.join(items)}")
    if comma_columns:
        notes.append(f"decimal commas read as decimal points: {format_names(comma_columns)}")
    if examples:
        notes.append(f"read as numbers: {join_truncated(examples)}")
    return RawTable(pd.DataFrame(columns, index=frame.index), tuple(notes))


class _Numbers(NamedTuple):
    """Cells of which those that are meant as numbers have become such."""

    cells: pd.Series
    has_commas: bool
    """Whether decimal commas became points."""
    example: str | None
    """A cell that had a unit or separators of thousands, if any."""


def _convert_numbers(
    cells: pd.Series, separator: str, *, has_decimal_commas: bool = False
) -> _Numbers:
    """Convert a column; with `has_decimal_commas` in another one, points separate thousands."""
    has_commas = _has_decimal_commas(cells, separator)
    numbers = cells.str.replace(",", ".", regex=False) if has_commas else cells
    if has_decimal_commas and not has_commas and _has_thousands_points(cells):
        without: pd.Series | None = cells.str.replace(".", "", regex=False)
    else:
        without = remove_units(numbers, decimal_comma=_takes_commas(cells, separator))
    if without is None:
        return _Numbers(numbers, has_commas, None)
    row = ((without != numbers) & numbers.notna()).to_numpy().nonzero()[0][0]
    example = f"'{cells.name}' ('{numbers.iloc[row]}' is {without.iloc[row]})"
    return _Numbers(without, has_commas, example)


def _mask_blanks(cells: pd.Series, missing: Sequence[str], counts: dict[str, int]) -> pd.Series:
    """Strip strings, and replace the markers of blank cells by NaN."""
    import pandas as pd

    is_string = not pd.api.types.is_numeric_dtype(cells.dtype)
    if is_string:
        cells = _strip(cells)
    is_blank = cells.isin((*BLANK_MARKERS, *missing)) if is_string else cells.isna()
    numbers = [float(marker) for marker in missing if _is_number(marker)]
    if numbers:
        is_blank |= pd.to_numeric(cells, errors="coerce").isin(numbers)
    return _mask(cells, is_blank, counts)


def _strip(cells: pd.Series) -> pd.Series:
    return cells.astype(object).str.strip()


def _mask(cells: pd.Series, is_blank: pd.Series, counts: dict[str, int]) -> pd.Series:
    """Replace cells by NaN, and count what stood there."""
    is_blank = is_blank.fillna(False).astype(bool)
    if not is_blank.any():
        return cells
    for marker, count in cells[is_blank & cells.notna() & (cells != "")].value_counts().items():
        counts[str(marker)] = counts.get(str(marker), 0) + int(count)
    return cells.mask(is_blank)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_decimal_commas(cells: pd.Series, separator: str) -> bool:
    present = cells[~is_missing_word(cells)].dropna()
    is_integer_or_comma = present.str.fullmatch(r"[+-]?\d+(,\d+)?")
    has_commas = is_integer_or_comma.all() and present.str.contains(",", regex=False).any()
    return bool(has_commas) and _takes_commas(cells, separator)


def _has_thousands_points(cells: pd.Series) -> bool:
    """Return whether all numbers are whole ones, some with points in front of three digits."""
    present = cells[~is_missing_word(cells)].dropna()
    is_whole = present.str.fullmatch(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)")
    return bool(is_whole.all() and present.str.contains(".", regex=False).any())


def _takes_commas(cells: pd.Series, separator: str) -> bool:
    """Return whether a comma may start decimals.

    Programs that write decimal commas separate cells by semicolons; beside another separator
    commas in front of three digits each are those of thousands.
    """
    if separator in (",", ";"):
        return separator == ";"
    with_comma = cells[cells.astype(str).str.contains(r"\d,\d", regex=True)]
    return not with_comma.str.contains(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)", regex=True).all()


def _is_mostly_continuous(cells: pd.Series) -> bool:
    """Return whether most cells are numbers that are no classes; others are then errors."""
    import pandas as pd

    numbers = pd.to_numeric(cells, errors="coerce").dropna()
    return 2 * len(numbers) > cells.count() and is_continuous(numbers)


def is_continuous(cells: pd.Series) -> bool:
    """Return whether all cells are numbers, with fractions or too many values for classes."""
    import pandas as pd

    numbers = pd.to_numeric(cells, errors="coerce")
    floats = numbers.dropna().to_numpy(dtype=np.float64)
    if len(floats) < cells.count():
        return False
    return bool((floats != np.floor(floats)).any() or len(np.unique(floats)) > MAX_INTEGER_CLASSES)


def is_missing_word(cells: pd.Series) -> pd.Series:
    """Return which cells are words for missing, such as 'unknown'."""
    if cells.dtype != object:
        return cells.isna() & False
    return cells.astype(str).str.lower().isin(MISSING_WORDS)


def _find_non_numbers(cells: pd.Series) -> pd.Series:
    """Return the cells that are neither blank nor numbers."""
    import pandas as pd

    return cells[cells.notna() & pd.to_numeric(cells, errors="coerce").isna()]


def _find_missing_words(cells: pd.Series) -> pd.Series:
    """Return which cells stand for missing numbers: words in a column of numbers otherwise."""
    others = _find_non_numbers(cells)
    is_word = is_missing_word(others) if len(others) else others.isna()
    if not is_word.all() or len(others) == cells.count():
        is_word &= False
    return is_word.reindex(cells.index, fill_value=False)


def remove_units(cells: pd.Series, *, decimal_comma: bool = False) -> pd.Series | None:
    """Return a column without currencies, per cent signs and thousands separators.

    None if it has none of them, if less than half of its other words are such numbers, or if
    their units differ. Other cells stay as they are.
    """
    words = _find_non_numbers(cells)
    if not len(words):
        return None
    pattern = re.compile(
        WITH_UNIT.format(units=UNITS, number=NUMBER_PATTERNS[decimal_comma]), re.IGNORECASE
    )
    if words.head(MAX_SAMPLE).str.extract(pattern)["number"].isna().all():
        return None
    present = cells.dropna()
    parts = present.str.extract(pattern)
    found = parts[parts["number"].notna()]
    if 2 * len(found) <= len(present):
        return None
    separator = SEPARATOR_PATTERNS[decimal_comma]
    units = found["before"].fillna(found["after"]).str.upper()
    is_plain = units.isna() & found["debit"].isna() & ~found["number"].str.contains(separator)
    if is_plain.all():
        return None
    is_percent = units == "%"
    if units.nunique() > 1 or (is_percent.any() and not is_percent.all()):
        return None
    digits = found["number"].str.replace(separator, "", regex=True)
    digits = digits.str.replace(",", ".", regex=False)
    is_negative = found["debit"].notna() | (found["sign"] == "-") | (found["inner"] == "-")
    converted = cells.copy()
    converted[found.index] = digits.where(~is_negative, "-" + digits)
    return converted
