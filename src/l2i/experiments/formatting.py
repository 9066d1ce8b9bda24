"""How figures over several seeds are written.

MERGED:
Tables as a person reads them and as Markdown; the first of their rows are the headings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import mean, stdev

from rich import box
from rich.console import Console
from rich.table import Table


def mean_stderr(values: Iterable[float], decimals: int = 2, sign: str = "") -> str:
    """Mean ± standard error."""
    numbers = list(values)
    mean_text = f"{mean(numbers):{sign}.{decimals}f}"
    return mean_text if len(numbers) < 2 else f"{mean_text} ± {stdev(numbers) / math.sqrt(len(numbers)):.{decimals}f}"


MAX_WIDTH = 400  # characters
FormattedColumns = dict[str, list[str]]
FormattedRows = Sequence[Sequence[str]]


def columns_to_rows(columns: FormattedColumns) -> list[Sequence[str]]:
    """A table that is given by its headings."""
    return [list(columns), *zip(*columns.values(), strict=True)]


def render_markdown(rows: FormattedRows, *, code: bool = True) -> str:
    """As the pages of docs have it; what the first column names as code, where it is such."""
    headings, *body = rows
    lines = [headings, *((f"`{row[0]}`" if code else row[0], *row[1:]) for row in body)]
    markdown_lines = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join([markdown_lines[0], "|" + "---|" * len(headings) + "\n", *markdown_lines[1:]])


def render_table(rows: FormattedRows, *, title: str | None = None, left_aligned: Collection[str] = ()) -> Table:
    """As a person reads it: figures stand to the right, the first column and those of `left` do not."""
    headings, *body = rows
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in (headings[0], *left_aligned) else "right", no_wrap=True)
    for row in body:
        table.add_row(*row)
    return table


def print_full_width(table: Table) -> None:
    """However narrow the terminal: no figure is cut off."""
    width = Console(highlight=False, markup=False, width=MAX_WIDTH).measure(table).maximum
    Console(highlight=False, markup=False, width=width).print(table)
