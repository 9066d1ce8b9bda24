"""Plots of the ablation: gains by problem, settings, and training dynamics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

from benchmarks.ablation_cpu.grid import DYNAMICS_ARMS, GROUP_BY_SETTING, SETTING_GROUPS, Arm
from benchmarks.ablation_cpu.results import (
    BASELINE_SETTING,
    ProblemResults,
    SeedMetrics,
    compute_percent_changes,
    select_with_metrics,
)
from benchmarks.ablation_cpu.store import Record
from benchmarks.ablation_cpu.tables import ARM_LABELS, DIFFERENCE_COLUMNS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from l2i.experiments.formatting import compute_mean_stderr
from l2i.experiments.plots import add_legend, make_figure, save_figure, set_log_scale

ARM_COLORS: dict[Arm, str] = {
    "baseline": "#7f7f7f",
    "longer": "#1f77b4",
    "control": "#ff8c00",
    "l2i": "#00a0c8",
}
ARM_MARKERS: dict[Arm, str] = {"baseline": "o", "longer": "s", "control": "^"}
DIVERGED_COLOR = "#d62728"
LINEAR_THRESHOLD = 10.0  # %, up to which the axis of changes is linear; beyond, it is logarithmic
DYNAMICS_TITLES = (
    "C^H",
    "‖g_outer‖ / ‖g_base‖, before scaling",
    "error of the imputed labels",
    "change by an outer update, in %,\nof C^H (—) and the test cost (- -)",
)
ValueGetter = Callable[[Record], float | None]


def save_plots(results: list[ProblemResults], folder: str) -> list[Path]:
    """Write the plots of all parts that have records, and return their paths."""
    return [
        save_figure(figure, Path(folder) / f"{name}.png") for name, figure in make_figures(results)
    ]


def make_figures(results: list[ProblemResults]) -> Iterator[tuple[str, Figure]]:
    """Yield each plot with its name."""
    if arm_results := select_with_metrics(results, ProblemResults.get_arm_metrics):
        yield "gains", plot_gains(arm_results)
    if setting_results := select_with_metrics(results, ProblemResults.get_setting_metrics):
        yield "settings", plot_settings(setting_results)
    if dynamics_results := [result for result in results if result.select_records(part="dynamics")]:
        yield "dynamics", plot_training_dynamics(dynamics_results)


def plot_gains(rows: list[tuple[ProblemResults, dict[Arm, SeedMetrics]]]) -> Figure:
    """Plot each problem's differences, in % of its baseline's error."""
    figure = make_figure(9, 1.6 + 0.75 * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color="grey", linewidth=1)
    for position, (label, arm) in enumerate(DIFFERENCE_COLUMNS.items()):
        values = [
            compute_percent_changes(metrics["l2i"], metrics[arm], metrics["baseline"])
            for _, metrics in rows
        ]
        bars = [
            (*compute_mean_stderr(percents), k + 0.22 * (position - 1))
            for k, percents in enumerate(values)
            if percents
        ]
        for k, (x, error, y) in enumerate(bars):
            color, legend_label = ARM_COLORS[arm], label if k == 0 else None
            axes.errorbar(
                x,
                y,
                xerr=error,
                fmt=ARM_MARKERS[arm],
                color=color,
                markersize=6,
                capsize=3,
                label=legend_label,
            )
    names = [f"{result.problem.name}\n{result.run.data.num_labeled} labels" for result, _ in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(
        "L2I minus the other arm, in % of the baseline's error (negative: L2I is better)"
    )
    figure.legend(loc="outside upper center", ncols=len(DIFFERENCE_COLUMNS))
    return figure


def plot_settings(columns: list[tuple[ProblemResults, dict[str, SeedMetrics]]]) -> Figure:
    """Plot the change by every setting, one column per problem."""
    names = [
        name
        for name in GROUP_BY_SETTING
        if name != BASELINE_SETTING and any(name in metrics for _, metrics in columns)
    ]
    labels = [
        label
        for group in SETTING_GROUPS
        for label in (group, *(n for n in names if GROUP_BY_SETTING[n] == group))
    ]
    positions = {label: position for position, label in enumerate(labels)}
    title = (
        "Change of the error by one setting, in % of the error without L2I;\n"
        "negative is better; ×: runs diverged"
    )
    width, height = 3.6 + 1.2 * len(columns), 1.3 + 0.2 * len(labels)
    figure = make_figure(width, height, title, fontsize=11)
    grid = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, (result, metrics) in zip(grid, columns, strict=True):
        axes.set_title(format_problem_title(result), fontsize=8)
        plot_setting_changes(axes, metrics, {name: positions[name] for name in names})
    grid[0].set_yticks(
        range(len(labels)), [label.partition(": ")[2] or label for label in labels], fontsize=8
    )
    for label, tick in zip(labels, grid[0].get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if label in SETTING_GROUPS else "normal")
    grid[0].set_ylim(len(labels), -1)
    return figure


def format_problem_title(result: ProblemResults) -> str:
    """Return a problem's title: dataset and method."""
    dataset = result.problem.cell.partition("/")[0]
    return f"{dataset}\n{result.problem.name.removeprefix(f'{dataset}-')}"


def plot_setting_changes(
    axes: Axes, metrics: dict[str, SeedMetrics], positions: dict[str, int]
) -> None:
    """Plot the settings of one problem, one colour per group; a cross if runs diverged."""
    axes.axvline(0, color="grey", linewidth=1)
    groups = list(SETTING_GROUPS)
    for name, position in positions.items():
        values = compute_percent_changes(
            metrics.get(name, {}), metrics[BASELINE_SETTING], metrics[BASELINE_SETTING]
        )
        if values:
            x, error = compute_mean_stderr(values)
            color = f"C{groups.index(GROUP_BY_SETTING[name])}"
            axes.errorbar(
                x, position, xerr=error, fmt="o", color=color, markersize=4, capsize=2, linewidth=1
            )
        if None in metrics.get(name, {}).values():
            edge_transform = axes.get_yaxis_transform()
            axes.plot(
                1.05,
                position,
                "x",
                color=DIVERGED_COLOR,
                transform=edge_transform,
                markersize=5,
                clip_on=False,
            )
    axes.set_xscale("symlog", linthresh=LINEAR_THRESHOLD)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)


def plot_training_dynamics(results: list[ProblemResults]) -> Figure:
    """Plot costs, gradients, imputed labels and effects of updates, one row per problem."""
    figure = make_figure(13, 0.6 + 2.5 * len(results))
    grid = figure.subplots(len(results), 4, squeeze=False)
    for result, row in zip(results, grid, strict=True):
        for arm in DYNAMICS_ARMS:
            plot_arm_dynamics(row, result, arm)
        row[0].set_ylabel(format_problem_title(result), fontsize=9)
        for axes in row[:2]:
            set_log_scale(axes)
        row[3].axhline(0, color="grey", linewidth=1)
        row[2].set_ylabel(result.metric_label, fontsize=8)
        for axes in row:
            axes.grid(alpha=0.3)
            axes.tick_params(which="both", labelsize=8)
    for axes, heading in zip(grid[0], DYNAMICS_TITLES, strict=True):
        axes.set_title(heading, fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("training step", fontsize=9)
    add_legend(figure, grid[0, 2], fontsize=9)
    return figure


def plot_arm_dynamics(row: list[Axes], result: ProblemResults, arm: Arm) -> None:
    """Plot an arm, means over its seeds."""
    lines = result.select_records(part="dynamics", arm=arm)
    panels: list[tuple[Axes, ValueGetter, str]] = [
        (row[0], lambda record: record.get("c_h"), "-"),
        (row[1], lambda record: record.get("grad_ratio_raw"), "-"),
        (row[2], lambda record: record["pseudo_label_error"], "-"),
        (row[3], lambda record: compute_percent_change(record, "c_h"), "-"),
        (row[3], lambda record: compute_percent_change(record, "test_cost"), "--"),
    ]
    for axes, get_value, style in panels:
        if curve := average_over_runs(lines, get_value):
            axes.plot(
                *zip(*curve, strict=True),
                style,
                color=ARM_COLORS[arm],
                marker=".",
                label=ARM_LABELS[arm],
            )


def average_over_runs(lines: list[Record], get_value: ValueGetter) -> list[tuple[int, float]]:
    """Return the mean of a value over runs at each step."""
    values_by_step: dict[int, list[float]] = {}
    for record in (record for line in lines for record in line["dynamics"]):
        if (step_value := get_value(record)) is not None:
            values_by_step.setdefault(record["step"], []).append(step_value)
    return [(step, mean(values)) for step, values in sorted(values_by_step.items())]


def compute_percent_change(record: Record, cost: str) -> float | None:
    """Return the change of a cost by an outer update, in % of the cost."""
    before, after = record.get(f"{cost}_before"), record.get(f"{cost}_after")
    return 100 * (after - before) / before if before else None
