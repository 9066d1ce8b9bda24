"""A baseline against L2I on the same splits, and the same baseline given as much time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from l2i import recipes
from l2i.config import Run, replace
from l2i.errors import InputError
from l2i.training.checkpoint import write_whole
from l2i.training.folder import Result
from l2i.training.run import train

MARK = "-l2i"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train the cells of a table over several seeds and set their figures side by side."""

    cells: tuple[str, ...] = ()
    """Cells to train; those that the table names by default."""
    seeds: int | None = None
    """Seeds 0, 1, … a cell, by default as many as the table asks for; one seed is one split, start and order."""
    steps: int | None = None
    """Training steps, where they should not be the recipe's."""
    out: str = "runs/compare"
    """Folder for the runs; those already there are not trained again."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes the GPU where there is one."""
    equal_time: bool = True
    """Also train each baseline for as long as its L2I twin took."""


@dataclass(frozen=True)
class Line:
    """A row of the table: a cell, what its runs came to, and the baselines that it is set against, seed by seed."""

    name: str
    results: list[Result]
    same_steps: Line | None = None
    same_time: Line | None = None

    @property
    def figures(self) -> list[float]:
        return [r.figure for r in self.results]

    def gain(self, baseline: Line | None) -> str:
        """The paired difference to a baseline, negative where this line is better."""
        if baseline is None:
            return ""
        return with_error((a - b for a, b in zip(self.figures, baseline.figures, strict=True)), sign="+")


def compare(table: str, options: Options) -> list[Line]:
    """Train what the options ask for, baselines first, and return the table's lines."""
    module = recipes.table(table)
    cells = sorted(options.cells or module.COMPARED, key=lambda cell: MARK in cell)
    runs = {cell: recipes.get(cell) for cell in cells}
    seeds = module.SEEDS if options.seeds is None else options.seeds
    if seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    lines: dict[str, Line] = {}
    for cell, run in runs.items():
        results = [one(run, options, seed=seed) for seed in range(seeds)]
        twin = lines.get(cell.replace(f"{MARK}-paper", "").replace(MARK, "")) if MARK in cell else None
        longer = None
        if twin is not None and options.equal_time:
            longer = as_long(runs[twin.name], twin, results, cell, options)
            lines[longer.name] = longer
        lines[cell] = Line(cell, results, twin, longer)
    return list(lines.values())


def one(run: Run, options: Options, *, seed: int, steps: int | None = None, suffix: str = "") -> Result:
    """One seed of a cell, in a folder of its own."""
    name = run.name + suffix
    out = str(Path(options.out) / f"{name.replace('/', '-')}-seed{seed}")
    wanted = steps or options.steps or run.steps
    return train(replace(run, name=name, seed=seed, steps=wanted, device=options.device, out=out))


def as_long(run: Run, base: Line, imputed: list[Result], cell: str, options: Options) -> Line:
    """The baseline with so many steps that each seed takes as long as it did with L2I."""
    suffix = f"-as-long-as{cell[cell.index(MARK) :]}"
    results = [
        one(run, options, seed=b.seed, steps=max(1, round(b.steps * i.seconds / b.seconds)), suffix=suffix)
        for b, i in zip(base.results, imputed, strict=True)
    ]
    return Line(base.name + suffix, results)


def with_error(values: Iterable[float], digits: int = 2, sign: str = "") -> str:
    """Mean ± standard error."""
    listed = list(values)
    middle = f"{mean(listed):{sign}.{digits}f}"
    return middle if len(listed) < 2 else f"{middle} ± {stdev(listed) / math.sqrt(len(listed)):.{digits}f}"


def rendered(title: str, lines: list[Line]) -> Table:
    """The table as a person reads it."""
    figure = lines[0].results[0].figure_name
    shown = Table(title=title, title_justify="left")
    gains = ("paired difference, same steps", "same time")
    for heading in ("cell", f"test {figure}", *gains, "seeds", "steps", "seconds a run"):
        shown.add_column(heading, justify="left" if heading == "cell" else "right")
    for line in lines:
        shown.add_row(
            line.name,
            with_error(line.figures),
            line.gain(line.same_steps),
            line.gain(line.same_time),
            str(len(line.results)),
            f"{mean(r.steps for r in line.results):.0f}",
            with_error((r.seconds for r in line.results), digits=1),
        )
    return shown


def report(table: str, lines: list[Line], options: Options) -> None:
    """Print the table, and keep it as JSON beside the runs."""
    first = lines[0].results[0]
    console = Console(width=None if Console().is_terminal else 140)
    console.print(rendered(f"{table}: mean ± standard error over {len(lines[0].results)} seeds", lines))
    console.print(f"figure: {first.definition}; lower is better", highlight=False)
    console.print("differences are paired by seed, L2I minus its baseline: below 0, L2I is better", highlight=False)
    console.print(f"on {first.hardware}; torch {first.versions['torch']}, l2i {first.versions['l2i']}", highlight=False)
    plain: list[dict[str, Any]] = [{"cell": line.name, "runs": [asdict(r) for r in line.results]} for line in lines]
    path = Path(options.out) / f"{table}.json"
    write_whole(path, (json.dumps(plain, indent=2) + "\n").encode())
    console.print(f"kept in {path}", highlight=False)
