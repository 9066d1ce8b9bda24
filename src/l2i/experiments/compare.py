"""What the commands take, apart from a run's own fields; nothing heavy is imported here.

MERGED:
The cells of a table over several seeds: each baseline against L2I on the same splits, and given as much time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from l2i import recipes
from l2i.cli.parsing import parse_options
from l2i.config import Run, replace
from l2i.config.validate import validate
from l2i.errors import InputError
from l2i.experiments.options import CompareOptions
from l2i.experiments.results import (
    ComparisonRow,
    ResultStore,
    build_rows,
    get_time_matched_name,
    load_saved_results,
    read_store,
    strip_table_name,
)
from l2i.recipes.table import Table
from l2i.registry import make_unknown_error
from l2i.training.run import train_many
from l2i.training.run_dir import Result

RESERVED_FIELDS = ("name", "seed", "steps", "out", "device", "precision", "engine", "data.root")  # fields with options of their own


def compare(name: str, options: CompareOptions) -> list[ComparisonRow]:
    """Train what the options ask for, or read what was kept, and return the table's lines."""
    table = recipes.get_table(name)
    if options.load_results is not None:
        return load_table_rows(table, options)
    return build_rows(table, train_cells(table, options))


def load_table_rows(table: Table, options: CompareOptions) -> list[ComparisonRow]:
    """The lines of the cells that --cells names, or of all, from the results that --load-results holds."""
    requested, store = [qualify_cell(cell, table) for cell in options.cells], load_saved_results(table, options)
    for cell in requested:
        if cell not in store.results:
            raise InputError(
                f"{store.folder} has no results of {cell} ({store.result_path(cell, 0).name}, …); leave it out of --cells, or "
                f"'l2i compare {table.name} --cells {strip_table_name(cell)} --save-results {options.load_results}' trains it"
            )
    rows = build_rows(table, {name: list(results.values()) for name, results in store.results.items()})
    store.check_equal_steps(rows)
    visible_names = {*requested, *(get_time_matched_name(cell, table) for cell in requested if table.find_baseline(cell) is not None)}
    return [row for row in rows if row.name in visible_names or not requested]


def train_cells(table: Table, options: CompareOptions) -> dict[str, list[Result]]:
    """The results of each cell, and of each baseline given as much time; baselines come first."""
    runs_by_cell = plan_runs(table, options)
    if options.analyze_updates is not None:
        check_probed(table, runs_by_cell)
    store = open_store(table, options)
    if store is not None:
        for runs in runs_by_cell.values():
            store.lookup(runs)  # what does not fit is found before anything is trained
    results_by_name: dict[str, list[Result]] = {}
    for cell, runs in runs_by_cell.items():
        results = train_or_load(runs, options, store)
        baseline_results = results_by_name.get(table.find_baseline(cell) or "")
        if baseline_results is not None and options.time_matched:
            results_by_name[get_time_matched_name(cell, table)] = train_or_load(time_matched_runs(table, cell, baseline_results, results, options), options, store)
        results_by_name[cell] = results
    return results_by_name


def check_probed(table: Table, runs_by_cell: dict[str, list[Run]]) -> None:
    """That there will be something to tell of imputing, before anything is trained."""
    pairs = [(runs[0], runs_by_cell[baseline][0]) for cell, runs in runs_by_cell.items() if (baseline := table.find_baseline(cell)) in runs_by_cell]
    if not any(run.probe_samples and baseline_run.probe_samples for run, baseline_run in pairs):
        raise InputError(
            "--analyze-updates needs a cell with L2I beside its baseline, both probed; name both in --cells, and give "
            "--set probe_samples=1000"
        )


def open_store(table: Table, options: CompareOptions) -> ResultStore | None:
    """The folder of --save-results, ready to be written to."""
    if options.save_results is None:
        return None
    store = read_store(options.save_results, table)
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{store.folder} cannot be a folder ({error.strerror}); give another --save-results") from None
    return store


def plan_runs(table: Table, options: CompareOptions) -> dict[str, list[Run]]:
    """The runs of each cell, one a seed, checked; baselines come first."""
    seeds = table.seeds if options.seeds is None else options.seeds
    if seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    if options.parallel < 0:
        raise InputError(f"parallel={options.parallel} must be at least 1, or 0 for as many as that makes faster")
    cell_names = [qualify_cell(cell, table) for cell in options.cells] or list(table.default_cells)
    cells = sorted(dict.fromkeys(cell_names), key=lambda cell: table.cells[cell].update != "off")
    runs_by_cell = {cell: [run_at_seed(table.get_run(cell), options, seed=seed) for seed in range(seeds)] for cell in cells}
    for runs in runs_by_cell.values():
        validate(runs[0])
    return runs_by_cell


def qualify_cell(cell: str, table: Table) -> str:
    """A cell's whole name."""
    name = cell if cell in table.cells else f"{table.name}/{cell}"
    if name not in table.cells and cell in recipes.list_recipes():
        raise InputError(f"{cell} is a cell of another table; compare the cells of one table at a time")
    if name not in table.cells:
        raise make_unknown_error("recipe", cell, [cell_name.partition("/")[2] or cell_name for cell_name in table.cells])
    return name


def run_at_seed(run: Run, options: CompareOptions, *, seed: int, steps: int | None = None) -> Run:
    """A cell's run at one seed, in a folder of its own."""
    out = str(Path(options.out) / f"{run.name.replace('/', '-')}-seed{seed}")
    num_steps = next(s for s in (steps, options.steps, run.steps) if s is not None)
    base_run = replace(apply_changes(run, options.changes), data={"root": options.data.root})
    execution_settings = {"device": options.device, "precision": options.precision, "engine": options.engine}
    return replace(base_run, seed=seed, steps=num_steps, out=out, **execution_settings)


def apply_changes(run: Run, changes: tuple[str, ...]) -> Run:
    """The run with the fields that `changes` name, as FIELD=VALUE."""
    words = [word for change in changes for word in change_to_flags(change)]
    try:
        return parse_options(Run, words, "l2i train RECIPE", run) if words else run
    except InputError as error:
        raise InputError(f"{run.name}: {error}") from None  # what one cell has another may lack


def change_to_flags(change: str) -> list[str]:
    """FIELD=VALUE as the command line of a run takes it: of true and false, a flag or its opposite."""
    name, equals, value = change.partition("=")
    if not equals or name.startswith("-"):
        raise InputError(f"--set takes FIELD=VALUE, as in --set optim.lr=0.001; it was given '{change}'")
    if name.replace("-", "_") in RESERVED_FIELDS:
        raise InputError(f"--set {name}: 'l2i compare' has an option of its own for that; see its --help")
    section, dot, field = name.replace("_", "-").rpartition(".")
    return {
        "true": [f"--{section}{dot}{field}"],
        "false": [f"--{section}{dot}no-{field}"],
    }.get(value.lower(), [f"--{section}{dot}{field}", value])


def train_or_load(runs: list[Run], options: CompareOptions, store: ResultStore | None) -> list[Result]:
    """Train those that are not kept, say so in a line a run, and keep them."""
    results = {} if store is None else store.lookup(runs)
    if store is not None and results:
        print(f"{runs[0].name}: {len(results)} of {len(runs)} seeds are in {store.folder}", file=sys.stderr, flush=True)
    pending = [run for run in runs if run.seed not in results]
    for run, result in zip(pending, train_many(pending, concurrent_runs=options.parallel) if pending else (), strict=True):
        print(result.summarize(), file=sys.stderr, flush=True)
        if store is not None:
            store.save_run(run)
        results[run.seed] = result
    return [results[run.seed] for run in runs]


def time_matched_runs(table: Table, cell: str, baseline_results: list[Result], l2i_results: list[Result], options: CompareOptions) -> list[Run]:
    """The baseline's runs with so many steps that each seed takes as long as it did with L2I."""
    run = replace(table.get_run(baseline_results[0].name), name=get_time_matched_name(cell, table))
    return [
        run_at_seed(run, options, seed=b.seed, steps=max(1, round(b.steps * i.seconds / b.seconds)))
        for b, i in zip(baseline_results, l2i_results, strict=True)
    ]
