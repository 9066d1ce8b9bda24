"""A baseline against L2I on the same splits, and the same baseline given as much time."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from l2i import recipes
from l2i.config import Run, replace
from l2i.errors import InputError
from l2i.training.checkpoint import write_whole
from l2i.training.folder import Result
from l2i.training.run import train
from l2i.validate import validate

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

    def time(self) -> float:
        return mean(r.seconds for r in self.results)

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
    for run in runs.values():
        validate(at(run, options, seed=0))
    lines: dict[str, Line] = {}
    for cell, run in runs.items():
        results = [one(at(run, options, seed=seed)) for seed in range(seeds)]
        twin = lines.get(cell.replace(f"{MARK}-paper", "").replace(MARK, "")) if MARK in cell else None
        longer = None
        if twin is not None and options.equal_time:
            longer = as_long(runs[twin.name], twin, results, cell, options)
            lines[longer.name] = longer
        lines[cell] = Line(cell, results, twin, longer)
    return list(lines.values())


def at(run: Run, options: Options, *, seed: int, steps: int | None = None, suffix: str = "") -> Run:
    """A cell's run at one seed, in a folder of its own."""
    name = run.name + suffix
    out = str(Path(options.out) / f"{name.replace('/', '-')}-seed{seed}")
    wanted = next(s for s in (steps, options.steps, run.steps) if s is not None)
    return replace(run, name=name, seed=seed, steps=wanted, device=options.device, out=out)


def one(run: Run) -> Result:
    """Train, and say so in a line."""
    result = train(run)
    print(result.short(), file=sys.stderr, flush=True)
    return result


def as_long(run: Run, base: Line, imputed: list[Result], cell: str, options: Options) -> Line:
    """The baseline with so many steps that each seed takes as long as it did with L2I."""
    suffix = "-longer" + cell[cell.index(MARK) :].removeprefix(MARK).rpartition("-")[0]  # -longer-paper for -l2i-paper
    results = [
        one(at(run, options, seed=b.seed, steps=max(1, round(b.steps * i.seconds / b.seconds)), suffix=suffix))
        for b, i in zip(base.results, imputed, strict=True)
    ]
    return Line(base.name + suffix, results)


def with_error(values: Iterable[float], digits: int = 2, sign: str = "") -> str:
    """Mean ± standard error."""
    listed = list(values)
    middle = f"{mean(listed):{sign}.{digits}f}"
    return middle if len(listed) < 2 else f"{middle} ± {stdev(listed) / math.sqrt(len(listed)):.{digits}f}"


def rendered(title: str, lines: list[Line]) -> Table:
    """The table as a person reads it, on 80 columns."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("cell", no_wrap=True)
    for heading in (lines[0].results[0].figure_name, "Δ same steps", "Δ same time", "steps", "seconds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        shown.add_row(
            line.name.partition("/")[2] or line.name,
            with_error(line.figures),
            line.gain(line.same_steps),
            line.gain(line.same_time),
            f"{mean(r.steps for r in line.results):.0f}",
            f"{line.time():.1f}",
        )
    return shown


def report(table: str, lines: list[Line], options: Options) -> None:
    """Print the table, and keep it as JSON beside the runs."""
    first, console = lines[0].results[0], Console(highlight=False, soft_wrap=True)
    title = f"{table}, test set, {len(lines[0].results)} seeds: mean ± standard error"
    console.print(rendered(title, lines), soft_wrap=False)
    console.print(f"{first.figure_name}: {first.definition}.")
    console.print(
        "Δ: L2I minus its baseline, paired by seed, after as many steps or as long a time; below 0, L2I is better."
    )
    console.print("seconds: of a run, on average.")
    for line in lines:
        if line.same_time and not 0.9 < line.time() / line.same_time.time() < 1.1:
            console.print(
                f"Mind that {line.name} and its 'longer' baseline differ in time: the machine was not at rest."
            )
    console.print(f"On {first.hardware}; torch {first.versions['torch']}, l2i {first.versions['l2i']}.")
    plain: list[dict[str, Any]] = [{"cell": line.name, "runs": [asdict(r) for r in line.results]} for line in lines]
    path = Path(options.out) / f"{table}.json"
    write_whole(path, (json.dumps(plain, indent=2) + "\n").encode())
    console.print(f"Kept in {path}.")
