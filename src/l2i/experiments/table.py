"""Print and save the table of `l2i compare`: our results beside the paper's, with caveats."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from l2i import recipes
from l2i.errors import InputError
from l2i.experiments import plots
from l2i.experiments.compare import plan_runs
from l2i.experiments.formatting import FormattedColumns, columns_to_rows, format_values, print_rows
from l2i.experiments.options import CompareOptions
from l2i.experiments.results import (
    ComparisonRow,
    format_setting_overrides,
    load_references,
    read_store,
    strip_table_name,
)
from l2i.files.output import check_output_file, write_output
from l2i.files.safety import check_regular_file
from l2i.files.terminal import print_lines
from l2i.recipes.table import CONTROLS, load_paper_results
from l2i.training.run_dir import Result, check_available, read_result, resolve_run_dir
from l2i.training.setup import with_data_root

TIME_UNITS = {"seconds": 1.0, "minutes": plots.SECONDS_PER_MINUTE}
CONTROL_NOTES = {
    "zero": "its outer gradient is zero",
    "shuffled": "its hold-out labels are shuffled",
    "direct": "its outer gradient is that of the hold-out cost itself, with nothing imputed",
}
OPTIONAL_COLUMNS = ("paper", "Δ same time", *(f"Δ {name}" for name in CONTROLS))  # if not empty
References = dict[str, float]  # metrics that need no training, by name


def build_columns(rows: list[ComparisonRow], references: References) -> FormattedColumns:
    """Return the table by heading: one line per reference, then one per row."""
    paper_results, time_unit = load_paper_results(), _choose_time_unit(rows)
    row_columns = {
        "Δ same steps": [row.format_gain(row.baseline) for row in rows],
        "Δ same time": [row.format_gain(row.time_matched_baseline) for row in rows],
        **{
            f"Δ {name}": [row.format_gain(row.controls.get(name)) for row in rows]
            for name in CONTROLS
        },
        "seeds": [str(len(row.results)) for row in rows],
        "steps": [f"{row.mean_steps:.0f}" for row in rows],
        time_unit: [f"{row.mean_seconds / TIME_UNITS[time_unit]:.1f}" for row in rows],
    }
    columns = {
        "cell": [strip_table_name(name) for name in (*references, *(row.name for row in rows))],
        rows[0].results[0].metric_name: [f"{metric:.2f}" for metric in references.values()]
        + [format_values((r.metric for r in row.results), row.decimals) for row in rows],
        "paper": [str(paper_results.get(name, "")) for name in references]
        + [str(row.paper or "") for row in rows],
        **{heading: [""] * len(references) + cells for heading, cells in row_columns.items()},
    }
    hidden = [heading for heading in OPTIONAL_COLUMNS if not any(columns[heading])]
    return {heading: cells for heading, cells in columns.items() if heading not in hidden}


def _choose_time_unit(rows: list[ComparisonRow]) -> str:
    """Choose the unit of the times of a table."""
    longest = max(row.mean_seconds for row in rows)
    return "seconds" if longest < plots.SECONDS_PER_MINUTE else "minutes"


def _count_seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def build_docs_columns(rows: list[ComparisonRow], references: References) -> FormattedColumns:
    """Return the table as in benchmarks/."""
    return {
        f"{heading} per run" if heading in TIME_UNITS else heading: cells
        for heading, cells in build_columns(rows, references).items()
    }


def check_table_path(table_name: str, options: CompareOptions) -> None:
    """Check, before anything is trained, that OUT/TABLE.json is missing or a table like it."""
    path = Path(options.out) / f"{table_name}.json"
    if options.from_ is None and path.exists() and not _is_saved_table(path):
        check_output_file(path, (".json",), overwrite=options.overwrite)


def _is_saved_table(path: Path) -> bool:
    try:
        rows = json.loads(check_regular_file(path).read_text(encoding="utf-8"))
        is_table = isinstance(rows, list) and len(rows) > 0
        return is_table and all("cell" in row and {"runs", "metric"} & row.keys() for row in rows)
    except (ValueError, TypeError, AttributeError, RecursionError, OSError):
        return False


def report_comparison(table_name: str, rows: list[ComparisonRow], options: CompareOptions) -> None:
    """Print the table, and save that of new runs as JSON beside them."""
    table = recipes.get_table(table_name)
    references = load_references(table, options)
    columns, seeds_text = build_columns(rows, references), ""
    counts = {len(row.results) for row in rows}
    if options.markdown:
        columns = build_docs_columns(rows, references)
    elif len(counts) == 1:
        del columns["seeds"]  # stated in the title
        seeds_text = f", {_count_seeds(min(counts))}"
    title = f"{table_name}, test set{seeds_text}"
    if max(counts) > 1:
        title += ": mean ± standard error" if max(counts) > 2 else ": seed by seed"
    print_rows(columns_to_rows(columns), title=title, markdown=options.markdown)
    show = partial(print_lines, stderr=options.markdown)
    show(*_collect_notes(rows, references))
    if options.from_ is None:
        path = Path(options.out) / f"{table_name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)  # missing if nothing had to be trained
        text = json.dumps(_rows_to_json(rows, references), indent=2) + "\n"
        write_output(Path(os.path.realpath(path)), text.encode(), path)
        saved_to = options.save_results
        store_text = "" if saved_to is None else f", and the results to {saved_to}"
        show(f"Saved to {path}{store_text}.")
    if options.plot is not None:
        show(f"Plot saved to {plots.plot_error_curves(table, rows, options)}.")
    if options.analyze_updates is not None:
        pairs = plots.collect_pairs(table, rows, options)
        title = f"{table_name}: what imputing does during training"
        columns = plots.build_analysis_columns(pairs)
        print_rows(columns_to_rows(columns), title=title, markdown=options.markdown)
        show(*plots.ANALYSIS_NOTES)
        figure_path = Path(options.analyze_updates)
        path = plots.plot_update_analysis(pairs, figure_path, overwrite=options.overwrite)
        show(f"Plot saved to {path}.")


def _collect_notes(rows: list[ComparisonRow], references: References) -> list[str]:
    """Return notes on how to read the table."""
    results = [result for row in rows for result in row.results]
    notes = [f"{result.metric_name}: {result.metric_definition}." for result in results]
    if any(row.baseline for row in rows):
        is_timed = any(row.time_matched_baseline for row in rows)
        time = " and at equal wall-clock time" if is_timed else ""
        notes.append(
            f"Δ is the seed-paired difference from the baseline at equal steps{time}. "
            "Negative means that the cell is better than its baseline."
        )
    if any(row.time_matched_baseline for row in rows):
        notes.append(
            "'-longer' is the baseline trained for the same wall-clock time as L2I, so its step "
            "count varies between machines."
        )
    for name, difference in CONTROL_NOTES.items():
        if any(name in row.controls for row in rows):
            notes.append(
                f"Δ {name} is the seed-paired difference from the control '-{name}': {difference}. "
                "Negative means L2I is better."
            )
    concurrent_runs = max(result.concurrent_runs for result in results)
    concurrency = f", with {concurrent_runs} runs in parallel" if concurrent_runs > 1 else ""
    notes.append(f"{_choose_time_unit(rows)}: mean wall-clock time per run{concurrency}.")
    notes += _list_setting_overrides(results)
    notes += [note for row in rows for note in _describe_budget(row)]
    paper_results = {row.name: row.paper for row in rows}
    paper_results |= {name: load_paper_results().get(name) for name in references}
    notes += [
        f"* {name}: {paper.note}." for name, paper in paper_results.items() if paper and paper.note
    ]
    notes += [caveat for row in rows for caveat in _list_caveats(row)]
    for r in results:
        versions = f"torch {r.versions['torch']}, l2i {r.versions['l2i']}"
        notes.append(f"On {r.hardware}, {r.precision}; {versions}.")
    return list(dict.fromkeys(notes))  # each once


def _list_setting_overrides(results: list[Result]) -> list[str]:
    """List the settings that are not the recipes', each once, with the cells that have them."""
    cells_by_override: dict[str, dict[str, None]] = {}
    for result in results:
        if override := format_setting_overrides(result):
            cells_by_override.setdefault(override, {})[result.name] = None
    return [
        f"{', '.join(names)}: trained with {override} instead of the recipe's value."
        for override, names in cells_by_override.items()
    ]


def _list_caveats(row: ComparisonRow) -> Iterator[str]:
    """Yield what makes a row, or its differences, doubtful."""
    sides = [side for side in (row, row.baseline) if side is not None]
    if len({result.concurrent_runs for side in sides for result in side.results}) > 1:
        subject = f"the runs of {row.name}" if len(sides) == 1 else f"{row.name} and its baseline"
        yield (
            f"Warning: {subject} ran with different numbers of concurrent runs; "
            "timings are not comparable."
        )
    longer = row.time_matched_baseline
    if longer is not None and not 0.9 < row.mean_seconds / longer.mean_seconds < 1.1:
        yield (
            f"Warning: {row.name} and its '-longer' baseline took different times "
            "(a busy machine, or very short runs): Δ same time is not reliable."
        )
    for other in (row.baseline, row.time_matched_baseline, *row.controls.values()):
        if other is not None and other.seeds != row.seeds:
            num_shared = len(other.seeds & row.seeds)
            basis = f"Δ uses the {num_shared} in common" if num_shared else "none is in common"
            yield (
                f"Warning: {row.name} has {_count_seeds(len(row.seeds))}, {other.name} has "
                f"{len(other.seeds)}: {basis}."
            )
    for result in row.results:
        for warning in result.warnings:
            yield f"warning: {row.name}, seed {result.seed}: {warning}"


def _describe_budget(row: ComparisonRow) -> Iterator[str]:
    if not row.paper or not row.paper_steps:
        return
    schedule = "with scaled schedules"
    if row.uses_own_schedule:
        schedule = "with our own schedule ('l2i train CELL --dry-run' prints it)"
    elif row.mean_steps == row.paper_steps:
        return
    percent = 100 * row.mean_steps / row.paper_steps
    yield (
        f"paper: the published result, after {row.paper_steps:,} steps. Ours took "
        f"{row.mean_steps:,.0f} ({percent:.2g} %), {schedule}: do not expect the two to agree."
    )


def _rows_to_json(rows: list[ComparisonRow], references: References) -> list[dict[str, Any]]:
    """Return the table as JSON."""
    return [{"cell": name, "metric": value} for name, value in references.items()] + [
        {
            "cell": row.name,
            "paper": None if row.paper is None else row.paper._asdict(),
            "paper_steps": row.paper_steps,
            "runs": [asdict(result) for result in row.results],
        }
        for row in rows
    ]


def describe_plan(table_name: str, options: CompareOptions) -> list[str]:
    """Describe what would be trained, one line per cell."""
    if options.markdown:
        raise InputError(
            "--markdown cannot be combined with --dry-run, which prints no table; drop one of them"
        )
    table = recipes.get_table(table_name)
    store = None if options.save_results is None else read_store(options.save_results, table)
    lines = []
    for cell, runs in plan_runs(table, options).items():
        stored_results = {} if store is None else store.lookup(runs)
        num_done = len(stored_results)
        for run in runs:
            folder = resolve_run_dir(run)
            if run.seed not in stored_results:
                check_available(folder, with_data_root(run))
                num_done += folder.exists() and read_result(folder) is not None
        steps = f"{runs[0].steps:,} of the recipe's {table.get_run(cell).steps:,} steps"
        paper_result = table.get_paper_result(cell)
        paper = f", paper: {paper_result}" if paper_result else ""
        lines.append(
            f"{cell}: {_count_seeds(len(runs))}, {num_done} already trained, {steps}{paper}"
        )
    return lines
