"""What a table of the paper is made of: cells by name, the run of each, and where its settings come from."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from l2i.config import L2I, Run

OuterUpdate = Literal["off", "normalized", "paper"]
TABULAR_RHO = 0.1  # for tables of classes, a third of the default (docs/study.md)
UPDATE_SUFFIXES: dict[OuterUpdate, str] = {"off": "", "normalized": "-l2i", "paper": "-l2i-paper"}
PAPER_RESULTS_CSV = Path(__file__).with_name("paper.csv")


class Cell(NamedTuple):
    """A method with so many labels, how L2I is applied to it, what an ablation changes, and on which budget."""

    method: str
    num_labeled: int | float
    update: OuterUpdate = "off"
    ablation: str = ""
    budget: str = ""  # the paper's, or one of our own

    @property
    def method_slug(self) -> str:
        return "sl" if self.method == "supervised" else self.method


class PaperResult(NamedTuple):
    """A figure as the paper prints it; None where it prints none."""

    error: float | None
    uncertainty: float | None
    location: str
    note: str

    def __str__(self) -> str:
        if self.error is None:
            return "--"
        mark = "*" if self.note else ""
        return f"{self.error:.2f}{mark}" if self.uncertainty is None else f"{self.error:.2f} ± {self.uncertainty:.2f}{mark}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: its cells by name and how to make a run of one."""

    name: str
    cells: dict[str, Cell]
    make_run: Callable[[str, Cell], Run]
    default_cells: tuple[str, ...]
    """What `l2i compare` trains when nothing is said."""
    seeds: int
    compute_references: Callable[[str | None], dict[str, float]] | None = None
    """Figures that need no training, by name, from the folder of the data: a row beside every comparison."""
    sources: dict[str, str] = field(default_factory=dict)
    """Field -> where its value comes from, where the paper leaves it open."""
    budget_sources: dict[str, dict[str, str]] = field(default_factory=dict)
    """The same for cells on a budget of our own, where they differ, by budget."""

    def get_run(self, name: str) -> Run:
        return self.make_run(name, self.cells[name])

    def find_baseline(self, name: str) -> str | None:
        """The cell of the same method, labels and budget without L2I."""
        cell = self.cells[name]
        baseline_cell = Cell(cell.method, cell.num_labeled, budget=cell.budget)
        return None if cell == baseline_cell else next((n for n, c in self.cells.items() if c == baseline_cell), None)

    def get_paper_result(self, name: str) -> PaperResult | None:
        """The paper's figure for a cell, whatever its budget: the same for L2I's default rule and the paper's."""
        return load_paper_results().get(self.find_paper_cell(name).replace(UPDATE_SUFFIXES["paper"], UPDATE_SUFFIXES["normalized"]))

    def find_paper_cell(self, name: str) -> str:
        """The same cell on the paper's budget."""
        paper_cell = self.cells[name]._replace(budget="")
        return next((n for n, c in self.cells.items() if c == paper_cell), name)

    def get_setting_source(self, name: str, path: str) -> str | None:
        """Where the value of a cell's field comes from, where the paper leaves it open."""
        return self.budget_sources.get(self.cells[name].budget, {}).get(path, self.sources.get(path))


ABLATIONS: dict[str, dict[str, Any]] = {
    "exact": {"hypergradient": "exact"},
    "learnable": {"labels": "learnable"},
    "separate": {"holdout": "separate"},
    "control": {"through": "parameters"},
    **{f"k{count}": {"hypergradient": "exact", "inner_steps": count} for count in (1, 2, 3)},
}


def make_l2i_config(
    cell: Cell, eta: float, *, eta_schedule: Literal["constant", "rate"] = "constant", rho: float | None = None
) -> L2I:
    """L2I as a cell has it; `eta` is for the paper's rule, and for every rule with a number of inner steps."""
    from l2i.config import L2I

    changes = {"update": cell.update, **ABLATIONS.get(cell.ablation, {})}
    if rho is not None:
        changes["rho"] = rho
    if cell.update == "paper":
        changes["inner_supervised"] = True
    if cell.update == "paper" or "inner_steps" in changes:
        changes |= {"eta": eta, "eta_schedule": eta_schedule}
    return L2I(**changes)


def name_cells(table_name: str, cells: Iterable[Cell]) -> dict[str, Cell]:
    """Cells by name, TABLE/METHOD[-l2i][-paper]-LABELS[-ABLATION][-BUDGET]."""
    return {
        "-".join(filter(None, [f"{table_name}/{c.method_slug}{UPDATE_SUFFIXES[c.update]}", str(c.num_labeled), c.ablation, c.budget])): c
        for c in cells
    }


def make_l2i_cells(method: str, num_labeled: int | float, *, ablations: Iterable[str] = ()) -> list[Cell]:
    """A method with L2I, by the library's default rule and by the paper's, as it is and with each ablation."""
    updates: tuple[OuterUpdate, ...] = ("normalized", "paper")
    return [Cell(method, num_labeled, update, ablation) for ablation in ("", *ablations) for update in updates]


def make_control_cell(method: str, num_labeled: int | float) -> Cell:
    """More labelled samples in place of the outer step, at the same strength: what L2I has to be better than."""
    return Cell(method, num_labeled, "normalized", "control")


@cache
def load_paper_results() -> dict[str, PaperResult]:
    """The paper's figures, by cell; for the cells with L2I, under the default rule's name."""
    with PAPER_RESULTS_CSV.open(encoding="utf-8", newline="") as file:
        return {
            row["cell"]: PaperResult(parse_optional_float(row["error"]), parse_optional_float(row["spread"]), row["where"], row["note"])
            for row in csv.DictReader(file)
        }


def parse_optional_float(text: str) -> float | None:
    """A number, where there is one."""
    return float(text) if text else None
