"""Labels and predictions as CSV or Parquet; cells that a spreadsheet would run as formulas."""

from __future__ import annotations

import csv
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2i.errors import InputError
from l2i.files.output import ProgressCallback, write_output
from l2i.fit.formatting import pluralize, truncate_text

if TYPE_CHECKING:
    import pandas as pd

LABEL_FILE_SUFFIXES = (".csv", ".parquet")
# as spreadsheets recognise formulas, wide characters included; a number with a sign is none
NUMBER = r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
FORMULA = re.compile(rf"[=@\t\r＝＋－＠]|[+-](?!{NUMBER}\Z)")
ESCAPE = "'"  # spreadsheets read the rest of such a cell as text
MAX_CELL_SHOWN = 40  # characters


def write_label_file(
    path: Path,
    frame: pd.DataFrame,
    notify: ProgressCallback,
    *,
    escape_formulas: bool = False,
    shown: str | None = None,
) -> None:
    """Write a table as CSV or Parquet to a checked path, which errors call `shown`."""
    name = path if shown is None else Path(shown)  # a link's name decides, not its target's
    if name.suffix.lower() == ".csv":
        content = to_csv(frame, notify, escape_formulas=escape_formulas).encode()
    else:
        check_escape_formulas(name, escape_formulas)
        content = frame.to_parquet(index=False)
    write_output(path, content, shown)


def check_escape_formulas(path: Path, escape_formulas: bool) -> None:
    """Check that formulas are escaped in CSV files only: Parquet holds no formulas."""
    if escape_formulas and path.suffix.lower() != ".csv":
        raise InputError(f"--escape-formulas applies only to CSV, not to {path}; remove it")


def to_csv(frame: pd.DataFrame, notify: ProgressCallback, *, escape_formulas: bool = False) -> str:
    """Return a table as CSV; warn of cells that are formulas, or put an apostrophe before them."""
    formulas = find_formulas(frame)
    if formulas and escape_formulas:
        frame = frame.map(_escape).rename(columns=_escape)
    elif formulas:
        first = truncate_text(formulas[0], MAX_CELL_SHOWN)
        cells = pluralize(len(formulas), "cell begins", "cells begin")
        problem = f"{cells} with =, +, - or @, such as {first!r}: a spreadsheet may run formulas"
        notify(f"warning: {problem}; use --escape-formulas to put an apostrophe before them")
    columns = [frame[name] for name in _list_text_columns(frame)]
    has_returns = any("\r" in str(cell) for cell in chain(frame.columns, *columns))
    quoting = csv.QUOTE_NONNUMERIC if has_returns else csv.QUOTE_MINIMAL  # else rows would break
    return str(frame.to_csv(index=False, quoting=quoting, lineterminator="\n"))


def find_formulas(frame: pd.DataFrame) -> list[str]:
    """Return the column names and cells that a spreadsheet would take for formulas."""
    columns = [frame[name].tolist() for name in _list_text_columns(frame)]
    return [str(cell) for cell in chain(frame.columns, *columns) if _is_formula(cell)]


def _list_text_columns(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if frame[name].dtype.kind not in "biuf"]


def _is_formula(cell: Any) -> bool:
    return isinstance(cell, str) and FORMULA.match(cell) is not None


def _escape(cell: Any) -> Any:
    return ESCAPE + cell if _is_formula(cell) else cell
