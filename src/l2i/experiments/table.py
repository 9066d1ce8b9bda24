"""The lines of a table that `l2i compare` prints: a cell's results, and those that they are set against.

MERGED:
What `l2i compare` prints and keeps: our figures beside the paper's, and how the budgets differ.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from l2i import recipes
from l2i.cli.parsing import print_utf8
from l2i.config import Run
from l2i.errors import InputError
from l2i.experiments.compare import plan_runs
from l2i.experiments.formatting import (
    FormattedColumns,
    columns_to_rows,
    mean_stderr,
    print_full_width,
    render_markdown,
    render_table,
)
from l2i.experiments.options import CompareOptions
from l2i.experiments.plots import (
    ANALYSIS_NOTES,
    SECONDS_PER_MINUTE,
    ProbedPair,
    build_analysis_columns,
    collect_pairs,
    plot_error_curves,
    plot_update_analysis,
)
from l2i.experiments.results import (
    ComparisonRow,
    format_setting_overrides,
    load_references,
    read_store,
    strip_table_name,
)
from l2i.files.atomic import write_atomic
from l2i.recipes.table import load_paper_results
from l2i.training.run_dir import Result, check_available, read_result, resolve_run_dir
from l2i.training.setup import with_data_root

TIME_UNITS = {"seconds": 1.0, "minutes": SECONDS_PER_MINUTE}
OPTIONAL_COLUMNS = ("paper", "Δ same time", "Δ control")  # columns that are left out where no line has any


def build_columns(rows: list[ComparisonRow], reference_metrics: dict[str, float]) -> FormattedColumns:
    """The table by its headings: a row a figure that is given, then a row a line."""
    empty_cells = [""] * len(reference_metrics)
    cells_by_heading = {
        "cell": [strip_table_name(name) for name in (*reference_metrics, *(row.name for row in rows))],
        rows[0].results[0].metric_name: [f"{v:.2f}" for v in reference_metrics.values()]
        + [mean_stderr(row.metrics, row.decimals) for row in rows],
        "paper": [str(load_paper_results().get(name, "")) for name in reference_metrics] + [str(row.paper or "") for row in rows],
        "Δ same steps": empty_cells + [row.format_gain(row.baseline) for row in rows],
        "Δ same time": empty_cells + [row.format_gain(row.time_matched_baseline) for row in rows],
        "Δ control": empty_cells + [row.format_gain(row.control) for row in rows],
        "seeds": empty_cells + [str(len(row.results)) for row in rows],
        "steps": empty_cells + [f"{row.mean_steps:.0f}" for row in rows],
        choose_time_unit(rows): empty_cells + [f"{row.compute_mean_seconds() / TIME_UNITS[choose_time_unit(rows)]:.1f}" for row in rows],
    }
    return {heading: cells for heading, cells in cells_by_heading.items() if heading not in OPTIONAL_COLUMNS or any(cells)}


def choose_time_unit(rows: list[ComparisonRow]) -> str:
    """What the times of a table are told in."""
    return "seconds" if max(row.compute_mean_seconds() for row in rows) < SECONDS_PER_MINUTE else "minutes"


def make_titled_columns(table_name: str, rows: list[ComparisonRow], reference_metrics: dict[str, float]) -> tuple[FormattedColumns, str]:
    """The table as a person reads it, and its title."""
    table_columns, counts = build_columns(rows, reference_metrics), {len(row.results) for row in rows}
    if len(counts) == 1:
        del table_columns["seeds"]  # the title says it
    seeds = f", {min(counts)} seed{'s' * (min(counts) > 1)}" if len(counts) == 1 else ""
    return table_columns, f"{table_name}, test set{seeds}: mean ± standard error"


def build_docs_columns(rows: list[ComparisonRow], reference_metrics: dict[str, float]) -> FormattedColumns:
    """The table as docs/results.md has it."""
    return {f"{heading} a run" if heading in TIME_UNITS else heading: cells for heading, cells in build_columns(rows, reference_metrics).items()}


def report_comparison(table_name: str, rows: list[ComparisonRow], options: CompareOptions) -> None:
    """Print the table, and keep that of runs as JSON beside them."""
    reference_metrics = load_references(recipes.get_table(table_name), options)
    if options.markdown:
        print_utf8(render_markdown(columns_to_rows(build_docs_columns(rows, reference_metrics))))
    else:
        table_columns, title = make_titled_columns(table_name, rows, reference_metrics)
        print_full_width(render_table(columns_to_rows(table_columns), title=title))
    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=options.markdown)
    for note in collect_notes(rows, reference_metrics):
        console.print(note)
    if options.load_results is None:
        path = Path(options.out) / f"{table_name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)  # where all was kept, nothing was trained
        write_atomic(path, (json.dumps(rows_to_json(rows, reference_metrics), indent=2) + "\n").encode())
        console.print(f"Kept in {path}{'' if options.save_results is None else f', the results in {options.save_results}'}.")
    if options.plot is not None:
        console.print(f"Drawn in {plot_error_curves(recipes.get_table(table_name), rows, options)}.")
    if options.analyze_updates is not None:
        report_update_analysis(table_name, collect_pairs(recipes.get_table(table_name), rows, options), options, console)


def report_update_analysis(table_name: str, pairs: list[ProbedPair], options: CompareOptions, console: Console) -> None:
    """Print what imputing did on the way, and draw it."""
    rows = columns_to_rows(build_analysis_columns(pairs))
    if options.markdown:
        print_utf8(render_markdown(rows))
    else:
        print_full_width(render_table(rows, title=f"{table_name}: what imputing does on the way"))
    for note in ANALYSIS_NOTES:
        console.print(note)
    console.print(f"Drawn in {plot_update_analysis(pairs, Path(options.analyze_updates or ''))}.")


def collect_notes(rows: list[ComparisonRow], reference_metrics: dict[str, float]) -> list[str]:
    """What one has to know to read the table."""
    results = [result for row in rows for result in row.results]
    note_lines = [f"{result.metric_name}: {result.metric_definition}." for result in results]
    if any(row.baseline for row in rows):
        note_lines.append(
            "Δ: a cell minus its baseline, paired by seed, after as many steps or as long a time; below 0, the cell is "
            "better."
        )
    if any(row.control for row in rows):
        note_lines.append(
            "Δ control: L2I minus its control, whose outer step takes the hold-out samples as more labelled ones, and "
            "imputes nothing; below 0, L2I is better."
        )
    concurrent_runs = max(result.concurrent_runs for result in results)
    note_lines.append(f"{choose_time_unit(rows)}: of a run, on average{f', {concurrent_runs} side by side' if concurrent_runs > 1 else ''}.")
    note_lines += list_setting_overrides(results)
    note_lines += [describe_budget(row) for row in rows if row.paper and row.paper_steps and (row.uses_own_schedule or row.mean_steps != row.paper_steps)]
    paper_results = {row.name: row.paper for row in rows} | {name: load_paper_results().get(name) for name in reference_metrics}
    note_lines += [f"* {name}: {paper.note}." for name, paper in paper_results.items() if paper and paper.note]
    note_lines += [caveat for row in rows for caveat in find_caveats(row)]
    versions = [f"torch {r.versions['torch']}, l2i {r.versions['l2i']}" for r in results]
    note_lines += [f"On {r.hardware}, {r.precision}; {version}." for r, version in zip(results, versions, strict=True)]
    return list(dict.fromkeys(note_lines))  # each once


def list_setting_overrides(results: list[Result]) -> list[str]:
    """What is not as the recipes have it, each once, with the cells that it is said of."""
    cells_by_override: dict[str, dict[str, None]] = {}
    for result in results:
        if override := format_setting_overrides(result):
            cells_by_override.setdefault(override, {})[result.name] = None
    return [f"{', '.join(names)}: with {override}, which is not the recipe's." for override, names in cells_by_override.items()]


def find_caveats(row: ComparisonRow) -> list[str]:
    """What makes a line, or its differences, doubtful."""
    caveats = []
    concurrency_levels = {result.concurrent_runs for side in (row, row.baseline) if side for result in side.results}
    if len(concurrency_levels) > 1:
        subject = f"the runs of {row.name}" if row.baseline is None else f"{row.name} and its baseline"
        caveats.append(f"Mind that {subject} shared the device with other runs to another extent.")
    if row.time_matched_baseline and not 0.9 < row.compute_mean_seconds() / row.time_matched_baseline.compute_mean_seconds() < 1.1:
        caveats.append(f"Mind that {row.name} and its 'longer' baseline differ in time: the machine was not at rest.")
    for other in row.compared_rows:
        num_shared_seeds, counts = len(other.seeds & row.seeds), f"{len(row.seeds)} and {len(other.seeds)}"
        prefix = f"Mind that {row.name} and {other.name}, of {counts} seeds, share"
        if other.seeds != row.seeds:
            caveats.append(
                f"{prefix} {num_shared_seeds}: Δ is over {'those' if num_shared_seeds > 1 else 'that one'}." if num_shared_seeds else f"{prefix} none."
            )
    return caveats + [f"warning: {row.name}, seed {r.seed}: {warning}" for r in row.results for warning in r.warnings]


def describe_budget(row: ComparisonRow) -> str:
    """How far a run of ours is from the paper's."""
    assert row.paper_steps is not None
    percent = 100 * row.mean_steps / row.paper_steps
    schedule_note = "on a schedule of our own (--dry-run shows it)" if row.uses_own_schedule else "with schedules scaled"
    return (
        f"paper: as printed there, after {row.paper_steps:,} steps; ours took {row.mean_steps:,.0f}, {percent:.2g} % of it, "
        f"{schedule_note}: such figures are not to be expected to agree."
    )


def rows_to_json(rows: list[ComparisonRow], reference_metrics: dict[str, float]) -> list[dict[str, Any]]:
    """The table as JSON."""
    return [{"cell": name, "metric": value} for name, value in reference_metrics.items()] + [
        {
            "cell": row.name,
            "paper": None if row.paper is None else row.paper._asdict(),
            "paper_steps": row.paper_steps,
            "runs": [asdict(result) for result in row.results],
        }
        for row in rows
    ]


def describe_plan(table_name: str, options: CompareOptions) -> list[str]:
    """What would be trained, a cell a line."""
    if options.markdown:
        raise InputError("--markdown does not go with --dry-run, which prints no table; leave one of them out")
    recipe_table = recipes.get_table(table_name)
    store = None if options.save_results is None else read_store(options.save_results, recipe_table)
    lines = []
    for cell, runs in plan_runs(recipe_table, options).items():
        stored_results = {} if store is None else store.lookup(runs)
        pending = [run for run in runs if run.seed not in stored_results]
        for run in pending:
            check_available(resolve_run_dir(run), with_data_root(run))
        num_done = len(stored_results) + sum(is_done(run) for run in pending)
        steps = f"{runs[0].steps:,} of the recipe's {recipe_table.get_run(cell).steps:,} steps"
        paper = f", the paper's figure {recipe_table.get_paper_result(cell)}" if recipe_table.get_paper_result(cell) else ""
        seed_count = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
        lines.append(f"{cell}: {seed_count}, {num_done} done already, {steps}{paper}")
    return lines


def is_done(run: Run) -> bool:
    """Whether a run has its result already."""
    return run.out is not None and Path(run.out).exists() and read_result(Path(run.out)) is not None
