"""The tables of the ablation: arms, tuning, settings and training dynamics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import NamedTuple

from benchmarks.ablation_cpu.grid import (
    ARMS,
    DYNAMICS_ARMS,
    GROUP_BY_SETTING,
    SETTING_GROUPS,
    TUNING_GRID,
    TUNING_SEEDS,
    Arm,
)
from benchmarks.ablation_cpu.results import (
    BASELINE_SETTING,
    ProblemResults,
    SeedMetrics,
    compute_differences,
    compute_percent_changes,
    drop_diverged,
    index_by_seed,
    select_with_metrics,
)
from benchmarks.ablation_cpu.runner import find_nearest_step
from benchmarks.ablation_cpu.store import Record

from l2i.experiments.formatting import format_values, print_rows, render_markdown
from l2i.experiments.plots import format_mean_change
from l2i.files.terminal import print_lines

ARM_LABELS: dict[Arm, str] = {
    "baseline": "baseline",
    "longer": "baseline, equal time",
    "control": "control",
    "l2i": "L2I",
}
DIFFERENCE_COLUMNS: dict[str, Arm] = {
    "Δ same steps": "baseline",
    "Δ same time": "longer",
    "Δ control": "control",
}
MISSING_VALUE = "–"
EARLY_FRACTION = 0.1  # fraction of the steps shown beside the end of training

TableRow = Sequence[str]


class Sheet(NamedTuple):
    """The tables of a part, with a caption; first rows are headings."""

    part: str
    title: str
    tables: list[list[TableRow]]


def build_sheets(results: list[ProblemResults]) -> list[Sheet]:
    """Return the sheets of all parts that have records."""
    all_sheets = [
        build(results)
        for build in (
            build_arms_sheet,
            build_tuning_sheet,
            build_settings_sheet,
            build_dynamics_sheet,
        )
    ]
    return [sheet for sheet in all_sheets if any(len(rows) > 1 for rows in sheet.tables)]


def build_arms_sheet(results: list[ProblemResults]) -> Sheet:
    """Build the comparison of the tuned arms on fresh seeds."""
    rows: list[TableRow] = [
        ("problem", "labels", *ARM_LABELS.values(), "step time", *DIFFERENCE_COLUMNS, "seeds")
    ]
    for result, metrics in select_with_metrics(results, ProblemResults.get_arm_metrics):
        gain_cells = [
            format_gain(metrics["l2i"], metrics[arm], result.digits)
            for arm in DIFFERENCE_COLUMNS.values()
        ]
        metric_cells = [format_metrics(metrics[arm], result.digits) for arm in ARMS]
        problem_cells = (result.problem.name, str(result.run.data.num_labeled))
        rows.append(
            (
                *problem_cells,
                *metric_cells,
                format_slowdown(result.get_slowdown()),
                *gain_cells,
                format_ranges(list(metrics["l2i"])),
            )
        )
    title = (
        "Test error in % (diabetes and friedman: RMSE), mean ± standard error over seeds. Step "
        "time: with L2I, relative to the baseline. Δ: L2I minus the other arm, paired by seed; "
        "negative means L2I is better."
    )
    return Sheet("arms", title, [rows])


def format_slowdown(slowdown: float | None) -> str:
    """Format the slowdown by L2I, if it was measured."""
    return MISSING_VALUE if slowdown is None else f"× {slowdown:.2f}"


def format_metrics(metrics: SeedMetrics, digits: int) -> str:
    """Format the mean, and how many runs diverged."""
    return append_diverged(
        metrics, format_values(drop_diverged(metrics), digits) if drop_diverged(metrics) else ""
    )


def format_gain(ours: SeedMetrics, theirs: SeedMetrics, digits: int) -> str:
    """Format the paired difference, and the number of pairs if some runs diverged."""
    paired = compute_differences(ours, theirs)
    pair_note = f" ({len(paired)} pair{'s' * (len(paired) > 1)})" if len(paired) < len(ours) else ""
    return format_values(paired, digits, sign="+") + pair_note if paired else MISSING_VALUE


def format_ranges(numbers: list[int]) -> str:
    """Format ascending numbers as in 0–3, 8–11."""
    firsts = [number for number in numbers if number - 1 not in numbers]
    lasts = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(f"{a}–{b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True))


def append_diverged(metrics: SeedMetrics, cell: str) -> str:
    """Append to a cell how many of its runs diverged, if any."""
    count = sum(metric is None for metric in metrics.values())
    return ", ".join(filter(None, (cell, f"{count} of {len(metrics)} diverged" if count else "")))


def build_tuning_sheet(results: list[ProblemResults]) -> Sheet:
    """Build the table of the selected hyper-parameters."""
    headings = ("learning rate", "λ", "validation metric", "trials × seeds")
    rows: list[TableRow] = [("problem", "arm", *headings)]
    for result in results:
        rows += [
            build_tuning_row(result, arm)
            for arm in ARMS
            if result.select_records(part="tuning") and result.is_tuned()
        ]
    title = (
        f"Each arm had the same {len(TUNING_GRID)} trials. Learning rate and λ are factors of the "
        "recipe's, selected by the validation metric (ties: lowest learning rate, then lowest λ) "
        "on seeds that the comparison does not use."
    )
    return Sheet("tuning", title, [rows])


def build_tuning_row(result: ProblemResults, arm: Arm) -> TableRow:
    """Return the row of an arm's selected hyper-parameters."""
    lr, weight = result.select_hyperparameters(arm)
    lines = result.select_records(part="tuning", arm=arm, lr=lr, weight=weight)
    validation: SeedMetrics = {
        line["seed"]: line["validation"] for line in lines if line["seed"] in TUNING_SEEDS
    }
    trials = f"{len(TUNING_GRID)} × {len(validation)}"
    return (
        result.problem.name,
        ARM_LABELS[arm],
        f"× {lr:g}",
        f"× {weight:g}",
        format_metrics(validation, result.digits),
        trials,
    )


def build_settings_sheet(results: list[ProblemResults]) -> Sheet:
    """Build the tables of single settings: one per group, one column per problem."""
    columns = select_with_metrics(results, ProblemResults.get_setting_metrics)
    tables: list[list[TableRow]] = []
    for group in SETTING_GROUPS:
        names = [
            name
            for name, setting_group in GROUP_BY_SETTING.items()
            if setting_group == group and any(name in metrics for _, metrics in columns)
        ]
        rows = [
            (
                name.removeprefix(f"{group}: "),
                *(format_setting_change(*column, name) for column in columns),
            )
            for name in names
        ]
        tables += (
            [[(group, *(result.problem.name for result, _ in columns)), *rows]] if rows else []
        )
    title = (
        "Change of the metric in % of the baseline's, paired by seed, mean ± standard error. The "
        "first row is the baseline's metric itself."
    )
    return Sheet("settings", title, tables)


def format_setting_change(
    result: ProblemResults, metrics: dict[str, SeedMetrics], name: str
) -> str:
    """Format a setting's change, and its number of seeds if not the baseline's."""
    if name not in metrics:
        return MISSING_VALUE
    ours, base = metrics[name], metrics[BASELINE_SETTING]
    if name == BASELINE_SETTING:
        return f"{format_metrics(base, result.digits)} ({format_seed_count(len(base))})"
    percents = compute_percent_changes(ours, base, base)
    cell = format_values(percents, 1, sign="+") if percents else ""
    seed_note = f" ({format_seed_count(len(ours))})" if len(ours) != len(base) else ""
    return (append_diverged(ours, cell) or MISSING_VALUE) + seed_note


def format_seed_count(count: int) -> str:
    """Format a number of seeds."""
    return f"{count} seed{'s' * (count > 1)}"


def build_dynamics_sheet(results: list[ProblemResults]) -> Sheet:
    """Build the table of the training dynamics."""
    headings = (
        "C^H",
        "‖g_outer‖/‖g_base‖",
        "error of imputed labels",
        "change of C^H",
        "change of the test cost",
        "seeds",
    )
    rows: list[TableRow] = [("problem", "arm", *headings)]
    for result in results:
        for arm in DYNAMICS_ARMS:
            if lines := result.select_records(part="dynamics", arm=arm):
                count = append_diverged(index_by_seed(lines), str(len(lines)))
                rows.append(
                    (
                        result.problem.name,
                        ARM_LABELS[arm],
                        *iter_dynamics_cells(result, lines),
                        count,
                    )
                )
    title = (
        "The recipe's settings, means over seeds; a → b: after 10 % of the steps → at the end. The "
        "gradient ratio is before scaling to ρ. Change: a cost after one more step with its outer "
        "update, minus the cost after that step without it; mean ± standard error over about ten "
        "probes per run, and the share of probes at which the cost falls. C^H is on the hold-out "
        "samples of the update itself."
    )
    return Sheet("dynamics", title, [rows])


def iter_dynamics_cells(result: ProblemResults, lines: list[Record]) -> Iterator[str]:
    """Yield the cells of an arm's runs that did not diverge."""
    lines = [line for line in lines if line["metric"] is not None and line["dynamics"]]
    digits = result.digits - 1 if result.digits == 2 else result.digits
    yield format_early_and_final(lines, "c_h", lambda value: f"{value:.2g}")
    yield format_early_and_final(lines, "grad_ratio_raw", lambda value: f"{value:.2g}")
    yield format_early_and_final(lines, "pseudo_label_error", lambda value: f"{value:.{digits}f}")
    for cost in ("c_h", "test_cost"):
        yield format_mean_change([line["dynamics"] for line in lines], cost)


def format_early_and_final(
    lines: list[Record], name: str, format_value: Callable[[float], str]
) -> str:
    """Format a value early in training and at the end."""
    early_and_final = [
        (find_early_record(line)[name], line["dynamics"][-1][name])
        for line in lines
        if all(name in r for r in line["dynamics"])
    ]
    return (
        " → ".join(format_value(mean(values)) for values in zip(*early_and_final, strict=True))
        or MISSING_VALUE
    )


def find_early_record(line: Record) -> Record:
    """Return the probe nearest to a tenth of a run's steps."""
    records: dict[int, Record] = {record["step"]: record for record in line["dynamics"]}
    return records[find_nearest_step(records, EARLY_FRACTION * line["steps"])]


def render_sheet_markdown(sheet: Sheet, *, with_heading: bool) -> str:
    """Return the caption and tables of a part as Markdown."""
    tables = [render_markdown(rows, code=rows[0][0] == "problem") for rows in sheet.tables]
    heading = [f"### {sheet.part}\n"] if with_heading else []
    return "\n".join([*heading, f"{sheet.title}\n", *tables])


def print_sheet(sheet: Sheet) -> None:
    """Print the tables of a part for the terminal."""
    print_lines(f"{sheet.part}: {sheet.title}")
    for rows in sheet.tables:
        print_rows(rows, left_aligned=("arm",))
