"""Tables by their headings, as a person reads them and as Markdown."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from l2i.arguments import print_exactly

WIDEST = 300  # characters
Columns = dict[str, list[str]]


def markdown(columns: Columns) -> str:
    """As the pages of docs have it; the cells' names as code."""
    found = {**columns, "cell": [f"`{name}`" for name in columns["cell"]]}
    rows = [list(found), *zip(*found.values(), strict=True)]
    written = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([written[0], "|" + "---|" * len(found) + "\n", *written[1:]])


def rendered(columns: Columns, title: str) -> Table:
    """As a person reads it."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in columns:
        shown.add_column(heading, justify="left" if heading == "cell" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*row)
    return shown


def print_table(columns: Columns, title: str, *, as_markdown: bool) -> None:
    """Print it; a figure is never cut off."""
    if as_markdown:
        print_exactly(markdown(columns))
        return
    shown = rendered(columns, title)
    width = Console(highlight=False, markup=False, width=WIDEST).measure(shown).maximum
    Console(highlight=False, markup=False, width=width).print(shown)
