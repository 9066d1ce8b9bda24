"""Numbers over several seeds, and tables for the terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import mean, stdev

from rich import box
from rich.table import Table

from l2i.files.terminal import escape_controls, make_console, print_utf8

MAX_WIDTH = 400  # characters
FormattedColumns = dict[str, list[str]]
FormattedRows = Sequence[Sequence[str]]  # headings first


def compute_mean_stderr(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error; the error of a single value is 0."""
    stderr = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean(values), stderr


def format_values(values: Iterable[float], decimals: int = 2, sign: str = "") -> str:
    """Format one or two values as they are, and more of them as mean ± standard error.

    A standard error of two has one degree of freedom: the two say more.
    """
    numbers = list(values)
    if len(numbers) <= 2:
        return " / ".join(f"{value:{sign}.{decimals}f}" for value in numbers)
    average, stderr = compute_mean_stderr(numbers)
    return f"{average:{sign}.{decimals}f} ± {stderr:.{decimals}f}"


def columns_to_rows(columns: FormattedColumns) -> list[Sequence[str]]:
    """Return the headings and rows of a table given by its columns."""
    return [list(columns), *zip(*columns.values(), strict=True)]


def render_markdown(rows: FormattedRows, *, code: bool = True) -> str:
    """Return a Markdown table, with the first column as code unless `code` is off."""
    headings, *body = rows
    lines = [headings, *((f"`{row[0]}`" if code else row[0], *row[1:]) for row in body)]
    markdown_lines = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join([markdown_lines[0], "|" + "---|" * len(headings) + "\n", *markdown_lines[1:]])


def print_rows(
    rows: FormattedRows,
    *,
    title: str | None = None,
    left_aligned: Collection[str] = (),
    markdown: bool = False,
) -> None:
    """Print a table for the terminal, complete however narrow that is, or as Markdown in UTF-8.

    All columns but the first and `left_aligned` are numbers.
    """
    if markdown:
        print_utf8(render_markdown(rows))
        return
    headings, *body = rows
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in headings:
        is_left = heading in (headings[0], *left_aligned)
        table.add_column(heading, justify="left" if is_left else "right", no_wrap=True)
    for row in body:
        table.add_row(*map(escape_controls, row))
    width = make_console(width=MAX_WIDTH).measure(table).maximum
    console = make_console(width=width)
    console.print(table)
    console.print()
