"""Train the cells of a table over several seeds: each baseline against L2I on the same splits."""

from __future__ import annotations

from pathlib import Path

from l2i import recipes
from l2i.config import Run, replace
from l2i.config.serialization import set_path
from l2i.config.validate import validate
from l2i.errors import InputError
from l2i.experiments.formatting import format_values
from l2i.experiments.options import CompareOptions
from l2i.experiments.results import (
    ComparisonRow,
    ResultStore,
    build_rows,
    get_time_matched_name,
    load_saved_results,
    make_folder,
    read_store,
    strip_table_name,
)
from l2i.files.terminal import print_lines
from l2i.recipes.table import Table
from l2i.registry import make_unknown_error
from l2i.training.logger import format_duration
from l2i.training.run import train_many
from l2i.training.run_dir import Result

RESERVED_FIELDS = ("name", "seed", "steps", "out", "device", "data.root")  # have their own options


def compare(name: str, options: CompareOptions) -> list[ComparisonRow]:
    """Train what the options ask for, or load saved results, and return the table's rows."""
    table = recipes.get_table(name)
    if options.from_ is not None:
        return _load_table_rows(table, options)
    return build_rows(table, _train_cells(table, options))


def _load_table_rows(table: Table, options: CompareOptions) -> list[ComparisonRow]:
    """Return the rows of the cells in --cells, or of all, from the results in --from."""
    requested = [_qualify_cell(cell, table) for cell in options.cells]
    store = load_saved_results(table, options)
    for cell in requested:
        if cell not in store.results:
            example = store.get_result_path(cell, 0).name
            raise InputError(
                f"{store.folder} has no results of {cell} ({example}, …); "
                f"remove it from --cells, or train it with 'l2i compare {table.name} --cells "
                f"{strip_table_name(cell)} --save-results {options.from_}'"
            )
    rows = build_rows(table, {cell: list(runs.values()) for cell, runs in store.results.items()})
    store.check_equal_steps(rows)
    time_matched = [row.time_matched_baseline for row in rows if row.name in requested]
    visible_names = {*requested, *(row.name for row in time_matched if row is not None)}
    return [row for row in rows if row.name in visible_names or not requested]


def _train_cells(table: Table, options: CompareOptions) -> dict[str, list[Result]]:
    """Return the results of each cell and of each time-matched baseline, baselines first."""
    runs_by_cell = plan_runs(table, options)
    if options.analyze_updates is not None:
        _check_probed(table, runs_by_cell)
    store = None
    if options.save_results is not None:
        store = read_store(options.save_results, table)
        make_folder(store.folder, "--save-results")
        for runs in runs_by_cell.values():
            store.lookup(runs)  # raise before anything is trained
    results_by_name: dict[str, list[Result]] = {}
    for cell, runs in runs_by_cell.items():
        results = _train_or_load(runs, options, store)
        baseline_results = results_by_name.get(table.find_baseline(cell) or "")
        is_timed = options.time_matched and not table.cells[cell].is_control
        if baseline_results is not None and is_timed:
            longer_runs = _make_time_matched_runs(table, cell, baseline_results, results, options)
            results_by_name[longer_runs[0].name] = _train_or_load(longer_runs, options, store)
        results_by_name[cell] = results
    return results_by_name


def _check_probed(table: Table, runs_by_cell: dict[str, list[Run]]) -> None:
    """Check that there will be something to analyze, before anything is trained."""
    probed_cells = {cell for cell, runs in runs_by_cell.items() if runs[0].probe_samples}
    if not any(table.find_baseline(cell) in probed_cells for cell in probed_cells):
        raise InputError(
            "--analyze-updates needs a cell with L2I and its baseline, both probed; "
            "name both in --cells, and add --set probe_samples=1000"
        )


def plan_runs(table: Table, options: CompareOptions) -> dict[str, list[Run]]:
    """Return the validated runs of each cell, one per seed; baselines come first."""
    seeds = table.seeds if options.seeds is None else options.seeds
    if seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    if options.parallel < 0:
        raise InputError(
            f"parallel={options.parallel} must be at least 1, or 0 to choose automatically"
        )
    cell_names = [_qualify_cell(cell, table) for cell in options.cells] or list(table.default_cells)
    if options.controls:
        cell_names += [c for name in cell_names for c in table.find_controls(name).values()]
    cells = sorted(dict.fromkeys(cell_names), key=lambda cell: table.cells[cell].update != "off")
    runs_by_cell = {
        cell: [_make_run_at_seed(table.get_run(cell), options, seed=seed) for seed in range(seeds)]
        for cell in cells
    }
    for runs in runs_by_cell.values():
        validate(runs[0])
    return runs_by_cell


def _qualify_cell(cell: str, table: Table) -> str:
    """Return a cell's full name, TABLE/CELL."""
    name = cell if cell in table.cells else f"{table.name}/{cell}"
    if name not in table.cells and cell in recipes.list_recipes():
        raise InputError(
            f"{cell} is a cell of a different table; compare the cells of one table at a time"
        )
    if name not in table.cells:
        raise make_unknown_error("recipe", cell, [strip_table_name(name) for name in table.cells])
    return name


def _make_run_at_seed(
    run: Run, options: CompareOptions, *, seed: int, steps: int | None = None
) -> Run:
    """Return a cell's run at one seed, in a folder of its own."""
    out = str(Path(options.out) / f"{run.name.replace('/', '-')}-seed{seed}")
    num_steps = next(s for s in (steps, options.steps, run.steps) if s is not None)
    base_run = replace(apply_changes(run, options.set), data={"root": options.data.root})
    return replace(base_run, seed=seed, steps=num_steps, out=out, device=options.device)


def apply_changes(run: Run, changes: tuple[str, ...]) -> Run:
    """Return the run with the fields that `changes` set, each as FIELD=VALUE."""
    for change in changes:
        name, equals, value = change.partition("=")
        path = name.replace("-", "_")
        if not equals or name.startswith("-"):
            raise InputError(f"--set takes FIELD=VALUE, as in --set optim.lr=0.001, not '{change}'")
        if path in RESERVED_FIELDS:
            raise InputError(f"--set {name}: use the option of 'l2i compare' instead (see --help)")
        try:
            run = set_path(run, path, value)
        except InputError as error:  # a cell may lack a field that another has
            raise InputError(f"{run.name}: {error}") from None
    return run


def _train_or_load(
    runs: list[Run], options: CompareOptions, store: ResultStore | None
) -> list[Result]:
    """Return the results of a cell's runs; train and save those that are not in the store."""
    results = {} if store is None else store.lookup(runs)
    loaded = f" ({len(results)} from {store.folder})" if store and results else ""
    pending = [run for run in runs if run.seed not in results]
    new_results = train_many(pending, concurrent_runs=options.parallel) if pending else ()
    for run, result in zip(pending, new_results, strict=True):
        if store is not None:
            store.save_run(run)
        results[run.seed] = result
    cell_results = [results[run.seed] for run in runs]
    print_lines(_summarize_cell(cell_results, loaded), stderr=True)
    return cell_results


def _summarize_cell(results: list[Result], loaded: str) -> str:
    """Return one line about a cell whose runs are finished."""
    seeds = f"{len(results)} seed{'s' * (len(results) > 1)}{loaded}"
    metric = f"{results[0].metric_name} {format_values(result.metric for result in results)}"
    seconds = sum(result.seconds for result in results)
    return f"{results[0].name}: {metric}, {seeds}, {format_duration(seconds)} of training"


def _make_time_matched_runs(
    table: Table,
    cell: str,
    baseline_results: list[Result],
    l2i_results: list[Result],
    options: CompareOptions,
) -> list[Run]:
    """Return the baseline's runs with as many steps as fit in the time of its runs with L2I."""
    run = replace(table.get_run(baseline_results[0].name), name=get_time_matched_name(cell, table))
    return [
        _make_run_at_seed(
            run, options, seed=b.seed, steps=max(1, round(b.steps * i.seconds / b.seconds))
        )
        for b, i in zip(baseline_results, l2i_results, strict=True)
    ]
