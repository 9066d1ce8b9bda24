"""The cells of a table over several seeds: each baseline against L2I on the same splits, and given as much time."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from l2i import recipes
from l2i.arguments import parsed
from l2i.config import Run, replace
from l2i.errors import InputError
from l2i.options import CompareOptions
from l2i.recipes.cells import MARKS, Figure, Table
from l2i.registry import unknown
from l2i.statistic import with_error
from l2i.training.folder import Result
from l2i.training.together import train_together
from l2i.validate import validate

OWN = ("name", "seed", "steps", "out", "device", "precision", "engine", "data.root")  # fields with options of their own


@dataclass(frozen=True)
class Line:
    """A row of the table: a cell, what its runs came to, and the baselines that it is set against, seed by seed."""

    name: str
    results: list[Result]
    same_steps: Line | None = None
    same_time: Line | None = None
    paper: Figure | None = None
    paper_steps: int | None = None
    """How many steps the recipe has, the paper's budget."""

    @property
    def figures(self) -> list[float]:
        return [r.figure for r in self.results]

    @property
    def steps(self) -> float:
        return mean(r.steps for r in self.results)

    def time(self) -> float:
        return mean(r.seconds for r in self.results)

    def gain(self, baseline: Line | None) -> str:
        """The paired difference to a baseline, negative where this line is better."""
        if baseline is None:
            return ""
        return with_error((a - b for a, b in zip(self.figures, baseline.figures, strict=True)), sign="+")


def compare(name: str, options: CompareOptions) -> list[Line]:
    """Train what the options ask for, baselines first, and return the table's lines."""
    table = recipes.table(name)
    planned = plan(table, options)
    lines: dict[str, Line] = {}
    for cell, runs in planned.items():
        results = trained(runs, options)
        twin = lines.get(table.baseline(cell) or "")
        longer = as_long(table, cell, twin, results, options) if twin is not None and options.equal_time else None
        if longer is not None:
            lines[longer.name] = longer
        lines[cell] = Line(cell, results, twin, longer, table.figure(cell), table.run(cell).steps)
    return list(lines.values())


def plan(table: Table, options: CompareOptions) -> dict[str, list[Run]]:
    """The runs of each cell, one a seed, checked; baselines come first."""
    seeds = table.seeds if options.seeds is None else options.seeds
    if seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    if options.at_once < 0:
        raise InputError(f"at_once={options.at_once} must be at least 1, or 0 for as many as that makes faster")
    wanted = [full(cell, table) for cell in options.cells] or list(table.compared)
    cells = sorted(dict.fromkeys(wanted), key=lambda cell: table.cells[cell].update != "off")
    planned = {cell: [at(table.run(cell), options, seed=seed) for seed in range(seeds)] for cell in cells}
    for runs in planned.values():
        validate(runs[0])
    return planned


def full(cell: str, table: Table) -> str:
    """A cell's whole name."""
    name = cell if cell in table.cells else f"{table.name}/{cell}"
    if name not in table.cells and cell in recipes.names():
        raise InputError(f"{cell} is a cell of another table; compare the cells of one table at a time")
    if name not in table.cells:
        raise unknown("recipe", cell, [known.partition("/")[2] or known for known in table.cells])
    return name


def at(run: Run, options: CompareOptions, *, seed: int, steps: int | None = None, suffix: str = "") -> Run:
    """A cell's run at one seed, in a folder of its own."""
    name = run.name + suffix
    out = str(Path(options.out) / f"{name.replace('/', '-')}-seed{seed}")
    wanted = next(s for s in (steps, options.steps, run.steps) if s is not None)
    placed = replace(changed(run, options.change), data={"root": options.data.root})
    how = {"device": options.device, "precision": options.precision, "engine": options.engine}
    return replace(placed, name=name, seed=seed, steps=wanted, out=out, **how)


def changed(run: Run, changes: tuple[str, ...]) -> Run:
    """The run with the fields that `changes` name, as FIELD=VALUE."""
    words = [word for change in changes for word in flags_of(change)]
    try:
        return parsed(Run, words, "l2i train RECIPE", run) if words else run
    except InputError as error:
        raise InputError(f"{run.name}: {error}") from None  # what one cell has another may lack


def flags_of(change: str) -> list[str]:
    """FIELD=VALUE as the command line of a run takes it: of true and false, a flag or its opposite."""
    name, equals, value = change.partition("=")
    if not equals or name.startswith("-"):
        raise InputError(f"--change takes FIELD=VALUE, as in --change optim.lr=0.001; it was given '{change}'")
    if name.replace("-", "_") in OWN:
        raise InputError(f"--change {name}: 'l2i compare' has an option of its own for that; see its --help")
    section, dot, field = name.replace("_", "-").rpartition(".")
    return {
        "true": [f"--{section}{dot}{field}"],
        "false": [f"--{section}{dot}no-{field}"],
    }.get(value.lower(), [f"--{section}{dot}{field}", value])


def trained(runs: list[Run], options: CompareOptions) -> list[Result]:
    """Train, and say so in a line a run."""
    results = []
    for result in train_together(runs, at_once=options.at_once):
        print(result.short(), file=sys.stderr, flush=True)
        results.append(result)
    return results


def as_long(table: Table, cell: str, base: Line, imputed: list[Result], options: CompareOptions) -> Line:
    """The baseline with so many steps that each seed takes as long as it did with L2I."""
    which = table.cells[cell]
    rule = MARKS[which.update].removeprefix(MARKS["normalized"])  # nothing, or -paper
    suffix = f"-longer{rule}{which.ablation and '-' + which.ablation}"
    run = table.run(base.name)
    runs = [
        at(run, options, seed=b.seed, steps=max(1, round(b.steps * i.seconds / b.seconds)), suffix=suffix)
        for b, i in zip(base.results, imputed, strict=True)
    ]
    return Line(base.name + suffix, trained(runs, options))
