"""The lines of a table that `l2i compare` prints: a cell's results, and those that they are set against.

MERGED:
What `l2i compare` prints and keeps: our figures beside the paper's, and how the budgets differ.

MERGED:
The settings that a kept result is of, so that none is taken for a result of others (`l2i compare --save-results`).

MERGED:
Result files that outlive their runs: FOLDER/TABLE/CELL-seedN.json, and beside each the run's metrics, .jsonl.

"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from l2i import recipes
from l2i.config import Run
from l2i.errors import InputError
from l2i.experiments.formatting import mean_stderr
from l2i.experiments.options import CompareOptions
from l2i.files.atomic import write_atomic
from l2i.files.safety import check_regular_file
from l2i.recipes.table import UPDATE_SUFFIXES, PaperResult, Table
from l2i.training.checkpoint import translate_disk_full
from l2i.training.run_dir import FlatSettings, Result, flat_settings, resolve_run_dir
from l2i.training.setup import DATA_ROOT_ENV

CONTROL_ABLATION = "control"  # the ablation that takes the outer step without imputing


@dataclass(frozen=True)
class ComparisonRow:
    """A row of the table: a cell, what its runs came to, and the lines that it is set against, seed by seed."""

    name: str
    results: Sequence[Result]
    baseline: ComparisonRow | None = None
    time_matched_baseline: ComparisonRow | None = None
    control: ComparisonRow | None = None
    paper: PaperResult | None = None
    paper_steps: int | None = None
    """How many steps the paper's runs have."""
    uses_own_schedule: bool = False
    """Whether the schedule is ours and not the paper's."""

    @property
    def metrics(self) -> list[float]:
        return [r.metric for r in self.results]

    @property
    def decimals(self) -> int:
        """Behind the point: an error in % has two, and one in units, which may be small ones, three."""
        return 2 if "%" in self.results[0].metric_name else 3

    @property
    def seeds(self) -> set[int]:
        return {r.seed for r in self.results}

    @property
    def mean_steps(self) -> float:
        return mean(r.steps for r in self.results)

    @property
    def compared_rows(self) -> list[ComparisonRow]:
        """Those that it is set against."""
        return [row for row in (self.baseline, self.time_matched_baseline, self.control) if row is not None]

    def compute_mean_seconds(self) -> float:
        return mean(r.seconds for r in self.results)

    def format_gain(self, other: ComparisonRow | None) -> str:
        """The difference to another line, paired by the seeds that both have; negative where this line is better."""
        other_metrics = {} if other is None else {r.seed: r.metric for r in other.results}
        differences = [r.metric - other_metrics[r.seed] for r in self.results if r.seed in other_metrics]
        return mean_stderr(differences, self.decimals, sign="+") if differences else ""


def build_rows(table: Table, results_by_name: Mapping[str, Sequence[Result]]) -> list[ComparisonRow]:
    """The lines of results by name, in their order."""
    rows_by_name = {name: ComparisonRow(name, results) for name, results in results_by_name.items()}
    for cell in rows_by_name.keys() & table.cells.keys():
        rows_by_name[cell] = replace(
            rows_by_name[cell],
            paper=table.get_paper_result(cell),
            paper_steps=table.get_run(table.find_paper_cell(cell)).steps,
            uses_own_schedule=bool(table.cells[cell].budget),
        )
    return [link_baselines(rows_by_name, row, table) for row in rows_by_name.values()]


def link_baselines(rows_by_name: dict[str, ComparisonRow], row: ComparisonRow, table: Table) -> ComparisonRow:
    """The line of a cell with L2I beside its baselines and its control, where they are there; another as it is."""
    baseline_name = table.find_baseline(row.name) if row.name in table.cells else None
    if baseline_name is None:
        return row
    time_matched_name, control_name = get_time_matched_name(row.name, table), find_control(row.name, table)
    return replace(
        row,
        baseline=rows_by_name.get(baseline_name),
        time_matched_baseline=rows_by_name.get(time_matched_name),
        control=rows_by_name.get(control_name) if control_name else None,
    )


def get_time_matched_name(cell: str, table: Table) -> str:
    """The name of the baseline that is trained for as long as a cell with L2I took."""
    cell_spec = table.cells[cell]
    rule_suffix = UPDATE_SUFFIXES[cell_spec.update].removeprefix(UPDATE_SUFFIXES["normalized"])  # nothing, or -paper
    return f"{table.find_baseline(cell)}-longer{rule_suffix}{cell_spec.ablation and '-' + cell_spec.ablation}"


def find_control(cell: str, table: Table) -> str | None:
    """The cell that shows what of an L2I cell's gain is not owed to imputing."""
    control_cell = table.cells[cell]._replace(ablation=CONTROL_ABLATION)
    return None if table.cells[cell] == control_cell else next((n for n, c in table.cells.items() if c == control_cell), None)


def strip_table_name(name: str) -> str:
    """A cell's name without its table's."""
    return name.partition("/")[2] or name


TIME_MATCHED_SUFFIX = "-longer"  # what the name of a baseline that is trained for longer goes on with


def find_differing_fields(ours: FlatSettings, theirs: FlatSettings) -> list[str]:
    """Fields that both have and that are not the same, in order; one of them may be older than a field."""
    return sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])


def check_same_settings(result: Result, run: Run, path: Path) -> None:
    """That a kept result is of the settings that are asked for; one that does not tell its own is taken as it is."""
    stored, requested = result.settings or {}, flat_settings(run)
    for name in find_differing_fields(stored, requested):
        value = json.dumps(stored[name])
        raise InputError(
            f"{path} is of a run with {name}={value}, and {json.dumps(requested[name])} is asked for; "
            f"give --set {name}={value}, or another --save-results"
        )


def format_setting_overrides(result: Result) -> str:
    """What of a kept result is not as its recipe has it now; nothing where all is, or where it does not say."""
    table = recipes.get_table(result.name.partition("/")[0])
    name = result.name if result.name in table.cells else result.name.partition(TIME_MATCHED_SUFFIX)[0]
    stored = result.settings or {}
    return ", ".join(f"{field}={json.dumps(stored[field])}" for field in find_differing_fields(stored, flat_settings(table.get_run(name))))


RESULT_FILE_PATTERN = re.compile(r"(.+)-seed(0|[1-9][0-9]*)\.json")
OPTIONS_FOR_LOADING = ("load_results", "cells", "markdown", "plot", "analyze_updates", "data")  # options that matter where nothing is trained
FLAG_NAMES = {"changes": "set"}  # options whose flag is not named after the field
CORRUPT_FILE_ERRORS = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True)
class ResultStore:
    """The results of a table that a folder holds."""

    table: Table
    folder: Path
    results: dict[str, dict[int, Result]]
    """By name, then by seed; cells in the table's order, a longer baseline before the cell that it is for."""

    def result_path(self, name: str, seed: int) -> Path:
        return self.folder / f"{strip_table_name(name)}-seed{seed}.json"

    def lookup(self, runs: Iterable[Run]) -> dict[int, Result]:
        """The results of a cell's runs, by seed, of those that are kept."""
        stored_runs = {run.seed: run for run in runs if run.seed in self.results.get(run.name, {})}
        for seed, run in stored_runs.items():
            steps = self.results[run.name][seed].steps
            if steps != run.steps:
                fix_hint = f"give --steps {steps}" if run.name in self.table.cells else "remove it to train it again"
                raise InputError(
                    f"{self.result_path(run.name, seed)} is of {steps:,} steps, and {run.steps:,} are asked for; "
                    f"{fix_hint}, or give another --save-results"
                )
            check_same_settings(self.results[run.name][seed], run, self.result_path(run.name, seed))
        return {seed: self.results[run.name][seed] for seed, run in stored_runs.items()}

    def save_run(self, run: Run) -> None:
        """Keep a run that is done."""
        folder, path = resolve_run_dir(run), self.result_path(run.name, run.seed)
        with translate_disk_full(folder):
            write_atomic(path.with_suffix(".jsonl"), (folder / "metrics.jsonl").read_bytes())
            write_atomic(path, (folder / "result.json").read_bytes())  # last: with it the run counts as kept

    def check_equal_steps(self, rows: Sequence[ComparisonRow]) -> None:
        """That the runs of a line, of its baseline and of its control are of as many steps."""
        for row in rows:
            comparable_rows = [candidate for candidate in (row, row.baseline, row.control) if candidate and candidate.name in self.table.cells]
            step_counts = [(self.result_path(candidate.name, result.seed), result.steps) for candidate in comparable_rows for result in candidate.results]
            for path, steps in step_counts:
                if steps != step_counts[0][1]:
                    raise InputError(
                        f"{step_counts[0][0]} is of {step_counts[0][1]:,} steps and {path} of {steps:,}; "
                        "put runs of different lengths in different folders"
                    )


def read_store(folder: str, table: Table) -> ResultStore:
    """What a folder holds of a table; nothing, where it is not there."""
    results_dir = table_dir(Path(folder), table.name)
    names = {strip_table_name(name): name for name in valid_names(table)}
    results_by_name: dict[str, dict[int, Result]] = {name: {} for name in names.values()}
    for path in results_dir.glob("*-seed*.json"):
        match = RESULT_FILE_PATTERN.fullmatch(path.name)
        if match is None:
            continue
        if match[1] not in names:
            raise InputError(f"{path} is of no cell of {table.name} ('l2i list {table.name}/' shows them); take it out")
        name, seed = names[match[1]], int(match[2])
        results_by_name[name][seed] = read_stored_result(path, name, seed)
    return ResultStore(table, results_dir, {name: dict(sorted(results.items())) for name, results in results_by_name.items() if results})


def table_dir(folder: Path, table_name: str) -> Path:
    """The table's own folder: one within `folder`, or `folder` itself."""
    table_subdir = folder / table_name
    is_table_dir = folder.resolve().name == table_name or any(folder.glob("*-seed*.json"))
    return folder if is_table_dir and not table_subdir.is_dir() else table_subdir


def valid_names(table: Table) -> dict[str, None]:
    """Names that results can have, in order."""
    names: dict[str, None] = {}
    for cell in table.cells:
        if table.find_baseline(cell) is not None:
            time_matched = get_time_matched_name(cell, table)
            names.pop(time_matched, None)  # of two names for one cell, it stands before the second
            names[time_matched] = None
        names[cell] = None
    return names


def read_stored_result(path: Path, name: str, seed: int) -> Result:
    """The result that a file holds."""
    try:
        result = Result(**json.loads(check_regular_file(path).read_text(encoding="utf-8")))
        is_valid = is_valid_result(result)
    except CORRUPT_FILE_ERRORS:
        is_valid = False
    if not is_valid:
        raise InputError(f"{path} is damaged, or no result of a run; restore it, or remove it")
    if (result.name, result.seed) != (name, seed):
        raise InputError(f"{path} holds the result of {result.name}, seed {result.seed}; name it so, or remove it")
    return result


def is_valid_result(result: Result) -> bool:
    """Whether the fields are of the kinds that a run writes."""
    texts = [result.name, result.metric_name, result.metric_definition, result.hardware, result.precision]
    texts += [result.versions["torch"], result.versions["l2i"], *result.warnings]
    counts, numbers = (result.seed + 1, result.steps, result.concurrent_runs), (result.metric, result.seconds)
    return (
        all(type(text) is str for text in texts)
        and all(type(count) is int and 0 < count < 2**53 for count in counts)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and result.seconds > 0
        and (result.settings is None or type(result.settings) is dict)
    )


def load_saved_results(table: Table, options: CompareOptions) -> ResultStore:
    """What the folder of --load-results holds; options that are for training are refused."""
    assert options.load_results is not None
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in OPTIONS_FOR_LOADING and value != field.default:
            flag = f"--{'no-' * (value is False)}{FLAG_NAMES.get(field.name, field.name).replace('_', '-')}"
            raise InputError(f"{flag} does not go with --load-results, which trains nothing; leave one of them out")
    if not Path(options.load_results).is_dir():
        raise InputError(f"{options.load_results} is not a folder; give the one that holds {table.name}/CELL-seedN.json")
    store = read_store(options.load_results, table)
    if not store.results:
        raise InputError(
            f"{options.load_results} holds no results of {table.name} ({table.name}/CELL-seedN.json); "
            f"'l2i compare {table.name} --save-results {options.load_results}' trains its cells and keeps them there"
        )
    return store


def load_references(table: Table, options: CompareOptions) -> dict[str, float]:
    """Figures that need no training: as they are kept, or else from the data, which --load-results can do without."""
    folder = options.save_results if options.load_results is None else options.load_results
    results_dir = None if folder is None else table_dir(Path(folder), table.name)
    stored_references = {} if results_dir is None or table.compute_references is None else read_references(results_dir, table)
    if stored_references or table.compute_references is None:
        if options.load_results is not None and options.data.root is not None:
            raise InputError("--data.root does not matter here, since no row needs the data; leave it out")
        return stored_references
    if options.load_results is not None and options.data.root is None:
        with suppress(InputError):  # another data set's folder, perhaps
            return table.compute_references(None) if os.environ.get(DATA_ROOT_ENV) else {}
        return {}
    computed = table.compute_references(options.data.root)
    if results_dir is not None and options.save_results is not None:
        for name, metric in computed.items():
            write_atomic(results_dir / f"{strip_table_name(name)}.json", (json.dumps({"name": name, "metric": metric}) + "\n").encode())
    return computed


def read_references(results_dir: Path, table: Table) -> dict[str, float]:
    """Those that a table's folder holds: its JSON files that are of no seed."""
    metrics = {}
    for path in sorted(path for path in results_dir.glob("*.json") if not RESULT_FILE_PATTERN.fullmatch(path.name)):
        try:
            record: dict[str, Any] = json.loads(check_regular_file(path).read_text(encoding="utf-8"))
            is_valid = record["name"] == f"{table.name}/{path.stem}" and math.isfinite(record["metric"])
        except CORRUPT_FILE_ERRORS:
            is_valid = False
        if not is_valid:
            raise InputError(f"{path} is damaged, or no figure of {table.name}; restore it, or remove it")
        metrics[record["name"]] = float(record["metric"])
    return metrics
