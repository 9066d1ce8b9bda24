"""Test error against time, of the runs of a table that `l2i compare` shows.

MERGED:
What imputing does on the way, in the probed runs of a table (figure «Effect of update on labels», and more).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, NamedTuple

from l2i.errors import InputError
from l2i.experiments.formatting import FormattedColumns, mean_stderr
from l2i.experiments.options import CompareOptions
from l2i.experiments.results import CORRUPT_FILE_ERRORS, ComparisonRow, strip_table_name, table_dir
from l2i.files.safety import check_regular_file
from l2i.recipes.table import Table
from l2i.training.metrics import MetricRow, parse_metrics, step_weighted_mean
from l2i.training.run_dir import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
SECONDS_PER_MINUTE = 60.0
MIN_RATIO_FOR_LOG_AXIS = 5  # a range of errors, as a ratio, from which the axis is logarithmic
NUM_COLORS, LINE_STYLES = 10, ("-", "--", ":")  # of matplotlib's cycle; cells beyond them have the next style


class Curve(NamedTuple):
    """A run's evaluations."""

    result: Result
    minutes: list[float]
    errors: list[float]


def check_plot_paths(options: CompareOptions) -> None:
    """That the pictures that are asked for, if any, can be written, before anything is trained."""
    for flag, name in {"--plot": options.plot, "--analyze-updates": options.analyze_updates}.items():
        if name is None:
            continue
        path = Path(name)
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            raise InputError(f"{flag} {path}: the name of a picture must end in {', '.join(IMAGE_SUFFIXES)}")
        if options.dry_run:
            raise InputError(f"{flag} does not go with --dry-run, which trains nothing; leave one of them out")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent} cannot be a folder ({error.strerror}); give another {flag}") from None


def plot_error_curves(table: Table, rows: Sequence[ComparisonRow], options: CompareOptions) -> Path:
    """Write the picture, and return its path."""
    path = Path(options.plot or "")
    make_curves_figure({row.name: [load_curve(table, row.name, r, options) for r in row.results] for row in rows}).savefig(
        path, dpi=100
    )
    return path


def read_evaluations(table: Table, name: str, result: Result, options: CompareOptions) -> list[MetricRow]:
    """Those of a run, from where its result came from."""
    folder = options.load_results or options.save_results
    if folder is not None:
        path = table_dir(Path(folder), table.name) / f"{strip_table_name(name)}-seed{result.seed}.jsonl"
    else:
        path = Path(options.out) / f"{name.replace('/', '-')}-seed{result.seed}" / "metrics.jsonl"
    try:
        rows = parse_metrics(check_regular_file(path).read_bytes())
        if not all(row["test"] is None or isinstance(row["test"], int | float) for row in rows):
            raise ValueError("a figure that is no number")
        return rows
    except CORRUPT_FILE_ERRORS:
        raise InputError(f"{path}, a run's evaluations, cannot be read; restore it, or draw nothing") from None


def load_curve(table: Table, name: str, result: Result, options: CompareOptions) -> Curve:
    """A run's test errors against its time; its steps are as long as each other."""
    rows = [row for row in read_evaluations(table, name, result, options) if row["test"] is not None]
    if not rows:
        raise InputError(f"{name}, seed {result.seed}, has no test errors to draw; leave --plot out")
    minutes_per_step = result.seconds / result.steps / SECONDS_PER_MINUTE
    return Curve(result, [float(row["step"] or 0) * minutes_per_step for row in rows], [float(row["test"] or 0) for row in rows])


def make_curves_figure(curves: dict[str, list[Curve]]) -> Figure:
    """Those of a cell alike, and a dot where a run's figure stands in the table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    for cell_index, (name, runs) in enumerate(curves.items()):
        color, style = f"C{cell_index % NUM_COLORS}", LINE_STYLES[cell_index // NUM_COLORS % len(LINE_STYLES)]
        for index, run in enumerate(runs):
            label = strip_table_name(name) if index == 0 else None
            axes.plot(run.minutes, run.errors, color=color, linestyle=style, label=label)
            axes.plot([run.result.seconds / SECONDS_PER_MINUTE], [run.result.metric], "o", color=color)
    first_result = next(iter(curves.values()))[0].result
    axes.set(xlabel="minutes since the first step", ylabel=f"{first_result.metric_name}, test set")
    set_error_scale([error for runs in curves.values() for run in runs for error in run.errors], axes)
    axes.grid(alpha=0.3, which="both")
    figure.legend(loc="outside right upper")
    return figure


def set_error_scale(errors: list[float], axes: Axes) -> None:
    """A logarithmic axis for errors of which the last would else lie flat."""
    finite_errors = [error for error in errors if math.isfinite(error)]
    if finite_errors and 0 < MIN_RATIO_FOR_LOG_AXIS * min(finite_errors) <= max(finite_errors):
        set_log_scale(axes)


def set_log_scale(axes: Axes) -> None:
    """Upwards by its logarithm, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


RAW_RATIO_LABEL = "‖g_outer‖/‖g_base‖"
CHANGE_DESCRIPTION = (
    "what a cost is after one more step with its outer update, less what it is after that step without, mean ± "
    "standard error over looks, and at what share of them it is lower; C^H is that of the update's own hold-out samples"
)
ANALYSIS_NOTES = (
    "a → b: until the first look → from the last but one to the last, means over seeds and steps; a look is an "
    "evaluation of a probed run.",
    f"{RAW_RATIO_LABEL}: as it came, before it is brought to ρ.",
    f"change: {CHANGE_DESCRIPTION}.",
    "labels wrong: imputed classes of unlabelled samples against the hidden truth, where looked at, at the end; above "
    "and below: the method's threshold.",
)
STEP_MEAN_COLUMNS = ("c_h", "grad_ratio_raw")  # columns that are means over steps
COST_NAMES = ("c_h", "test_cost")  # measured before and after an outer update
SEED_MARKERS = "ox^sv"  # of seeds
ProbedRuns = list[list[MetricRow]]  # the looks of each run
PanelLines = dict[str, tuple[str, str, str | None]]  # whose runs: color, style, label
L2I_AND_BASELINE: PanelLines = {"ours": ("C0", "-", "with L2I"), "theirs": ("C7", "-", "without")}
PANELS: dict[str, dict[str, PanelLines]] = {
    "C^H around an outer update": {
        "c_h_before": {"ours": ("C1", "-", "before")},
        "c_h_after": {"ours": ("C0", "--", "after")},
    },
    "change of a cost by\nan outer update": {
        "c_h_change": {"ours": ("C0", "-", "C^H")},
        "test_cost_change": {"ours": ("C3", "-", "test cost")},
    },
    RAW_RATIO_LABEL: {"grad_ratio_raw": {"ours": ("C0", "-", None)}},
    "imputed labels wrong (%)": {"pseudo_label_error": L2I_AND_BASELINE},
    "wrong above and below\nthe threshold (%)": {
        "pseudo_label_error_above_threshold": {"ours": ("C0", "-", "above, with L2I"), "theirs": ("C7", "-", "above, without")},
        "pseudo_label_error_below_threshold": {"ours": ("C0", "--", "below, with L2I"), "theirs": ("C7", "--", "below, without")},
    },
}


class ProbedPair(NamedTuple):
    """The looks of a cell's runs with L2I, and of its baseline's, of the seeds that both have."""

    name: str
    ours: ProbedRuns
    theirs: ProbedRuns


def collect_pairs(table: Table, rows: Sequence[ComparisonRow], options: CompareOptions) -> list[ProbedPair]:
    """Of all lines with L2I whose runs were probed."""
    pairs = []
    for row in rows:
        if row.baseline is None:
            continue
        shared_seeds = {result.seed for result in row.results} & {result.seed for result in row.baseline.results}
        probed_runs = [
            [select_probes(read_evaluations(table, side.name, result, options)) for result in side.results if result.seed in shared_seeds]
            for side in (row, row.baseline)
        ]
        if probed_runs[0] and all(probed_runs[0]):
            pairs.append(ProbedPair(row.name, *probed_runs))
    if not pairs:
        raise InputError(
            "no cell with L2I beside its baseline was probed, so --analyze-updates has nothing to tell; train both with "
            "--set probe_samples=1000"
        )
    return pairs


def select_probes(rows: list[MetricRow]) -> list[MetricRow]:
    """The evaluations at which a run was probed; means over steps are over all since the look before."""
    probes, rows_since_probe, last_step = [], list[tuple[float, MetricRow]](), 0.0
    for row in rows:
        rows_since_probe.append((float(row["step"] or 0) - last_step, row))
        last_step = float(row["step"] or 0)
        if row.get("pseudo_label_error") is not None or row.get("c_h_before") is not None:
            changes = {f"{cost}_change": compute_cost_change(row, cost) for cost in COST_NAMES}
            probes.append({**row, **{name: step_weighted_mean(rows_since_probe, name) for name in STEP_MEAN_COLUMNS}, **changes})
            rows_since_probe = []
    return probes


def compute_cost_change(row: MetricRow, cost: str) -> float | None:
    """What an outer update adds to a cost."""
    before, after = row.get(f"{cost}_before"), row.get(f"{cost}_after")
    return None if before is None or after is None else float(after) - float(before)


def build_analysis_columns(pairs: list[ProbedPair]) -> FormattedColumns:
    """A row a cell with L2I."""
    return {
        "cell": [strip_table_name(pair.name) for pair in pairs],
        "C^H": [format_first_to_last(pair.ours, "c_h") for pair in pairs],
        "change of C^H": [format_mean_change(pair.ours, "c_h") for pair in pairs],
        "change of the test cost": [format_mean_change(pair.ours, "test_cost") for pair in pairs],
        RAW_RATIO_LABEL: [format_first_to_last(pair.ours, "grad_ratio_raw") for pair in pairs],
        **build_paired_columns(pairs, "labels wrong (%)", "pseudo_label_error"),
        **build_paired_columns(pairs, "above (%)", "mask_rate_probe", scale=100),
        **build_paired_columns(pairs, "wrong above (%)", "pseudo_label_error_above_threshold"),
        **build_paired_columns(pairs, "wrong below (%)", "pseudo_label_error_below_threshold"),
    }


def compute_probe_mean(runs: ProbedRuns, column: str, probe_index: int) -> float | None:
    """The mean over runs at one of their looks, where all have the column."""
    values = [run[probe_index].get(column) if run else None for run in runs]
    return None if any(value is None for value in values) else mean(value for value in values if value is not None)


def format_first_to_last(runs: ProbedRuns, column: str) -> str:
    """Until the first look, and until the last."""
    ends = [compute_probe_mean(runs, column, probe_index) for probe_index in (0, -1)]
    return " → ".join("–" if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}" for value in ends)


def format_mean_change(runs: ProbedRuns, cost: str) -> str:
    """What outer updates add to a cost, and how often it is lower after one."""
    changes = [value for run in runs for row in run if (value := compute_cost_change(row, cost)) is not None]
    percent_lower = 100 * sum(value < 0 for value in changes) / max(1, len(changes))
    return f"{mean_stderr(changes, decimals=choose_decimals(changes), sign='+')}, {percent_lower:.0f} %" if changes else "–"


def choose_decimals(values: list[float]) -> int:
    """Four, or as many as show a small mean and its error, up to seven."""
    sizes = [abs(mean(values)), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0]
    return min(7, max([4, *(-math.floor(math.log10(size)) for size in sizes if size > 0)]))


def build_paired_columns(pairs: list[ProbedPair], heading: str, column: str, *, scale: float = 1) -> FormattedColumns:
    """A figure at the end with L2I, and without; nothing where no method has it."""
    final_values = {
        f"{heading}{suffix}": [compute_probe_mean(runs, column, -1) for runs in side_runs]
        for suffix, side_runs in (("", [pair.ours for pair in pairs]), (", without L2I", [pair.theirs for pair in pairs]))
    }
    if all(value is None for values in final_values.values() for value in values):
        return {}
    return {name: ["" if v is None else f"{scale * v:.1f}" for v in values] for name, values in final_values.items()}


def plot_update_analysis(pairs: list[ProbedPair], path: Path) -> Path:
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
        axes[0].set_title(strip_table_name(pair.name), fontsize=9)
        for ax, (heading, panel) in zip(axes, panels.items(), strict=True):
            draw_panel(ax, pair, panel, log=not any(mark in heading for mark in ("%", "change")))
        lowest = [ax for ax in axes if ax.lines][-1]
        lowest.set_xlabel("step")
        lowest.tick_params(labelbottom=True)
    for row, heading in zip(grid, panels, strict=True):
        next(ax for ax in row if ax.lines).set_ylabel(heading, fontsize=9)
    figure.savefig(path, dpi=100)
    return path


def draw_panel(axes: Axes, pair: ProbedPair, panel: dict[str, PanelLines], *, log: bool) -> None:
    """The lines of a panel, of each run one; those of a kind in one color, those of a seed with one marker."""
    for column, lines in panel.items():
        for side, (color, style, label) in lines.items():
            for index, run in enumerate(getattr(pair, side)):
                points = [(row["step"], row[column]) for row in run if row.get(column) is not None]
                if points:
                    line_label = None if index else label
                    marker = SEED_MARKERS[index % len(SEED_MARKERS)]
                    axes.plot(*zip(*points, strict=True), style, color=color, marker=marker, ms=4, label=line_label)
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.grid(alpha=0.3)
    if log:
        set_log_scale(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, framealpha=0.6)
