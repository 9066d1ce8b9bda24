"""What imputing does on the way, in the probed runs of a table (figure «Effect of update on labels», and more)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, NamedTuple

from l2i.curves import evaluations, logarithmic
from l2i.errors import InputError
from l2i.lines import Line, short
from l2i.options import CompareOptions
from l2i.recipes.cells import Table
from l2i.statistic import with_error
from l2i.tabular import Columns
from l2i.training.log import Row, mean_over

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RAW = "‖g_outer‖/‖g_base‖"
CHANGE = (
    "what a cost is after one more step with its outer update, less what it is after that step without, mean ± "
    "standard error over looks, and at what share of them it is lower; C^H is that of the update's own hold-out samples"
)
READING = (
    "a → b: until the first look → from the last but one to the last, means over seeds and steps; a look is an "
    "evaluation of a probed run.",
    f"{RAW}: as it came, before it is brought to ρ.",
    f"change: {CHANGE}.",
    "labels wrong: imputed classes of unlabelled samples against the hidden truth, where looked at, at the end; above "
    "and below: the method's threshold.",
)
MEANS = ("c_h", "outer_ratio_raw")  # columns that are means over steps
COSTS = ("c_h", "test_cost")  # measured before and after an outer update
MARKERS = "ox^sv"  # of seeds
Runs = list[list[Row]]  # the looks of each run
Lines = dict[str, tuple[str, str, str | None]]  # whose runs: color, style, label
BOTH: Lines = {"ours": ("C0", "-", "with L2I"), "theirs": ("C7", "-", "without")}
PANELS: dict[str, dict[str, Lines]] = {
    "C^H around an outer update": {
        "c_h_before": {"ours": ("C1", "-", "before")},
        "c_h_after": {"ours": ("C0", "--", "after")},
    },
    "change of a cost by\nan outer update": {
        "c_h_change": {"ours": ("C0", "-", "C^H")},
        "test_cost_change": {"ours": ("C3", "-", "test cost")},
    },
    RAW: {"outer_ratio_raw": {"ours": ("C0", "-", None)}},
    "imputed labels wrong (%)": {"imputed": BOTH},
    "wrong above and below\nthe threshold (%)": {
        "imputed_above": {"ours": ("C0", "-", "above, with L2I"), "theirs": ("C7", "-", "above, without")},
        "imputed_below": {"ours": ("C0", "--", "below, with L2I"), "theirs": ("C7", "--", "below, without")},
    },
}


class Pair(NamedTuple):
    """The looks of a cell's runs with L2I, and of its baseline's, of the seeds that both have."""

    name: str
    ours: Runs
    theirs: Runs


def pairs_of(table: Table, lines: Sequence[Line], options: CompareOptions) -> list[Pair]:
    """Of all lines with L2I whose runs were probed."""
    found = []
    for line in lines:
        if line.same_steps is None:
            continue
        shared = {result.seed for result in line.results} & {result.seed for result in line.same_steps.results}
        both = [
            [looks(evaluations(table, each.name, result, options)) for result in each.results if result.seed in shared]
            for each in (line, line.same_steps)
        ]
        if both[0] and all(both[0]):
            found.append(Pair(line.name, *both))
    if not found:
        raise InputError(
            "no cell with L2I beside its baseline was probed, so --mechanism has nothing to tell; train both with "
            "--change probe=1000"
        )
    return found


def looks(rows: list[Row]) -> list[Row]:
    """The evaluations at which a run was probed; means over steps are over all since the look before."""
    found, since, last = [], list[tuple[float, Row]](), 0.0
    for row in rows:
        since.append((float(row["step"] or 0) - last, row))
        last = float(row["step"] or 0)
        if row.get("imputed") is not None or row.get("c_h_before") is not None:
            changes = {f"{cost}_change": change(row, cost) for cost in COSTS}
            found.append({**row, **{name: mean_over(since, name) for name in MEANS}, **changes})
            since = []
    return found


def change(row: Row, cost: str) -> float | None:
    """What an outer update adds to a cost."""
    before, after = row.get(f"{cost}_before"), row.get(f"{cost}_after")
    return None if before is None or after is None else float(after) - float(before)


def course(pairs: list[Pair]) -> Columns:
    """A row a cell with L2I."""
    return {
        "cell": [short(pair.name) for pair in pairs],
        "C^H": [from_to(pair.ours, "c_h") for pair in pairs],
        "change of C^H": [mean_change(pair.ours, "c_h") for pair in pairs],
        "change of the test cost": [mean_change(pair.ours, "test_cost") for pair in pairs],
        RAW: [from_to(pair.ours, "outer_ratio_raw") for pair in pairs],
        **beside(pairs, "labels wrong (%)", "imputed"),
        **beside(pairs, "above (%)", "above", scale=100),
        **beside(pairs, "wrong above (%)", "imputed_above"),
        **beside(pairs, "wrong below (%)", "imputed_below"),
    }


def at(runs: Runs, column: str, look: int) -> float | None:
    """The mean over runs at one of their looks, where all have the column."""
    found = [run[look].get(column) if run else None for run in runs]
    return None if any(value is None for value in found) else mean(value for value in found if value is not None)


def from_to(runs: Runs, column: str) -> str:
    """Until the first look, and until the last."""
    ends = [at(runs, column, look) for look in (0, -1)]
    return " → ".join("–" if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}" for value in ends)


def mean_change(runs: Runs, cost: str) -> str:
    """What outer updates add to a cost, and how often it is lower after one."""
    told = [value for run in runs for row in run if (value := change(row, cost)) is not None]
    lower = 100 * sum(value < 0 for value in told) / max(1, len(told))
    return f"{with_error(told, digits=digits_for(told), sign='+')}, {lower:.0f} %" if told else "–"


def digits_for(values: list[float]) -> int:
    """Four, or as many as show a small mean and its error, up to seven."""
    sizes = [abs(mean(values)), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0]
    return min(7, max([4, *(-math.floor(math.log10(size)) for size in sizes if size > 0)]))


def beside(pairs: list[Pair], heading: str, column: str, *, scale: float = 1) -> Columns:
    """A figure at the end with L2I, and without; nothing where no method has it."""
    ends = {
        f"{heading}{mark}": [at(runs, column, -1) for runs in each]
        for mark, each in (("", [pair.ours for pair in pairs]), (", without L2I", [pair.theirs for pair in pairs]))
    }
    if all(value is None for values in ends.values() for value in values):
        return {}
    return {name: ["" if v is None else f"{scale * v:.1f}" for v in values] for name, values in ends.items()}


def drawn(pairs: list[Pair], path: Path) -> Path:
    """A column a cell, a row a panel that any of them has something for."""
    from matplotlib.figure import Figure

    panels = {
        heading: panel
        for heading, panel in PANELS.items()
        if any(row.get(column) is not None for pair in pairs for run in pair.ours for row in run for column in panel)
    }
    figure = Figure(figsize=(1.2 + 2.9 * len(pairs), 0.6 + 2.3 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), len(pairs), squeeze=False, sharex="col")
    for pair, axes in zip(pairs, grid.T, strict=True):
        axes[0].set_title(short(pair.name), fontsize=9)
        for each, (heading, panel) in zip(axes, panels.items(), strict=True):
            draw_panel(each, pair, panel, log=not any(mark in heading for mark in ("%", "change")))
        lowest = [each for each in axes if each.lines][-1]
        lowest.set_xlabel("step")
        lowest.tick_params(labelbottom=True)
    for row, heading in zip(grid, panels, strict=True):
        next(each for each in row if each.lines).set_ylabel(heading, fontsize=9)
    figure.savefig(path, dpi=100)
    return path


def draw_panel(axes: Axes, pair: Pair, panel: dict[str, Lines], *, log: bool) -> None:
    """The lines of a panel, of each run one; those of a kind in one color, those of a seed with one marker."""
    for column, lines in panel.items():
        for which, (color, style, label) in lines.items():
            for index, run in enumerate(getattr(pair, which)):
                points = [(row["step"], row[column]) for row in run if row.get(column) is not None]
                if points:
                    shown = None if index else label
                    marker = MARKERS[index % len(MARKERS)]
                    axes.plot(*zip(*points, strict=True), style, color=color, marker=marker, ms=4, label=shown)
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.grid(alpha=0.3)
    if log:
        logarithmic(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, framealpha=0.6)
