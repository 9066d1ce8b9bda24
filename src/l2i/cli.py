"""The command line: `l2i list | train | compare | evaluate | …`. A command imports what is heavy by itself."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from l2i.arguments import explained, never_fail, parsed, positional, tell
from l2i.errors import InputError, NonFiniteCost, NoRoom, Stopped
from l2i.launched import index, started
from l2i.options import BenchOptions, CompareOptions, EvaluateOptions, PicturesOptions
from l2i.own.commands import export, fit, impute, predict, report
from l2i.registry import unknown
from l2i.study.command import study
from l2i.tune.command import tune

DRY = "--dry-run"
LOST = r"gloo|NCCL|Connection|Dist|timed out"  # in the words of torch.distributed

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
  compare TABLE [--seeds N] [--cells CELL …] [--steps N] [--dry-run] [--from FOLDER] …
                                 baseline against L2I on the same splits, beside the paper's figures
  tune RECIPE [--trials N] [--storage URL] [--dry-run] …
                                 search its settings, chosen on validation samples; continued and shared by processes
  study [PROBLEM …] [--part P] [--seeds A:B] [--dry-run] [--from FOLDER] …
                                 what makes L2I help: small problems, arms tuned alike, settings one at a time
  evaluate RUN [--device D]      the averaged model of a run folder, on its validation and test samples
  pictures RUN [--baseline RUN]  plots of a run: costs before and after an update, landmarks on faces
  bench [--device D] [--json] …  step times, memory and the time floor of this machine

'l2i COMMAND … --help' shows what can be set; 'l2i train digits' and 'l2i fit FILE.csv --target COLUMN' are starts.
Exit codes: 0 done, 1 failed while running, 2 wrong input, 130 and 143 stopped by a signal after saving."""


def main() -> None:
    """Run a command and leave with its exit code."""
    never_fail()
    if index():  # one process speaks for all
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (open as long as the process is)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command; what goes wrong is one line on stderr."""
    try:
        return dispatch(list(arguments))
    except InputError as error:
        return tell(error, 2)
    except Stopped as error:
        return error.exit_code if index() else tell(error, error.exit_code)
    except KeyboardInterrupt:
        return tell("stopped", 130)
    except BrokenPipeError:
        raise
    except (NonFiniteCost, NoRoom, OSError) as error:
        return tell(error, 1)
    except (RuntimeError, MemoryError) as error:
        if started() > 1 and re.search(LOST, f"{type(error).__name__} {error}"):
            cause = re.sub(r"^\[[^]]*\] ", "", str(error) or type(error).__name__).partition(". ")[0].splitlines()[0]
            after = "the same command goes on from the last checkpoint, and torchrun --max-restarts N does so by itself"
            return tell(f"process {index()} has lost the others ({cause}); {after}", 1)
        if not re.search(r"out of memory|allocate", f"{type(error).__name__} {error}"):
            raise
        return tell("out of memory; use smaller batches, a smaller model or, in compare, fewer runs --at-once", 1)


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
    if started() > 1 and arguments[0] not in ("train", "tune"):  # tune says more
        raise InputError(f"'l2i {arguments[0]}' is for one process; start it without torchrun")
    if arguments[0] not in COMMANDS:
        raise unknown("command", arguments[0], list(COMMANDS), where="l2i --help")
    return COMMANDS[arguments[0]](arguments[1:])


def list_names(arguments: list[str]) -> int:
    """Everything that has a name, or what of it contains a word."""
    from l2i import recipes
    from l2i.data import DATASETS
    from l2i.methods import METHODS
    from l2i.models import MODELS

    if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
        told = [word for word in arguments if word not in ("-h", "--help")]
        if told:
            raise InputError(f"'l2i list' takes a word that names contain, and was given '{told[-1]}'; leave it out")
        arguments = []
    kinds = {"methods": METHODS, "models": MODELS, "data sets": DATASETS, "recipes": recipes.names()}
    found = {kind: [name for name in names if not arguments or arguments[0] in name] for kind, names in kinds.items()}
    if not any(found.values()):
        raise unknown("name", arguments[0], [name for names in kinds.values() for name in names], where="l2i list")
    for kind, names in found.items():
        if names:
            print(f"# {kind}", *names, sep="\n")
    return 0


def train(arguments: list[str]) -> int:
    """One run."""
    from l2i import recipes
    from l2i.recipes.chosen import changed, named

    name, rest = named(arguments, "train")
    chosen = changed(name, [word for word in rest if word != DRY], "train")
    if DRY in rest:
        from l2i.recipes.protocol import printed
        from l2i.validate import validate

        validate(chosen)
        print(printed(chosen, recipes.table_of(name), name))
        return 0

    from l2i.training.folder import folder_of
    from l2i.training.run import train as train_run

    done = (folder_of(chosen) / "result.json").exists()
    print(train_run(chosen))
    print(f"in {folder_of(chosen)}{', done before; give another --out to train again' if done else ''}")
    return 0


def compare(arguments: list[str]) -> int:
    """A table."""
    from l2i import recipes

    name, rest = positional(arguments, "compare", "TABLE", "a table", list(recipes.TABLES))
    recipes.table(name)

    from l2i.compare import compare as compare_cells
    from l2i.compared import planned, report
    from l2i.curves import check

    options = parsed(CompareOptions, rest, f"l2i compare {name}", CompareOptions())
    check(options)
    if options.dry_run and options.from_ is None:
        print(*planned(name, options), sep="\n")
    else:
        report(name, compare_cells(name, options), options)
    return 0


def evaluate(arguments: list[str]) -> int:
    """A run folder."""
    explained(arguments, EvaluateOptions, "l2i evaluate RUN")
    folder, rest = positional(arguments, "evaluate", "RUN", "a run folder", [])
    options = parsed(EvaluateOptions, rest, f"l2i evaluate {folder}", EvaluateOptions())
    from l2i.training.load import evaluate_run

    print(json.dumps(evaluate_run(folder, device=options.device, root=options.data.root), indent=2))
    return 0


def pictures(arguments: list[str]) -> int:
    """Plots of a run folder."""
    explained(arguments, PicturesOptions, "l2i pictures RUN")
    folder, rest = positional(arguments, "pictures", "RUN", "a run folder", [])
    options = parsed(PicturesOptions, rest, f"l2i pictures {folder}", PicturesOptions())
    from l2i.pictures import draw

    chosen = {name: getattr(options, name) for name in ("baseline", "out", "count", "device", "blank")}
    print(*draw(folder, lambda line: tell(line, 0), **chosen, root=options.data.root), sep="\n")
    return 0


def bench(arguments: list[str]) -> int:
    """Step times of this machine."""
    options = parsed(BenchOptions, arguments, "l2i bench", BenchOptions())
    from l2i.bench import bench as measure

    found = measure(options, lambda line: tell(line, 0))
    if options.json:
        print(found.json())
    else:
        found.print()
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
    "study": study,
    "evaluate": evaluate,
    "pictures": pictures,
    "bench": bench,
}
