"""Results of a table's cells: rows of the comparison, and files that outlive their runs.

A folder of results holds TABLE/CELL-seedN.json and beside each the run's metrics, .jsonl.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import mean

from l2i import recipes
from l2i.config import Run
from l2i.config.serialization import from_dict
from l2i.errors import DamagedFile, InputError
from l2i.experiments.formatting import format_values
from l2i.experiments.options import CompareOptions
from l2i.files.output import write_atomic
from l2i.files.safety import check_regular_file
from l2i.recipes.table import UPDATE_SUFFIXES, PaperResult, Table
from l2i.training.checkpoint import translate_disk_full
from l2i.training.run_dir import FlatSettings, Result, flatten_settings, resolve_run_dir
from l2i.training.setup import DATA_ROOT_ENV

TIME_MATCHED_SUFFIX = "-longer"  # of a baseline that is trained for as long as L2I
RESULT_FILE_PATTERN = re.compile(r"(.+)-seed(0|[1-9][0-9]*)\.json")
OPTIONS_FOR_LOADING = ("from_", "cells", "markdown", "plot", "analyze_updates", "overwrite", "data")
CORRUPT_FILE_ERRORS = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True)
class ComparisonRow:
    """A row of the table: a cell, its results, and the rows it is compared with seed by seed."""

    name: str
    results: Sequence[Result]
    baseline: ComparisonRow | None = None
    time_matched_baseline: ComparisonRow | None = None
    controls: Mapping[str, ComparisonRow] = field(default_factory=dict)
    """Rows that differ in an outer step that learns nothing of imputing, by control."""
    paper: PaperResult | None = None
    paper_steps: int | None = None
    uses_own_schedule: bool = False
    """Whether the schedule is ours and not the paper's."""

    @property
    def decimals(self) -> int:
        """Two for an error in %, and three for one in units, which may be small."""
        return 2 if "%" in self.results[0].metric_name else 3

    @property
    def seeds(self) -> set[int]:
        return {r.seed for r in self.results}

    @property
    def mean_steps(self) -> float:
        return mean(r.steps for r in self.results)

    @property
    def mean_seconds(self) -> float:
        return mean(r.seconds for r in self.results)

    def format_gain(self, other: ComparisonRow | None) -> str:
        """Format the difference from another row over their common seeds; negative is better."""
        other_metrics = {} if other is None else {r.seed: r.metric for r in other.results}
        shared = [r for r in self.results if r.seed in other_metrics]
        shared.sort(key=lambda result: result.seed)
        differences = [r.metric - other_metrics[r.seed] for r in shared]
        return format_values(differences, self.decimals, sign="+") if differences else ""


def build_rows(table: Table, results: Mapping[str, Sequence[Result]]) -> list[ComparisonRow]:
    """Return one row per name, linked to the rows it is compared with."""
    rows = {name: ComparisonRow(name, cell_results) for name, cell_results in results.items()}
    for cell in rows.keys() & table.cells.keys():
        rows[cell] = replace(
            rows[cell],
            paper=table.get_paper_result(cell),
            paper_steps=table.get_run(table.find_paper_cell(cell)).steps,
            uses_own_schedule=bool(table.cells[cell].budget),
        )
    return [_link_baselines(rows, row, table) for row in rows.values()]


def _link_baselines(
    rows: dict[str, ComparisonRow], row: ComparisonRow, table: Table
) -> ComparisonRow:
    baseline_name = table.find_baseline(row.name) if row.name in table.cells else None
    if baseline_name is None:
        return row
    controls = table.find_controls(row.name)
    return replace(
        row,
        baseline=rows.get(baseline_name),
        time_matched_baseline=rows.get(get_time_matched_name(row.name, table)),
        controls={name: rows[cell] for name, cell in controls.items() if cell in rows},
    )


def get_time_matched_name(cell_name: str, table: Table) -> str:
    """Return the name of the baseline that is trained for as long as a cell with L2I took."""
    cell = table.cells[cell_name]
    rule_suffix = UPDATE_SUFFIXES[cell.update].removeprefix(UPDATE_SUFFIXES["normalized"])
    ablation_suffix = f"-{cell.ablation}" if cell.ablation else ""
    return f"{table.find_baseline(cell_name)}{TIME_MATCHED_SUFFIX}{rule_suffix}{ablation_suffix}"


def strip_table_name(name: str) -> str:
    """Return a cell's name without its table's."""
    return name.partition("/")[2] or name


def _find_differing_settings(result: Result, run: Run) -> FlatSettings:
    """Return the settings of a stored result, if it has any, where they differ from a run's.

    A field that is younger than the result had its default; one that has left does not count.
    """
    stored = result.settings or {}
    earlier = {**flatten_settings(Run(method=type(run.method)())), **stored} if stored else {}
    settings = flatten_settings(run)
    shared = sorted(earlier.keys() & settings.keys())
    return {name: earlier[name] for name in shared if earlier[name] != settings[name]}


def format_setting_overrides(result: Result) -> str:
    """Format the settings of a stored result that differ from its recipe's, if it has settings."""
    table = recipes.get_table(result.name.partition("/")[0])
    baseline_name = result.name.partition(TIME_MATCHED_SUFFIX)[0]
    name = result.name if result.name in table.cells else baseline_name
    overrides = _find_differing_settings(result, table.get_run(name))
    return ", ".join(f"{field}={json.dumps(value)}" for field, value in overrides.items())


@dataclass(frozen=True)
class ResultStore:
    """The results of a table in a folder."""

    table: Table
    folder: Path
    results: dict[str, dict[int, Result]]
    """By name, then by seed; in the table's order, each time-matched baseline before its cell."""

    def get_result_path(self, name: str, seed: int) -> Path:
        return self.folder / f"{strip_table_name(name)}-seed{seed}.json"

    def lookup(self, runs: Iterable[Run]) -> dict[int, Result]:
        """Return the stored results of a cell's runs by seed, or raise if their settings differ."""
        matches = {}
        for run in runs:
            result = self.results.get(run.name, {}).get(run.seed)
            if result is not None:
                self._check_same_settings(result, run)
                matches[run.seed] = result
        return matches

    def _check_same_settings(self, result: Result, run: Run) -> None:
        path = self.get_result_path(run.name, run.seed)
        if result.steps != run.steps:
            is_cell = run.name in self.table.cells
            fix = f"use --steps {result.steps}" if is_cell else "remove it to train it again"
            raise InputError(
                f"{path} holds a run of {result.steps:,} steps, not {run.steps:,}; "
                f"{fix}, or choose a different --save-results"
            )
        requested = flatten_settings(run)
        for name, stored in _find_differing_settings(result, run).items():
            value = json.dumps(stored)
            raise InputError(
                f"{path} holds a run with {name}={value}, not {json.dumps(requested[name])}; "
                f"use --set {name}={value}, or choose a different --save-results"
            )

    def save_run(self, run: Run) -> None:
        """Copy the result and metrics of a finished run."""
        folder, path = resolve_run_dir(run), self.get_result_path(run.name, run.seed)
        with translate_disk_full(folder):
            write_atomic(path.with_suffix(".jsonl"), (folder / "metrics.jsonl").read_bytes())
            # last, since it marks the run as saved
            write_atomic(path, (folder / "result.json").read_bytes())

    def check_equal_steps(self, rows: Sequence[ComparisonRow]) -> None:
        """Check that the runs of a row, its baseline and its controls have equally many steps."""
        for row in rows:
            sides = [side for side in (row, row.baseline, *row.controls.values()) if side]
            cells = [side for side in sides if side.name in self.table.cells]
            results = [result for cell in cells for result in cell.results]
            for result in results:
                if result.steps != results[0].steps:
                    first, path = (
                        self.get_result_path(r.name, r.seed) for r in (results[0], result)
                    )
                    raise InputError(
                        f"{first} has {results[0].steps:,} steps and {path} has {result.steps:,}; "
                        "put runs of different lengths in different folders"
                    )


def read_store(folder: str, table: Table) -> ResultStore:
    """Read the results of a table; a folder that does not exist has none."""
    results_dir = resolve_table_dir(Path(folder), table.name)
    names = {strip_table_name(name): name for name in _list_valid_names(table)}
    results_by_name: dict[str, dict[int, Result]] = {name: {} for name in names.values()}
    for path in results_dir.glob("*-seed*.json"):
        match = RESULT_FILE_PATTERN.fullmatch(path.name)
        if match is None:
            continue
        if match[1] not in names:
            raise InputError(
                f"{path} is not named after a cell of {table.name} "
                f"('l2i list {table.name}/' shows them); rename or remove it"
            )
        name, seed = names[match[1]], int(match[2])
        results_by_name[name][seed] = _read_stored_result(path, name, seed)
    results = {name: dict(sorted(runs.items())) for name, runs in results_by_name.items() if runs}
    return ResultStore(table, results_dir, results)


def resolve_table_dir(folder: Path, table_name: str) -> Path:
    """Return the table's own folder: one within `folder`, or `folder` itself."""
    table_subdir = folder / table_name
    is_table_dir = folder.resolve().name == table_name or any(folder.glob("*-seed*.json"))
    return folder if is_table_dir and not table_subdir.is_dir() else table_subdir


def make_folder(folder: Path, flag: str) -> None:
    """Create the folder that a flag needs, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create folder {folder} ({error.strerror}); choose a different {flag}"
        ) from None


def _list_valid_names(table: Table) -> dict[str, None]:
    """Return the names that results can have, in order."""
    names: dict[str, None] = {}
    for cell in table.cells:
        if table.find_baseline(cell) is not None:
            time_matched = get_time_matched_name(cell, table)
            names.pop(time_matched, None)  # if two cells share it, it precedes the second
            names[time_matched] = None
        names[cell] = None
    return names


@contextmanager
def translate_corruption(message: str) -> Iterator[None]:
    """Raise DamagedFile with this message if an untrusted file cannot be read or is refused."""
    try:
        yield
    except CORRUPT_FILE_ERRORS:
        raise DamagedFile(message) from None


def _read_stored_result(path: Path, name: str, seed: int) -> Result:
    """Read the result of a run from an untrusted file."""
    damage = f"{path} is damaged, or not the result of a run; restore or remove it"
    with translate_corruption(damage):
        result: Result = from_dict(Result, json.loads(check_regular_file(path).read_text("utf-8")))
        counts = (result.seed + 1, result.steps, result.concurrent_runs)
        if not (
            all(0 < count < 2**53 for count in counts)
            and math.isfinite(result.metric)
            and 0 < result.seconds < math.inf
            and {"torch", "l2i"} <= result.versions.keys()
        ):
            raise ValueError("impossible values")
    if (result.name, result.seed) != (name, seed):
        raise InputError(
            f"{path} holds the result of {result.name}, seed {result.seed}; rename or remove it"
        )
    return result


def load_saved_results(table: Table, options: CompareOptions) -> ResultStore:
    """Read the folder of --from; raise if options for training are given."""
    assert options.from_ is not None
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name not in OPTIONS_FOR_LOADING and value != option.default:
            flag = f"--{'no-' * (value is False)}{option.name.strip('_').replace('_', '-')}"
            raise InputError(
                f"{flag} cannot be combined with --from, which trains nothing; drop one of them"
            )
    folder, file_pattern = options.from_, f"{table.name}/CELL-seedN.json"
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder; --from needs one that contains {file_pattern}")
    store = read_store(folder, table)
    if not store.results:
        raise InputError(
            f"{folder} contains no results of {table.name} ({file_pattern}); train its cells with "
            f"'l2i compare {table.name} --save-results {folder}'"
        )
    return store


@dataclass(frozen=True)
class ReferenceMetric:
    """A metric that needs no training, as a file holds it."""

    name: str
    metric: float


def load_references(table: Table, options: CompareOptions) -> dict[str, float]:
    """Return metrics that need no training: stored ones, or else computed from the data.

    With --from they are left out if the data cannot be found.
    """
    is_loading, root = options.from_ is not None, options.data.root
    folder = options.from_ if is_loading else options.save_results
    results_dir = None if folder is None else resolve_table_dir(Path(folder), table.name)
    stored_metrics = {}
    if results_dir is not None and table.compute_references is not None:
        stored_metrics = _read_references(results_dir, table)
    if stored_metrics or table.compute_references is None:
        if is_loading and root is not None:
            raise InputError("--data.root has no effect here: no row needs the data; leave it out")
        return stored_metrics
    if is_loading and root is None:
        with suppress(InputError):  # the folder may be another dataset's
            return table.compute_references(None) if os.environ.get(DATA_ROOT_ENV) else {}
        return {}
    computed = table.compute_references(root)
    if results_dir is not None and options.save_results is not None:
        for name, metric in computed.items():
            text = json.dumps({"name": name, "metric": metric}) + "\n"
            write_atomic(results_dir / f"{strip_table_name(name)}.json", text.encode())
    return computed


def _read_references(results_dir: Path, table: Table) -> dict[str, float]:
    metrics = {}
    for path in sorted(results_dir.glob("*.json")):
        if RESULT_FILE_PATTERN.fullmatch(path.name):
            continue
        damage = f"{path} is damaged, or not a metric of {table.name}; restore or remove it"
        with translate_corruption(damage):
            data = json.loads(check_regular_file(path).read_text(encoding="utf-8"))
            reference: ReferenceMetric = from_dict(ReferenceMetric, data)
            if not math.isfinite(reference.metric) or reference.name != f"{table.name}/{path.stem}":
                raise ValueError("not the metric that the file is named after")
        metrics[reference.name] = reference.metric
    return metrics
