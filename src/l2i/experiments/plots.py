"""Plots of `l2i compare`: test error against time, and what imputing does during probed runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from l2i.errors import InputError
from l2i.experiments.formatting import FormattedColumns, compute_mean_stderr, format_values
from l2i.experiments.options import CompareOptions
from l2i.experiments.results import (
    ComparisonRow,
    make_folder,
    resolve_table_dir,
    strip_table_name,
    translate_corruption,
)
from l2i.files.output import check_output_file, write_atomic, write_output
from l2i.files.safety import check_regular_file
from l2i.recipes.table import Table
from l2i.training.metrics import MetricRow, compute_step_weighted_mean, parse_metrics
from l2i.training.run_dir import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
SECONDS_PER_MINUTE = 60.0
MIN_RATIO_FOR_LOG_AXIS = 5  # largest to smallest error, from which the axis is logarithmic
NUM_COLORS = 10  # of matplotlib's cycle
LINE_STYLES = ("-", "--", ":")  # the next one is used when the colors are exhausted

RAW_RATIO_LABEL = "‖g_outer‖/‖g_base‖"
CHANGE_DESCRIPTION = (
    "a cost after one more step with its outer update, minus the same without it: mean ± standard "
    "error over probes, and the percentage of probes in which it is lower; C^H is measured on the "
    "update's own hold-out samples"
)
ANALYSIS_NOTES = (
    "a → b: the mean over seeds and steps up to the first probe → between the last two probes; "
    "a probe is an evaluation of a run with probe_samples.",
    f"{RAW_RATIO_LABEL}: before rescaling to ρ.",
    f"change: {CHANGE_DESCRIPTION}.",
    "wrong labels: imputed classes of probed unlabelled samples that differ from the hidden truth, "
    "at the last probe; above and below refer to the method's confidence threshold.",
)
STEP_MEAN_COLUMNS = ("c_h", "grad_ratio_raw")  # means over steps
COST_NAMES = ("c_h", "test_cost")  # measured before and after an outer update
SEED_MARKERS = "ox^sv"
ProbedRuns = list[list[MetricRow]]  # the probed evaluations of each run
PanelLine = tuple[str, str, str, str, str | None]  # side of a pair, column, color, style, label
PANELS: dict[str, list[PanelLine]] = {
    "C^H before and after\nan outer update": [
        ("ours", "c_h_before", "C1", "-", "before"),
        ("ours", "c_h_after", "C0", "--", "after"),
    ],
    "change in cost by\nan outer update": [
        ("ours", "c_h_change", "C0", "-", "C^H"),
        ("ours", "test_cost_change", "C3", "-", "test cost"),
    ],
    RAW_RATIO_LABEL: [("ours", "grad_ratio_raw", "C0", "-", None)],
    "wrong imputed labels (%)": [
        ("ours", "pseudo_label_error", "C0", "-", "with L2I"),
        ("theirs", "pseudo_label_error", "C7", "-", "without"),
    ],
    "wrong labels above and\nbelow the threshold (%)": [
        ("ours", "pseudo_label_error_above_threshold", "C0", "-", "above, with L2I"),
        ("theirs", "pseudo_label_error_above_threshold", "C7", "-", "above, without"),
        ("ours", "pseudo_label_error_below_threshold", "C0", "--", "below, with L2I"),
        ("theirs", "pseudo_label_error_below_threshold", "C7", "--", "below, without"),
    ],
}


def make_figure(width: float, height: float, title: str = "", fontsize: float = 10) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=fontsize)
    return figure


def save_figure(figure: Figure, path: Path, *, overwrite: bool | None = None) -> Path:
    """Write a figure, and return its path; `overwrite` is that of a user's own --out."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=100, format=path.suffix[1:].lower())
    path.parent.mkdir(parents=True, exist_ok=True)
    if overwrite is None:
        write_atomic(path, buffer.getvalue())
    else:
        target = check_output_file(path, PLOT_SUFFIXES, overwrite=overwrite)
        write_output(target, buffer.getvalue(), path)
    return path


def add_legend(figure: Figure, axes: Axes, **settings: float) -> None:
    """Add the legend of an axes below the figure, in one row."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **settings)


def set_log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def check_plot_paths(options: CompareOptions) -> None:
    """Check that the requested plots, if any, can be written, before anything is trained."""
    for flag, name in (("--plot", options.plot), ("--analyze-updates", options.analyze_updates)):
        if name is None:
            continue
        path = Path(name)
        if path.suffix.lower() not in PLOT_SUFFIXES:
            raise InputError(f"{flag} {path}: the file name must end in {', '.join(PLOT_SUFFIXES)}")
        if options.dry_run:
            raise InputError(
                f"{flag} cannot be combined with --dry-run, which trains nothing; drop one of them"
            )
        make_folder(path.parent, flag)
        check_output_file(path, PLOT_SUFFIXES, overwrite=options.overwrite)


def _read_evaluations(
    table: Table, name: str, result: Result, options: CompareOptions
) -> list[MetricRow]:
    """Read a run's evaluations from where its result came from."""
    folder = options.from_ or options.save_results
    if folder is not None:
        file_name = f"{strip_table_name(name)}-seed{result.seed}.jsonl"
        path = resolve_table_dir(Path(folder), table.name) / file_name
    else:
        path = Path(options.out) / f"{name.replace('/', '-')}-seed{result.seed}" / "metrics.jsonl"
    damage = f"{path}, the metrics of a run, cannot be read; restore it, or omit the plot"
    with translate_corruption(damage):
        rows = parse_metrics(check_regular_file(path).read_bytes())
        if not all(row["test"] is None or isinstance(row["test"], int | float) for row in rows):
            raise ValueError("an error that is not a number")
    return rows


class Curve(NamedTuple):
    """The test errors of a run over time."""

    result: Result
    minutes: list[float]
    errors: list[float]


def load_curve(table: Table, name: str, result: Result, options: CompareOptions) -> Curve:
    """Load a run's test errors; all its steps are taken to be equally long."""
    evaluations = _read_evaluations(table, name, result, options)
    rows = [row for row in evaluations if row["test"] is not None]
    if not rows:
        raise InputError(
            f"{name}, seed {result.seed}, has no test errors to plot; leave out --plot"
        )
    minutes_per_step = result.seconds / result.steps / SECONDS_PER_MINUTE
    minutes = [float(row["step"] or 0) * minutes_per_step for row in rows]
    return Curve(result, minutes, [float(row["test"] or 0) for row in rows])


def plot_error_curves(table: Table, rows: Sequence[ComparisonRow], options: CompareOptions) -> Path:
    """Plot the test errors of all runs, and return the path."""
    curves = {
        row.name: [load_curve(table, row.name, result, options) for result in row.results]
        for row in rows
    }
    figure, path = make_curves_figure(curves), Path(options.plot or "")
    return save_figure(figure, path, overwrite=options.overwrite)


def make_curves_figure(curves: dict[str, list[Curve]]) -> Figure:
    """Draw the runs of a cell alike, with a dot at each run's metric in the table."""
    figure = make_figure(10, 5)
    axes = figure.subplots()
    for cell_index, (name, runs) in enumerate(curves.items()):
        color = f"C{cell_index % NUM_COLORS}"
        style = LINE_STYLES[cell_index // NUM_COLORS % len(LINE_STYLES)]
        for index, (result, minutes, errors) in enumerate(runs):
            label = strip_table_name(name) if index == 0 else None
            axes.plot(minutes, errors, color=color, linestyle=style, label=label)
            axes.plot([result.seconds / SECONDS_PER_MINUTE], [result.metric], "o", color=color)
    metric_name = next(iter(curves.values()))[0].result.metric_name
    axes.set(xlabel="training time (minutes)", ylabel=f"{metric_name}, test set")
    errors = [error for runs in curves.values() for run in runs for error in run.errors]
    finite_errors = [error for error in errors if math.isfinite(error)]
    if finite_errors and 0 < MIN_RATIO_FOR_LOG_AXIS * min(finite_errors) <= max(finite_errors):
        set_log_scale(axes)  # otherwise the last errors would lie flat
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper")
    return figure


class ProbedPair(NamedTuple):
    """Probed evaluations of a cell with L2I and of its baseline, over the seeds both have."""

    name: str
    ours: ProbedRuns
    theirs: ProbedRuns


def collect_pairs(
    table: Table, rows: Sequence[ComparisonRow], options: CompareOptions
) -> list[ProbedPair]:
    """Return the pairs of all rows with L2I whose runs were probed."""
    pairs = []
    for row in rows:
        if row.baseline is None:
            continue
        ours, theirs = (
            [
                select_probes(_read_evaluations(table, side.name, result, options))
                for result in side.results
                if result.seed in row.seeds & row.baseline.seeds
            ]
            for side in (row, row.baseline)
        )
        if ours and all(ours):
            pairs.append(ProbedPair(row.name, ours, theirs))
    if not pairs:
        raise InputError(
            "--analyze-updates found no probed cell with L2I and its baseline; "
            "train both with --set probe_samples=1000"
        )
    return pairs


def select_probes(rows: list[MetricRow]) -> list[MetricRow]:
    """Return the probed evaluations; means over steps are over all since the previous one."""
    probes, rows_since_probe, last_step = [], list[tuple[float, MetricRow]](), 0.0
    for row in rows:
        step = float(row["step"] or 0)
        rows_since_probe.append((step - last_step, row))
        last_step = step
        if row.get("pseudo_label_error") is not None or row.get("c_h_before") is not None:
            means = {
                name: compute_step_weighted_mean(rows_since_probe, name)
                for name in STEP_MEAN_COLUMNS
            }
            changes = {f"{cost}_change": compute_cost_change(row, cost) for cost in COST_NAMES}
            probes.append({**row, **means, **changes})
            rows_since_probe = []
    return probes


def compute_cost_change(row: MetricRow, cost: str) -> float | None:
    """Return what an outer update adds to a cost."""
    before, after = row.get(f"{cost}_before"), row.get(f"{cost}_after")
    return None if before is None or after is None else float(after) - float(before)


def build_analysis_columns(pairs: list[ProbedPair]) -> FormattedColumns:
    """Return the table of the analysis, one line per cell with L2I."""
    return {
        "cell": [strip_table_name(pair.name) for pair in pairs],
        "C^H": [_format_first_to_last(pair.ours, "c_h") for pair in pairs],
        "change in C^H": [format_mean_change(pair.ours, "c_h") for pair in pairs],
        "change in test cost": [format_mean_change(pair.ours, "test_cost") for pair in pairs],
        RAW_RATIO_LABEL: [_format_first_to_last(pair.ours, "grad_ratio_raw") for pair in pairs],
        **_build_paired_columns(pairs, "wrong labels (%)", "pseudo_label_error"),
        **_build_paired_columns(pairs, "above threshold (%)", "mask_rate_probe", scale=100),
        **_build_paired_columns(pairs, "wrong above (%)", "pseudo_label_error_above_threshold"),
        **_build_paired_columns(pairs, "wrong below (%)", "pseudo_label_error_below_threshold"),
    }


def _compute_probe_mean(runs: ProbedRuns, column: str, probe_index: int) -> float | None:
    """Return the mean over runs at one of their probed evaluations, if all have the column."""
    values = [run[probe_index].get(column) if run else None for run in runs]
    numbers = [value for value in values if value is not None]
    return mean(numbers) if len(numbers) == len(values) else None


def _format_first_to_last(runs: ProbedRuns, column: str) -> str:
    """Format the means at the first and the last probed evaluation."""
    ends = [_compute_probe_mean(runs, column, probe_index) for probe_index in (0, -1)]
    return " → ".join("–" if v is None else f"{v:.2g}" if v < 100 else f"{v:.0f}" for v in ends)


def format_mean_change(runs: ProbedRuns, cost: str) -> str:
    """Format what outer updates add to a cost, and how often they lower it."""
    row_changes = [compute_cost_change(row, cost) for run in runs for row in run]
    changes = [change for change in row_changes if change is not None]
    if not changes:
        return "–"
    percent_lower = 100 * sum(change < 0 for change in changes) / len(changes)
    text = format_values(changes, decimals=choose_decimals(changes), sign="+")
    return f"{text}, {percent_lower:.0f} %"


def choose_decimals(values: list[float]) -> int:
    """Return four, or as many decimals as show a small mean and its error, up to seven."""
    sizes = map(abs, compute_mean_stderr(values))
    return min(7, max([4, *(-math.floor(math.log10(size)) for size in sizes if size > 0)]))


def _build_paired_columns(
    pairs: list[ProbedPair], heading: str, column: str, *, scale: float = 1
) -> FormattedColumns:
    """Return a metric at the end with and without L2I; nothing if no method has it."""
    columns = {}
    for name, side in ((heading, "ours"), (f"{heading}, without L2I", "theirs")):
        values = [_compute_probe_mean(getattr(pair, side), column, -1) for pair in pairs]
        columns[name] = ["" if v is None else f"{scale * v:.1f}" for v in values]
    return columns if any(any(cells) for cells in columns.values()) else {}


def plot_update_analysis(pairs: list[ProbedPair], path: Path, *, overwrite: bool) -> Path:
    """Plot one column per cell, and one row per panel that any of them has values for."""
    all_rows = [row for pair in pairs for run in pair.ours for row in run]
    panels = {
        heading: lines
        for heading, lines in PANELS.items()
        if any(row.get(column) is not None for row in all_rows for _, column, *_ in lines)
    }
    figure = make_figure(1.2 + 2.9 * len(pairs), 0.6 + 2.3 * len(panels))
    grid = figure.subplots(len(panels), len(pairs), squeeze=False, sharex="col")
    for pair, axes in zip(pairs, grid.T, strict=True):
        axes[0].set_title(strip_table_name(pair.name), fontsize=9)
        for ax, (heading, lines) in zip(axes, panels.items(), strict=True):
            _draw_panel(ax, pair, lines, log=not any(mark in heading for mark in ("%", "change")))
        lowest = [ax for ax in axes if ax.lines][-1]
        lowest.set_xlabel("step")
        lowest.tick_params(labelbottom=True)
    for row, heading in zip(grid, panels, strict=True):
        next(ax for ax in row if ax.lines).set_ylabel(heading, fontsize=9)
    return save_figure(figure, path, overwrite=overwrite)


def _draw_panel(axes: Axes, pair: ProbedPair, lines: list[PanelLine], *, log: bool) -> None:
    """Draw one line per run; lines of a kind share a color, and those of a seed a marker."""
    for side, column, color, style, label in lines:
        for index, run in enumerate(getattr(pair, side)):
            points = [(row["step"], row[column]) for row in run if row.get(column) is not None]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    style,
                    color=color,
                    marker=SEED_MARKERS[index % len(SEED_MARKERS)],
                    ms=4,
                    label=None if index else label,
                )
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.grid(alpha=0.3)
    if log:
        set_log_scale(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, framealpha=0.6)
