"""What a table of the paper consists of: cells by name, their runs, and the settings' sources."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from l2i.methods import METHODS
from l2i.registry import load_registered

if TYPE_CHECKING:
    from l2i.config import Run

OuterUpdate = Literal["off", "normalized", "paper"]
Settings = dict[str, Any]
TABULAR_RHO = 0.1  # for tables of classes, a third of the default (benchmarks/ablation_cpu)
UPDATE_SUFFIXES: dict[OuterUpdate, str] = {"off": "", "normalized": "-l2i", "paper": "-l2i-paper"}
AXES = ("methods", "labels", "rules", "ablations", "budgets")  # of a table, as a cell's fields
RELEASED_BATCH_SIZE = 64  # of the released code for CIFAR
PAPER_RESULTS_CSV = Path(__file__).with_name("paper.csv")
ABLATIONS: dict[str, Settings] = {  # what they change in L2I's config
    "exact": {"hypergradient": "exact"},
    "learnable": {"labels": "learnable"},
    "separate": {"holdout": "separate"},
    "zero": {"ablation": "zero_gradient"},
    "shuffled": {"ablation": "shuffled_labels"},
    "direct": {"ablation": "direct_gradient"},
    "exact-shuffled": {"hypergradient": "exact", "ablation": "shuffled_labels"},
    "k1": {"hypergradient": "exact", "paper": {"inner_steps": 1}},
    "k2": {"hypergradient": "exact", "paper": {"inner_steps": 2}},
    "k3": {"hypergradient": "exact", "paper": {"inner_steps": 3}},
}
CONTROLS = ("zero", "shuffled", "direct")  # ablations without what imputing would add
CONTROLS_WITHOUT_LABELS = ("zero", "direct")  # impute nothing: however labels are learned, the same
LABEL_ABLATIONS = ("exact", "learnable", "k1", "k2", "k3")  # of how labels are learned


class Cell(NamedTuple):
    """A method, its number of labels, the rule of L2I, an ablation and a budget."""

    method: str
    num_labeled: int | float
    update: OuterUpdate = "off"
    ablation: str = ""
    budget: str = ""  # the paper's, or one of our own

    @property
    def is_control(self) -> bool:
        return self.ablation.rpartition("-")[2] in CONTROLS

    @property
    def method_slug(self) -> str:
        return "sl" if self.method == "supervised" else self.method


class PaperResult(NamedTuple):
    """A result as the paper prints it; the error is None if it prints none."""

    error: float | None
    uncertainty: float | None
    location: str
    note: str

    def __str__(self) -> str:
        if self.error is None:
            return "--"
        uncertainty = "" if self.uncertainty is None else f" ± {self.uncertainty:.2f}"
        return f"{self.error:.2f}{uncertainty}{'*' if self.note else ''}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: its cells by name, and how to make the run of one."""

    name: str
    cells: dict[str, Cell]
    make_settings: Callable[[Cell], Settings]
    """Fields of a cell's run, as for `l2i.replace`; those of its method are under "method"."""
    default_cells: tuple[str, ...]
    """Cells that `l2i compare` trains by default."""
    seeds: int
    compute_references: Callable[[str | None], dict[str, float]] | None = None
    """Metrics that need no training, by name, from the folder of the data."""
    sources: dict[str, str] = field(default_factory=dict)
    """Field -> where its value comes from, if the paper leaves it open."""
    budget_sources: dict[str, dict[str, str]] = field(default_factory=dict)
    """Budget -> sources that differ for cells on a budget of our own."""

    def get_run(self, name: str) -> Run:
        return self.make_run(name, self.cells[name])

    def make_run(self, name: str, cell: Cell) -> Run:
        """Return the run of a cell."""
        from l2i.config import Data, Run, replace

        method = load_registered("method", METHODS, cell.method)()
        run = Run(name=name, method=method, data=Data(num_labeled=cell.num_labeled))
        return replace(run, **self.make_settings(cell))

    def find_cell(self, cell: Cell) -> str | None:
        """Return the name of a cell, if the table has it."""
        return next((name for name, candidate in self.cells.items() if candidate == cell), None)

    def find_baseline(self, name: str) -> str | None:
        """Return the cell of the same method, labels and budget without L2I."""
        cell = self.cells[name]
        baseline = cell._replace(update="off", ablation="")
        return None if cell == baseline else self.find_cell(baseline)

    def find_controls(self, name: str) -> dict[str, str]:
        """Return the controls of a cell with L2I that differ from it in nothing else."""
        cell, controls = self.cells[name], dict[str, str]()
        for control in CONTROLS if not cell.is_control else ():
            ablation = f"{cell.ablation}-{control}" if cell.ablation else control
            if control in CONTROLS_WITHOUT_LABELS and cell.ablation in LABEL_ABLATIONS:
                ablation = control
            found = self.find_cell(cell._replace(ablation=ablation))
            controls |= {control: found} if found is not None else {}
        return controls

    def find_paper_cell(self, name: str) -> str:
        """Return the same cell on the paper's budget."""
        return self.find_cell(self.cells[name]._replace(budget="")) or name

    def get_paper_result(self, name: str) -> PaperResult | None:
        """Return the paper's result for a cell, whatever its budget and the rule of L2I."""
        suffixes = UPDATE_SUFFIXES["paper"], UPDATE_SUFFIXES["normalized"]
        return load_paper_results().get(self.find_paper_cell(name).replace(*suffixes))

    def get_setting_source(self, name: str, path: str) -> str | None:
        """Return where the value of a cell's field comes from, if the paper leaves it open."""
        budget_sources = self.budget_sources.get(self.cells[name].budget, {})
        return budget_sources.get(path, self.sources.get(path))

    def summarize(self) -> str:
        """List the values of each axis of the table."""
        lines = [f"{self.name} ({len(self.cells)} cells)"]
        for axis, values in zip(AXES, zip(*self.cells.values(), strict=True), strict=True):
            if names := [str(value) for value in dict.fromkeys(values) if value != ""]:
                lines.append(f"  {axis:<10} {', '.join(names)}")
        return "\n".join(lines)


def _compute_released_eta(cell: Cell, num_classes: int) -> float:
    """Return η of the released code for classes, on C^U alone: 0.1 (O) or 0.2 (L).

    Those are on a sum over 64 samples and all classes; this is on our mean. It depends neither on
    the learning rate nor on the size of the batch.
    """
    eta = 0.2 if cell.ablation == "learnable" else 0.1
    return eta * RELEASED_BATCH_SIZE * num_classes


def make_l2i(
    cell: Cell, *, num_classes: int = 0, eta: float | None = None, eta_schedule: str = "constant"
) -> Settings:
    """Return the fields of L2I as a cell has them.

    `eta` is for the paper's rule, and for every rule with a number of inner steps; by default it is
    that of the released code for `num_classes`.
    """
    eta = _compute_released_eta(cell, num_classes) if eta is None else eta
    settings = {"update": cell.update, **ABLATIONS.get(cell.ablation, {})}
    if cell.update == "paper" or "paper" in settings:
        paper = {"eta": eta, "eta_schedule": eta_schedule}
        settings["paper"] = {**paper, **settings.get("paper", {})}
    return settings


def name_cells(table_name: str, cells: Iterable[Cell]) -> dict[str, Cell]:
    """Return cells by name, TABLE/METHOD[-l2i[-paper]]-LABELS[-ABLATION][-BUDGET]."""
    named = {}
    for cell in cells:
        prefix = f"{table_name}/{cell.method_slug}{UPDATE_SUFFIXES[cell.update]}"
        parts = (prefix, str(cell.num_labeled), cell.ablation, cell.budget)
        named["-".join(filter(None, parts))] = cell
    return named


def make_cells(
    method: str, num_labeled: int | float, *, ablations: Iterable[str] = (), budget: str = ""
) -> list[Cell]:
    """Return a method without L2I, then with it by both rules: alone, controls and ablations."""
    cells = [Cell(method, num_labeled, budget=budget)]
    for ablation in ("", *CONTROLS, *ablations):
        with_l2i = Cell(method, num_labeled, "normalized", ablation, budget)
        cells += [with_l2i, with_l2i._replace(update="paper")]
    return cells


@cache
def load_paper_results() -> dict[str, PaperResult]:
    """Return the paper's results by cell; cells with L2I have the default rule's name."""
    with PAPER_RESULTS_CSV.open(encoding="utf-8", newline="") as file:
        return {
            row["cell"]: PaperResult(
                float(row["error"]) if row["error"] else None,
                float(row["spread"]) if row["spread"] else None,
                row["where"],
                row["note"],
            )
            for row in csv.DictReader(file)
        }
