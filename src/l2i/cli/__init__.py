"""The command line: `l2i list | train | compare | evaluate | …`. A command imports what is heavy by itself."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from l2i.cli.experiments import tune
from l2i.cli.fit import export, fit, impute, predict, report
from l2i.cli.options import EvaluateOptions
from l2i.cli.parsing import escape_unencodable, handle_help_flag, parse_options, pop_positional, print_stderr
from l2i.errors import DiskFull, InputError, NonFiniteCost, Stopped
from l2i.experiments.options import BenchOptions, CompareOptions, PlotOptions
from l2i.registry import make_unknown_error
from l2i.torchrun import rank, world_size

DRY_RUN_FLAG = "--dry-run"
LOST_PEER_PATTERN = r"gloo|NCCL|Connection|Dist|timed out"  # in the words of torch.distributed

USAGE = """\
usage: l2i COMMAND …

  list [WORD]                    methods, models, data sets and recipes, one a line; those with WORD in their name
  train RECIPE [--field value …] one run, in runs/NAME; the same command goes on with it if it was cut
  train RECIPE --dry-run         its protocol, a field a line
  fit PATH --target COLUMN …     your own data: a CSV or Parquet file, a folder of images, an .npz
  impute RUN --out labels.csv    the label of every row of a fit, given or imputed, and how sure it is
  predict RUN NEW_DATA           labels of new rows
  report RUN                     one HTML file: did the unlabelled rows help, and which labels are sure
  export RUN model.onnx          the model with its preprocessing, as ONNX or torch.export (.pt2)
  compare TABLE [--seeds N] [--cells CELL …] [--steps N] [--dry-run] [--load-results FOLDER] …
                                 baseline against L2I on the same splits, beside the paper's figures
  tune RECIPE [--trials N] [--storage URL] [--dry-run] …
                                 search its settings, chosen on validation samples; continued and shared by processes
  evaluate RUN [--device D]      the averaged model of a run folder, on its validation and test samples
  plot RUN [--baseline RUN]      plots of a run: costs before and after an update, landmarks on faces
  bench [--device D] [--json] …  step times, memory and the time floor of this machine

'l2i COMMAND … --help' shows what can be set; 'l2i train digits' and 'l2i fit FILE.csv --target COLUMN' are starts.
Exit codes: 0 done, 1 failed while running, 2 wrong input, 130 and 143 stopped by a signal after saving."""


def main() -> None:
    """Run a command and leave with its exit code."""
    run_and_exit(run_command)


def run_and_exit(run: Callable[[Sequence[str]], int]) -> None:
    """Hand the words of the command line to `run`, and leave with the exit code that it returns."""
    escape_unencodable()
    if rank():  # one process speaks for all
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (open as long as the process is)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; what goes wrong is one line on stderr."""
    return report_errors(dispatch, arguments)


def report_errors(run: Callable[[list[str]], int], arguments: Sequence[str]) -> int:
    """The exit code of `run`; what goes wrong in it is one line on stderr."""
    try:
        return run(list(arguments))
    except InputError as error:
        return print_stderr(error, 2)
    except Stopped as error:
        return error.exit_code if rank() else print_stderr(error, error.exit_code)
    except KeyboardInterrupt:
        return print_stderr("stopped", 130)
    except BrokenPipeError:
        raise
    except (NonFiniteCost, DiskFull, OSError) as error:
        return print_stderr(error, 1)
    except (RuntimeError, MemoryError) as error:
        if world_size() > 1 and re.search(LOST_PEER_PATTERN, f"{type(error).__name__} {error}"):
            cause = re.sub(r"^\[[^]]*\] ", "", str(error) or type(error).__name__).partition(". ")[0].splitlines()[0]
            hint = "the same command goes on from the last checkpoint, and torchrun --max-restarts N does so by itself"
            return print_stderr(f"process {rank()} has lost the others ({cause}); {hint}", 1)
        if not re.search(r"out of memory|allocate", f"{type(error).__name__} {error}"):
            raise
        return print_stderr("out of memory; use smaller batches, a smaller model or, in compare, fewer runs --parallel", 1)


def dispatch(arguments: list[str]) -> int:
    """Hand the arguments to their command."""
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    if arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "--version":
        from l2i import __version__

        print(__version__)
        return 0
    if world_size() > 1 and arguments[0] not in ("train", "tune"):  # tune says more
        raise InputError(f"'l2i {arguments[0]}' is for one process; start it without torchrun")
    if arguments[0] not in COMMANDS:
        raise make_unknown_error("command", arguments[0], list(COMMANDS), help_command="l2i --help")
    return COMMANDS[arguments[0]](arguments[1:])


def list_names(arguments: list[str]) -> int:
    """Everything that has a name, or what of it contains a word."""
    from l2i import recipes
    from l2i.data import DATASETS
    from l2i.methods import METHODS
    from l2i.models import MODELS

    if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
        extra_words = [word for word in arguments if word not in ("-h", "--help")]
        if extra_words:
            raise InputError(f"'l2i list' takes a word that names contain, and was given '{extra_words[-1]}'; leave it out")
        arguments = []
    kinds = {"methods": METHODS, "models": MODELS, "data sets": DATASETS, "recipes": recipes.list_recipes()}
    matches = {kind: [name for name in names if not arguments or arguments[0] in name] for kind, names in kinds.items()}
    if not any(matches.values()):
        raise make_unknown_error("name", arguments[0], [name for names in kinds.values() for name in names], help_command="l2i list")
    for kind, names in matches.items():
        if names:
            print(f"# {kind}", *names, sep="\n")
    return 0


def train(arguments: list[str]) -> int:
    """One run."""
    from l2i import recipes
    from l2i.cli.parsing import parse_run, pop_recipe_name

    name, rest = pop_recipe_name(arguments, "train")
    run_config = parse_run(name, [word for word in rest if word != DRY_RUN_FLAG], "train")
    if DRY_RUN_FLAG in rest:
        from l2i.config.validate import validate
        from l2i.recipes.protocol import format_protocol

        validate(run_config)
        print(format_protocol(run_config, recipes.find_cell_table(name), name))
        return 0

    from l2i.training.run import train as train_run
    from l2i.training.run_dir import resolve_run_dir

    already_done = (resolve_run_dir(run_config) / "result.json").exists()
    print(train_run(run_config))
    print(f"in {resolve_run_dir(run_config)}{', done before; give another --out to train again' if already_done else ''}")
    return 0


def compare(arguments: list[str]) -> int:
    """A table."""
    from l2i import recipes

    name, rest = pop_positional(arguments, "compare", "TABLE", "a table", list(recipes.TABLES))
    recipes.get_table(name)

    from l2i.experiments.compare import compare as compare_cells
    from l2i.experiments.plots import check_plot_paths
    from l2i.experiments.table import describe_plan, report_comparison

    options = parse_options(CompareOptions, rest, f"l2i compare {name}", CompareOptions())
    check_plot_paths(options)
    if options.dry_run and options.load_results is None:
        print(*describe_plan(name, options), sep="\n")
    else:
        report_comparison(name, compare_cells(name, options), options)
    return 0


def evaluate(arguments: list[str]) -> int:
    """A run folder."""
    handle_help_flag(arguments, EvaluateOptions, "l2i evaluate RUN")
    folder, rest = pop_positional(arguments, "evaluate", "RUN", "a run folder", [])
    options = parse_options(EvaluateOptions, rest, f"l2i evaluate {folder}", EvaluateOptions())
    from l2i.training.loading import evaluate_run

    print(json.dumps(evaluate_run(folder, device=options.device, root=options.data.root), indent=2))
    return 0


def plot(arguments: list[str]) -> int:
    """Plots of a run folder."""
    handle_help_flag(arguments, PlotOptions, "l2i plot RUN")
    folder, rest = pop_positional(arguments, "plot", "RUN", "a run folder", [])
    options = parse_options(PlotOptions, rest, f"l2i plot {folder}", PlotOptions())
    from l2i.experiments.figures import plot_run

    plot_options = {name: getattr(options, name) for name in ("baseline", "out", "count", "device", "blank")}
    print(*plot_run(folder, lambda line: print_stderr(line, 0), **plot_options, root=options.data.root), sep="\n")
    return 0


def bench(arguments: list[str]) -> int:
    """Step times of this machine."""
    options = parse_options(BenchOptions, arguments, "l2i bench", BenchOptions())
    from l2i.experiments.benchmark import run_benchmark as measure

    results = measure(options, lambda line: print_stderr(line, 0))
    if options.json:
        print(results.to_json())
    else:
        results.print_report()
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": list_names,
    "train": train,
    "fit": fit,
    "impute": impute,
    "predict": predict,
    "report": report,
    "export": export,
    "compare": compare,
    "tune": tune,
    "evaluate": evaluate,
    "plot": plot,
    "bench": bench,
}
