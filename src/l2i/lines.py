"""The lines of a table that `l2i compare` prints: a cell's results, and those that they are set against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from l2i.recipes.cells import MARKS, Figure, Table
from l2i.statistic import with_error
from l2i.training.folder import Result

CONTROL = "control"  # the ablation that takes the outer step without imputing


@dataclass(frozen=True)
class Line:
    """A row of the table: a cell, what its runs came to, and the lines that it is set against, seed by seed."""

    name: str
    results: Sequence[Result]
    same_steps: Line | None = None
    same_time: Line | None = None
    control: Line | None = None
    paper: Figure | None = None
    paper_steps: int | None = None
    """How many steps the paper's runs have."""
    own_budget: bool = False
    """Whether the schedule is ours and not the paper's."""

    @property
    def figures(self) -> list[float]:
        return [r.figure for r in self.results]

    @property
    def digits(self) -> int:
        """Behind the point: an error in % has two, and one in units, which may be small ones, three."""
        return 2 if "%" in self.results[0].figure_name else 3

    @property
    def seeds(self) -> set[int]:
        return {r.seed for r in self.results}

    @property
    def steps(self) -> float:
        return mean(r.steps for r in self.results)

    @property
    def against(self) -> list[Line]:
        """Those that it is set against."""
        return [line for line in (self.same_steps, self.same_time, self.control) if line is not None]

    def time(self) -> float:
        return mean(r.seconds for r in self.results)

    def gain(self, other: Line | None) -> str:
        """The difference to another line, paired by the seeds that both have; negative where this line is better."""
        theirs = {} if other is None else {r.seed: r.figure for r in other.results}
        differences = [r.figure - theirs[r.seed] for r in self.results if r.seed in theirs]
        return with_error(differences, self.digits, sign="+") if differences else ""


def lines_of(table: Table, found: Mapping[str, Sequence[Result]]) -> list[Line]:
    """The lines of results by name, in their order."""
    alone = {name: Line(name, results) for name, results in found.items()}
    for cell in alone.keys() & table.cells.keys():
        alone[cell] = replace(
            alone[cell],
            paper=table.figure(cell),
            paper_steps=table.run(table.papers(cell)).steps,
            own_budget=bool(table.cells[cell].budget),
        )
    return [set_against(alone, line, table) for line in alone.values()]


def set_against(alone: dict[str, Line], line: Line, table: Table) -> Line:
    """The line of a cell with L2I beside its baselines and its control, where they are there; another as it is."""
    baseline = table.baseline(line.name) if line.name in table.cells else None
    if baseline is None:
        return line
    longer, control = longer_of(line.name, table), control_of(line.name, table)
    return replace(
        line,
        same_steps=alone.get(baseline),
        same_time=alone.get(longer),
        control=alone.get(control) if control else None,
    )


def longer_of(cell: str, table: Table) -> str:
    """The name of the baseline that is trained for as long as a cell with L2I took."""
    which = table.cells[cell]
    rule = MARKS[which.update].removeprefix(MARKS["normalized"])  # nothing, or -paper
    return f"{table.baseline(cell)}-longer{rule}{which.ablation and '-' + which.ablation}"


def control_of(cell: str, table: Table) -> str | None:
    """The cell that shows what of an L2I cell's gain is not owed to imputing."""
    twin = table.cells[cell]._replace(ablation=CONTROL)
    return None if table.cells[cell] == twin else next((n for n, c in table.cells.items() if c == twin), None)


def short(name: str) -> str:
    """A cell's name without its table's."""
    return name.partition("/")[2] or name
