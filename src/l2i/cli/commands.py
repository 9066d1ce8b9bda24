"""The commands for recipes and runs: train, compare, tune, evaluate, plot and bench."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.util import find_spec

from l2i import recipes
from l2i.cli import parsing
from l2i.errors import InputError
from l2i.experiments.options import (
    BenchOptions,
    CompareOptions,
    DataLocation,
    PlotOptions,
    TuneOptions,
)
from l2i.files.terminal import print_lines

DRY_RUN_FLAG = "--dry-run"
RUN_FOLDER = parsing.Positional("RUN", "a run folder")
TABLE = parsing.Positional("TABLE", "a table", tuple(recipes.TABLES), check=recipes.get_table)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Evaluate the averaged (EMA) model of a run on its validation and test sets; print JSON."""

    device: str | None = None
    """cpu, cuda, …; the run's device by default."""
    data: DataLocation = field(default_factory=DataLocation)
    """Location of the data."""


def train(arguments: list[str]) -> int:
    """Train one run, or print its configuration."""
    name, words = parsing.pop_recipe_name(arguments, "train")
    run = parsing.parse_run(name, [word for word in words if word != DRY_RUN_FLAG], "train")
    if DRY_RUN_FLAG in words:
        from l2i.config.validate import validate
        from l2i.recipes.protocol import format_protocol

        validate(run)
        print_lines(format_protocol(run, recipes.find_cell_table(name), name))
        return 0

    from l2i.files.output import check_not_in_run
    from l2i.training.run import train as train_run
    from l2i.training.run_dir import resolve_run_dir

    folder = resolve_run_dir(run)
    check_not_in_run(folder)
    already_done = (folder / "result.json").exists()
    note = ", already finished; choose a different --out to train again" * already_done
    print_lines(train_run(run), f"in {folder}{note}")
    return 0


@parsing.command(CompareOptions, TABLE)
def compare(name: str, options: CompareOptions) -> None:
    """Train and print the cells of a table."""
    from l2i.experiments.compare import compare as compare_cells
    from l2i.experiments.plots import check_plot_paths
    from l2i.experiments.table import check_table_path, describe_plan, report_comparison

    check_plot_paths(options)
    if options.dry_run and options.from_ is None:
        print_lines(*describe_plan(name, options))
    else:
        check_table_path(name, options)
        report_comparison(name, compare_cells(name, options), options)


def tune(arguments: list[str]) -> int:
    """Search the settings of a recipe."""
    recipe_name, words = parsing.pop_recipe_name(arguments, "tune")
    options, run_flags = parsing.parse_known_options(TuneOptions, words, f"l2i tune {recipe_name}")
    try:
        run = parsing.parse_run(recipe_name, run_flags, "tune")
    except InputError as error:
        raise InputError(f"{error}{parsing.suggest_flag(TuneOptions, run_flags)}") from None
    if find_spec("optuna") is None:
        raise InputError("'l2i tune' needs Optuna, which is not installed: pip install 'l2i[tune]'")
    from l2i.experiments.tuning.space import plan_sweep
    from l2i.experiments.tuning.summary import render_dry_run
    from l2i.experiments.tuning.sweep import run_sweep

    plan = plan_sweep(recipe_name, run, options)
    print_lines(render_dry_run(plan) if options.dry_run else run_sweep(plan))
    return 0


@parsing.command(EvaluateOptions, RUN_FOLDER)
def evaluate(folder: str, options: EvaluateOptions) -> None:
    """Evaluate a run folder."""
    from l2i.training.loading import evaluate_run

    print(json.dumps(evaluate_run(folder, device=options.device, root=options.data.root), indent=2))


@parsing.command(PlotOptions, RUN_FOLDER)
def plot(folder: str, options: PlotOptions) -> None:
    """Plot a run folder."""
    from l2i.experiments.figures import plot_run

    print_lines(*plot_run(folder, options, parsing.print_stderr))


@parsing.command(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Time steps on this machine."""
    from l2i.experiments.benchmark import run_benchmark

    results = run_benchmark(options, parsing.print_stderr)
    if options.json:
        print(results.to_json())
    else:
        results.print_report()
