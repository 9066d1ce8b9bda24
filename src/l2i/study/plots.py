"""Plots of the study: gains by problem, settings, and the course of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from l2i.study.found import WITHOUT, Figures, Found, in_percent, middle, over
from l2i.study.problems import WATCHED, Arm
from l2i.study.settings import GROUPS, SETTINGS
from l2i.study.tables import AGAINST, NAMES
from l2i.study.trial import Line

COLORS: dict[Arm, str] = {"baseline": "#7f7f7f", "longer": "#1f77b4", "control": "#ff8c00", "l2i": "#00a0c8"}
MARKS: dict[Arm, str] = {"baseline": "o", "longer": "s", "control": "^"}
DIVERGED = "#d62728"
LINEAR = 10.0  # per cent, up to which changes are drawn to scale; beyond, by their logarithm
HEADINGS = (
    "C^H",
    "‖g_outer‖ / ‖g_base‖, as it came",
    "error of the model's labels",
    "an update's change, in %, of C^H (—)\nand of the test cost (- -)",
)
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
Values = Callable[[Line], float | None]


def draw(found: list[Found], folder: str) -> list[Path]:
    """Write the pictures that there is something for, and return their paths."""
    written = []
    for name, figure in pictures(found):
        Path(folder).mkdir(parents=True, exist_ok=True)
        written.append(Path(folder) / f"{name}.png")
        figure.savefig(written[-1], dpi=100)
    return written


def pictures(found: list[Found]) -> Iterator[tuple[str, Figure]]:
    """Each picture with its name."""
    if compared := over(found, Found.arms):
        yield "gains", gains(compared)
    if changed := over(found, Found.settings):
        yield "settings", settings(changed)
    if watched := [each for each in found if each.those(part="course")]:
        yield "course", course(watched)


def gains(rows: list[tuple[Found, dict[Arm, Figures]]]) -> Figure:
    """Each problem's differences, in % of its baseline's error."""
    axes = (figure := Figure(figsize=(9, 1.6 + 0.75 * len(rows)), layout="constrained")).subplots()
    axes.axvline(0, color="grey", linewidth=1)
    for place, (label, arm) in enumerate(AGAINST.items()):
        values = [in_percent(figures["l2i"], figures[arm], figures["baseline"]) for _, figures in rows]
        bars = [(*middle(each), k + 0.22 * (place - 1)) for k, each in enumerate(values) if each]
        for k, (x, error, y) in enumerate(bars):
            color, shown = COLORS[arm], label if k == 0 else None
            axes.errorbar(x, y, xerr=error, fmt=MARKS[arm], color=color, markersize=6, capsize=3, label=shown)
    names = [f"{each.problem.name}\n{each.run.data.num_labeled} labels" for each, _ in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(
        "L2I minus the other, in % of the baseline's error, mean ± standard error; left of 0, L2I is better"
    )
    figure.legend(loc="outside upper center", ncols=len(AGAINST))
    return figure


def settings(columns: list[tuple[Found, dict[str, Figures]]]) -> Figure:
    """Every setting's change, a column a problem."""
    names = [name for name in SETTINGS if name != WITHOUT and any(name in figures for _, figures in columns)]
    labels = [label for group in GROUPS for label in (group, *(n for n in names if SETTINGS[n] == group))]
    places = {label: place for place, label in enumerate(labels)}
    figure = Figure(figsize=(3.6 + 1.2 * len(columns), 1.3 + 0.2 * len(labels)), layout="constrained")
    what = "Change of the error by one setting, in % of the error without L2I;\nleft of 0, better; ×: runs diverged"
    figure.suptitle(what, fontsize=11)
    grid = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, (each, figures) in zip(grid, columns, strict=True):
        axes.set_title(in_two_lines(each), fontsize=8)
        changes(axes, figures, {name: places[name] for name in names})
    grid[0].set_yticks(range(len(labels)), [label.partition(": ")[2] or label for label in labels], fontsize=8)
    for label, tick in zip(labels, grid[0].get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if label in GROUPS else "normal")
    grid[0].set_ylim(len(labels), -1)
    return figure


def in_two_lines(each: Found) -> str:
    """A problem's name: the data, and the method."""
    table = each.problem.cell.partition("/")[0]
    return f"{table}\n{each.problem.name.removeprefix(f'{table}-')}"


def changes(axes: Axes, figures: dict[str, Figures], places: dict[str, int]) -> None:
    """The settings of one problem, a group a color; a cross where runs diverged."""
    axes.axvline(0, color="grey", linewidth=1)
    groups = list(GROUPS)
    for name, place in places.items():
        values = in_percent(figures.get(name, {}), figures[WITHOUT], figures[WITHOUT])
        if values:
            x, error = middle(values)
            color = f"C{groups.index(SETTINGS[name])}"
            axes.errorbar(x, place, xerr=error, fmt="o", color=color, markersize=4, capsize=2, linewidth=1)
        if None in figures.get(name, {}).values():
            edge = axes.get_yaxis_transform()
            axes.plot(1.05, place, "x", color=DIVERGED, transform=edge, markersize=5, clip_on=False)
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_formatter(PLAIN)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)


def course(found: list[Found]) -> Figure:
    """Costs, gradients, imputed labels and what an update does, over the steps: a row a problem."""
    figure = Figure(figsize=(13, 0.6 + 2.5 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), 4, squeeze=False)
    for each, row in zip(found, grid, strict=True):
        for arm in WATCHED:
            arm_over_steps(row, each, arm)
        row[0].set_ylabel(in_two_lines(each), fontsize=9)
        for axes in row[:2]:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(PLAIN)
            low, high = axes.get_ylim()
            axes.yaxis.set_minor_formatter(PLAIN if high < 8 * low else NullFormatter())
        row[3].axhline(0, color="grey", linewidth=1)
        row[2].set_ylabel(each.measure, fontsize=8)
        for axes in row:
            axes.grid(alpha=0.3)
            axes.tick_params(which="both", labelsize=8)
    for axes, heading in zip(grid[0], HEADINGS, strict=True):
        axes.set_title(heading, fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("training step", fontsize=9)
    figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower center", ncols=len(WATCHED), fontsize=9)
    return figure


def arm_over_steps(row: list[Axes], each: Found, arm: Arm) -> None:
    """An arm's lines, means over its seeds."""
    lines = each.those(part="course", arm=arm)
    looks: list[tuple[Axes, Values, str]] = [
        (row[0], lambda record: record.get("c_h"), "-"),
        (row[1], lambda record: record.get("outer_ratio_raw"), "-"),
        (row[2], lambda record: record["imputed"], "-"),
        (row[3], lambda record: change(record, "c_h"), "-"),
        (row[3], lambda record: change(record, "test_cost"), "--"),
    ]
    for axes, value, style in looks:
        if curve := averaged(lines, value):
            axes.plot(*zip(*curve, strict=True), style, color=COLORS[arm], marker=".", label=NAMES[arm])


def averaged(lines: list[Line], value: Values) -> list[tuple[int, float]]:
    """A value over the steps, the mean over runs."""
    found: dict[int, list[float]] = {}
    for record in (record for line in lines for record in line["course"]):
        if (read := value(record)) is not None:
            found.setdefault(record["step"], []).append(read)
    return [(step, mean(values)) for step, values in sorted(found.items())]


def change(record: Line, cost: str) -> float | None:
    """What an outer update does to a cost, in % of it."""
    before, after = record.get(f"{cost}_before"), record.get(f"{cost}_after")
    return 100 * (after - before) / before if before else None
