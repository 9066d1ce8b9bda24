"""The command line: `l2i list | train | compare | evaluate | …`."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from l2i.cli.parsing import HELP_FLAGS, CommandFunction, print_stderr
from l2i.errors import DiskFull, InputError, NonFiniteCost, Stopped
from l2i.registry import load_registered, make_unknown_error
from l2i.torchrun import rank, world_size

LOST_PEER_PATTERN = r"gloo|NCCL|Connection|Dist|timed out"  # in messages of torch.distributed

USAGE = """\
usage: l2i COMMAND …

  list [WORD]                    list methods, models, datasets and recipes, one per line; with
                                 WORD, only names that contain it
  list --tables [WORD]           list tables and their axes: methods, rules, labels, ablations, …
  train RECIPE [--field value …] train one run in runs/NAME; the same command resumes it
  train RECIPE --dry-run         print its full configuration, with the sources of its values
  fit PATH --target COLUMN …     train on your own data: CSV, Parquet, .npz or a folder of images
  impute RUN --out labels.csv    label every row of a fit, given or imputed, with its confidence
  predict RUN NEW_DATA           predict the labels of new rows
  report RUN                     write one HTML file: did the unlabelled rows help, which labels
                                 can be trusted
  export RUN model.onnx          export the model with its preprocessing: ONNX, torch.export (.pt2)
  compare TABLE [--seeds N] [--cells CELL …] [--steps N] [--dry-run] [--from FOLDER] …
                                 compare L2I with its baselines on the same splits, and with the
                                 paper's results
  tune RECIPE [--trials N] [--storage URL] [--dry-run] …
                                 tune hyperparameters by validation error; the same command resumes
                                 a study, and several processes can share one
  evaluate RUN [--device D]      evaluate the averaged (EMA) model on the validation and test sets
  plot RUN [--baseline RUN]      plot costs before and after outer updates, errors, and landmarks
  bench [--device D] [--json] …  measure step time, memory use and the roofline of this machine

'l2i COMMAND … --help' lists all options. Start with 'l2i train digits' or
'l2i fit FILE.csv --target COLUMN'.
Exit codes: 0 success, 1 failed while running (full disk, damaged file), 2 wrong input, 130 and 143
stopped by a signal after saving a checkpoint."""

COMMANDS = {  # imported when called, so that `l2i list` does not wait for torch
    "list": "l2i.cli:list_names",
    "train": "l2i.cli.commands:train",
    "fit": "l2i.cli.fit:fit",
    "impute": "l2i.cli.fit:impute",
    "predict": "l2i.cli.fit:predict",
    "report": "l2i.cli.fit:report",
    "export": "l2i.cli.fit:export",
    "compare": "l2i.cli.commands:compare",
    "tune": "l2i.cli.commands:tune",
    "evaluate": "l2i.cli.commands:evaluate",
    "plot": "l2i.cli.commands:plot",
    "bench": "l2i.cli.commands:bench",
}


def main() -> None:
    """Run a command and exit with its exit code."""
    run_and_exit(run_command)


def run_and_exit(run: Callable[[Sequence[str]], int]) -> None:
    """Call `run` with the arguments of the process, and exit with the code that it returns."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape what the locale cannot encode
            stream.reconfigure(errors="backslashreplace")
    if rank():  # only the first process prints
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (open as long as the process is)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are one line on stderr."""
    return report_errors(dispatch, arguments)


def report_errors(run: CommandFunction, arguments: Sequence[str]) -> int:
    """Return the exit code of `run`, or print its error in one line and return the error's code."""
    try:
        return run(list(arguments))
    except InputError as error:
        return print_stderr(error, error.exit_code)
    except Stopped as error:
        return error.exit_code if rank() else print_stderr(error, error.exit_code)
    except KeyboardInterrupt:
        return print_stderr("stopped", 130)
    except BrokenPipeError:
        raise
    except (NonFiniteCost, DiskFull, OSError) as error:
        return print_stderr(error, 1)
    except (RuntimeError, MemoryError) as error:
        text = f"{type(error).__name__} {error}"
        if world_size() > 1 and re.search(LOST_PEER_PATTERN, text):
            cause = re.sub(r"^\[[^]]*\] ", "", str(error) or type(error).__name__)
            cause = cause.partition(". ")[0].splitlines()[0]
            return print_stderr(
                f"process {rank()} lost its connection to the others ({cause}); the same command "
                "resumes from the last checkpoint, or automatically with torchrun --max-restarts N",
                1,
            )
        if not re.search(r"out of memory|allocate", text):
            raise
        return print_stderr(
            "out of memory; use smaller batches or a smaller model, "
            "or lower --parallel of 'l2i compare'",
            1,
        )


def dispatch(arguments: list[str]) -> int:
    """Call the command that the first argument names with the others."""
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in HELP_FLAGS:
        print(USAGE)
        return 0
    if name == "--version":
        from importlib.metadata import version

        print(version("l2i"))
        return 0
    if world_size() > 1 and name not in ("train", "tune"):  # tune has its own message
        raise InputError(f"'l2i {name}' runs in a single process; start it without torchrun")
    if name not in COMMANDS:
        raise make_unknown_error("command", name, list(COMMANDS), help_command="l2i --help")
    run: CommandFunction = load_registered("command", COMMANDS, name)
    return run(rest)


def list_names(arguments: list[str]) -> int:
    """Print every registered name, or those that contain a word, or with --tables the tables."""
    from l2i import recipes
    from l2i.data import DATASETS
    from l2i.methods import METHODS
    from l2i.models import MODELS

    show_tables = "--tables" in arguments
    words = [word for word in arguments if word not in ("--tables", *HELP_FLAGS)]
    if len(words) > 1 or any(word.startswith("-") for word in words):
        raise InputError(
            f"'l2i list' takes at most one word to filter names by; remove '{words[-1]}'"
        )
    names_by_kind = {
        "methods": list(METHODS),
        "models": list(MODELS),
        "datasets": list(DATASETS),
        "recipes": recipes.list_recipes(),
    }
    if show_tables:
        names_by_kind = {"tables": list(recipes.TABLES)}
    pattern = words[0] if words else ""
    matches = {
        kind: [name for name in names if pattern in name] for kind, names in names_by_kind.items()
    }
    if not any(matches.values()):
        all_names = [name for names in names_by_kind.values() for name in names]
        raise make_unknown_error("name", pattern, all_names, help_command="l2i list")
    for kind, names in matches.items():
        lines = [recipes.get_table(name).summarize() for name in names] if show_tables else names
        if lines:
            print(f"# {kind}", *lines, sep="\n")
    return 0
