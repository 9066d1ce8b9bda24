"""Tables as a person reads them and as Markdown; the first of their rows are the headings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDEST = 400  # characters
Columns = dict[str, list[str]]
Rows = Sequence[Sequence[str]]


def rows_of(columns: Columns) -> list[Sequence[str]]:
    """A table that is given by its headings."""
    return [list(columns), *zip(*columns.values(), strict=True)]


def markdown(rows: Rows, *, code: bool = True) -> str:
    """As the pages of docs have it; what the first column names as code, where it is such."""
    headings, *others = rows
    lines = [headings, *((f"`{row[0]}`" if code else row[0], *row[1:]) for row in others)]
    written = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join([written[0], "|" + "---|" * len(headings) + "\n", *written[1:]])


def rendered(rows: Rows, *, title: str | None = None, left: Collection[str] = ()) -> Table:
    """As a person reads it: figures stand to the right, the first column and those of `left` do not."""
    headings, *others = rows
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in (headings[0], *left) else "right", no_wrap=True)
    for row in others:
        shown.add_row(*row)
    return shown


def print_whole(shown: Table) -> None:
    """However narrow the terminal: no figure is cut off."""
    width = Console(highlight=False, markup=False, width=WIDEST).measure(shown).maximum
    Console(highlight=False, markup=False, width=width).print(shown)
