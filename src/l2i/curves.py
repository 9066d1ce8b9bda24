"""Test error against time, of the runs of a table that `l2i compare` shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from l2i.data.limits import plain_file
from l2i.errors import InputError
from l2i.kept import DAMAGED, place_of
from l2i.lines import Line, short
from l2i.options import CompareOptions
from l2i.recipes.cells import Table
from l2i.training.folder import Result
from l2i.training.log import Row, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
MINUTE = 60.0
WIDE = 5  # a range of errors, as a ratio, from which the axis is logarithmic
COLORS, STYLES = 10, ("-", "--", ":")  # of matplotlib's cycle; cells beyond them have the next style


class Curve(NamedTuple):
    """A run's evaluations."""

    result: Result
    minutes: list[float]
    errors: list[float]


def check(options: CompareOptions) -> None:
    """That the pictures that are asked for, if any, can be written, before anything is trained."""
    for flag, name in {"--plot": options.plot, "--mechanism": options.mechanism}.items():
        if name is None:
            continue
        path = Path(name)
        if path.suffix.lower() not in KINDS:
            raise InputError(f"{flag} {path}: the name of a picture must end in {', '.join(KINDS)}")
        if options.dry_run:
            raise InputError(f"{flag} does not go with --dry-run, which trains nothing; leave one of them out")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent} cannot be a folder ({error.strerror}); give another {flag}") from None


def draw(table: Table, lines: Sequence[Line], options: CompareOptions) -> Path:
    """Write the picture, and return its path."""
    path = Path(options.plot or "")
    figure_of({line.name: [curve(table, line.name, r, options) for r in line.results] for line in lines}).savefig(
        path, dpi=100
    )
    return path


def evaluations(table: Table, name: str, result: Result, options: CompareOptions) -> list[Row]:
    """Those of a run, from where its result came from."""
    folder = options.from_ or options.keep
    if folder is not None:
        path = place_of(Path(folder), table.name) / f"{short(name)}-seed{result.seed}.jsonl"
    else:
        path = Path(options.out) / f"{name.replace('/', '-')}-seed{result.seed}" / "metrics.jsonl"
    try:
        rows = rows_of(plain_file(path).read_bytes())
        if not all(row["test"] is None or isinstance(row["test"], int | float) for row in rows):
            raise ValueError("a figure that is no number")
        return rows
    except DAMAGED:
        raise InputError(f"{path}, a run's evaluations, cannot be read; restore it, or draw nothing") from None


def curve(table: Table, name: str, result: Result, options: CompareOptions) -> Curve:
    """A run's test errors against its time; its steps are as long as each other."""
    rows = [row for row in evaluations(table, name, result, options) if row["test"] is not None]
    if not rows:
        raise InputError(f"{name}, seed {result.seed}, has no test errors to draw; leave --plot out")
    pace = result.seconds / result.steps / MINUTE
    return Curve(result, [float(row["step"] or 0) * pace for row in rows], [float(row["test"] or 0) for row in rows])


def figure_of(curves: dict[str, list[Curve]]) -> Figure:
    """Those of a cell alike, and a dot where a run's figure stands in the table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    for number, (name, runs) in enumerate(curves.items()):
        color, style = f"C{number % COLORS}", STYLES[number // COLORS % len(STYLES)]
        for index, run in enumerate(runs):
            label = short(name) if index == 0 else None
            axes.plot(run.minutes, run.errors, color=color, linestyle=style, label=label)
            axes.plot([run.result.seconds / MINUTE], [run.result.figure], "o", color=color)
    first = next(iter(curves.values()))[0].result
    axes.set(xlabel="minutes since the first step", ylabel=f"{first.figure_name}, test set")
    spread([error for runs in curves.values() for run in runs for error in run.errors], axes)
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper")
    return figure


def spread(errors: list[float], axes: Axes) -> None:
    """A logarithmic axis for errors of which the last would else lie flat."""
    known = [error for error in errors if math.isfinite(error)]
    if known and 0 < WIDE * min(known) <= max(known):
        logarithmic(axes)


def logarithmic(axes: Axes) -> None:
    """Upwards by its logarithm, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
