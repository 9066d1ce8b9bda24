"""Test error against time, of the runs of a table that `l2i compare` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from l2i.data.limits import plain_file
from l2i.errors import InputError
from l2i.kept import DAMAGED, kept_in
from l2i.lines import Line, short
from l2i.options import CompareOptions
from l2i.recipes.cells import Table
from l2i.training.folder import Result
from l2i.training.log import rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
MINUTE = 60.0


class Curve(NamedTuple):
    """A run's evaluations."""

    result: Result
    minutes: list[float]
    errors: list[float]


def check(options: CompareOptions) -> None:
    """That the picture that is asked for, if any, can be written."""
    if options.plot is not None and Path(options.plot).suffix.lower() not in KINDS:
        raise InputError(f"--plot {options.plot}: the name of a picture must end in {', '.join(KINDS)}")
    if options.plot is not None and options.dry_run:
        raise InputError("--plot does not go with --dry-run, which trains nothing; leave one of them out")


def draw(table: Table, lines: Sequence[Line], options: CompareOptions) -> Path:
    """Write the picture, and return its path."""
    path = Path(options.plot or "")
    curves = {line.name: [curve(table, line.name, r, options) for r in line.results] for line in lines}
    figure = figure_of(curves)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path


def curve(table: Table, name: str, result: Result, options: CompareOptions) -> Curve:
    """The evaluations of a run, from where its result came from; its steps are as long as each other."""
    if options.from_ is not None:
        path = kept_in(options.from_, table).path(name, result.seed).with_suffix(".jsonl")
    elif options.keep is not None:
        path = kept_in(options.keep, table).path(name, result.seed).with_suffix(".jsonl")
    else:
        path = Path(options.out) / f"{name.replace('/', '-')}-seed{result.seed}" / "metrics.jsonl"
    try:
        rows = rows_of(plain_file(path).read_bytes())
        found = [(float(row["step"] or 0), float(row["test"])) for row in rows if row["test"] is not None]
    except DAMAGED:
        raise InputError(f"{path}, a run's evaluations, cannot be read; restore it, or leave --plot out") from None
    pace = result.seconds / result.steps / MINUTE
    return Curve(result, [step * pace for step, _ in found], [error for _, error in found])


def figure_of(curves: dict[str, list[Curve]]) -> Figure:
    """Those of a cell in one colour, and a dot where a run's figure stands in the table."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes, plain = figure.subplots(), FuncFormatter(lambda value, _: f"{value:g}")
    for number, (name, runs) in enumerate(curves.items()):
        for index, run in enumerate(runs):
            label = short(name) if index == 0 else None
            axes.plot(run.minutes, run.errors, color=f"C{number}", label=label)
            axes.plot([run.result.seconds / MINUTE], [run.result.figure], "o", color=f"C{number}")
    errors = [error for runs in curves.values() for run in runs for error in run.errors]
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(plain if max(errors) < 10 * min(errors) else NullFormatter())
    first = next(iter(curves.values()))[0].result
    axes.set(xlabel="minutes since the first step", ylabel=f"{first.figure_name}, test set")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure
