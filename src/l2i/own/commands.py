"""The commands for a person's own data: fit, impute, predict, report and export."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from l2i.arguments import explained, parsed, parsed_first, positional, print_exactly, tell
from l2i.errors import InputError
from l2i.options import FitOptions, ImputeOptions, PredictOptions, ReportOptions

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.own.fitted import Fitted, Rows

ELSEWHERE = {  # fields of a run that other options of `fit` stand for
    "name": "--out",
    "out": "--out",
    "data.name": "PATH",
    "data.root": "PATH",
    "data.num_labeled": "--validation and --test",
    "data.num_validation": "--validation",
    "data.num_test": "--test",
    "data.text.paraphrases": "--data.strong.words.replace",
    "model.weights": "--encoder",
}


def fit(arguments: list[str]) -> int:
    """Train on a file or folder."""
    explained(arguments, FitOptions, "l2i fit PATH")
    path, rest = positional(arguments, "fit", "PATH", "a file or folder", [])
    prog = f"l2i fit {path}"
    options, others = parsed_first(FitOptions, rest, prog, FitOptions())
    from l2i.own.fit import fit as fit_data
    from l2i.own.places import checked_beside, folder_for

    checked_beside(folder_for(path, options), Path(path))
    folder, fitted, rows = fit_data(path, options, partial(changed, others, prog), lambda line: tell(line, 0))
    told(fitted, rows)
    print(f"in {folder}; next: l2i impute {folder} --out labels.csv, l2i report {folder}")
    return 0


def changed(others: list[str], prog: str, run: Run) -> Run:
    """The run with the fields that arguments override."""
    from l2i.config import Run

    try:
        found = parsed(Run, others, prog, run)
    except InputError as error:
        raise InputError(f"{error}{nearest(others)}") from None
    named = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in others}
    wrong = next((name for name in ELSEWHERE if name in named), None)
    if wrong is not None:
        raise InputError(f"--{wrong.replace('_', '-')} is not for your own data; use {ELSEWHERE[wrong]}")
    return found


def told(fitted: Fitted, rows: Rows) -> None:
    """Print the candidates as a table, and the verdict."""
    from l2i.own.fit import described
    from l2i.report.verdict import verdict

    table = [["", f"validation {fitted.figure_name}", f"test {fitted.figure_name}", "seconds", ""], *described(fitted)]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:-1], widths[1:-1], strict=True))]
        print("  ".join([*cells, row[-1]]).rstrip())
    found = verdict(fitted, rows)
    print(*found.sentences, found.chosen, sep="\n")


def nearest(others: list[str]) -> str:
    """A hint where an argument is almost one of `fit`'s own, which a run does not know of."""
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(FitOptions)]
    near = [flag for word in others if word.startswith("--") for flag in get_close_matches(word, flags, 1, 0.8)]
    return f"; perhaps you meant {near[0]}" if near else ""


def impute(arguments: list[str]) -> int:
    """The labels of a fit's rows."""
    explained(arguments, ImputeOptions, "l2i impute RUN")
    folder, rest = positional(arguments, "impute", "RUN", "the folder of a fit", [])
    options = parsed(ImputeOptions, rest, f"l2i impute {folder}", ImputeOptions())
    from l2i.own.fitted import read_fit
    from l2i.own.imputed import impute as impute_rows
    from l2i.own.labels import SUFFIXES, imputed_frame, written
    from l2i.own.places import checked_file

    checked_file(options.out, SUFFIXES)
    fitted, rows = read_fit(folder)
    found = impute_rows(fitted, rows, options.threshold)
    written(options.out, imputed_frame(fitted, rows, found))
    count = int(found.imputed.sum())
    print(f"{len(rows.ids):,} rows in {options.out}: {count:,} imputed, {int(found.abstain.sum()):,} of them abstained")
    return 0


def predict(arguments: list[str]) -> int:
    """Labels of new rows."""
    explained(arguments, PredictOptions, "l2i predict RUN NEW_DATA")
    folder, rest = positional(arguments, "predict", "RUN", "the folder of a fit", [])
    path, rest = positional(rest, f"predict {folder}", "NEW_DATA", "a file or folder", [])
    options = parsed(PredictOptions, rest, f"l2i predict {folder} {path}", PredictOptions())
    from l2i.own.labels import SUFFIXES, as_csv, written
    from l2i.own.places import checked_file
    from l2i.own.predict import predicted

    if options.out is not None:
        checked_file(options.out, SUFFIXES)
    frame = predicted(folder, path, lambda line: tell(line, 0))
    if options.out is None:
        print_exactly(as_csv(frame))
    else:
        written(options.out, frame)
        print(f"{len(frame):,} rows in {options.out}")
    return 0


def report(arguments: list[str]) -> int:
    """A page about a fit."""
    explained(arguments, ReportOptions, "l2i report RUN")
    folder, rest = positional(arguments, "report", "RUN", "the folder of a fit", [])
    options = parsed(ReportOptions, rest, f"l2i report {folder}", ReportOptions())
    from l2i.report import write_report

    print(write_report(folder, options.out))
    return 0


def export(arguments: list[str]) -> int:
    """A model file."""
    if any(word in ("-h", "--help") for word in arguments):
        print(
            "usage: l2i export RUN FILE\n\n"
            "The model of a fit with its preprocessing, as ONNX (FILE.onnx) or torch.export (FILE.pt2)."
        )
        return 0
    folder, rest = positional(arguments, "export", "RUN", "the folder of a fit", [])
    out, rest = positional(rest, f"export {folder}", "FILE", "a file to write, .onnx or .pt2", ["model.onnx"])
    if rest:
        raise InputError(f"'l2i export' takes a folder and a file, and was given '{rest[0]}' as well; leave it out")
    from l2i.own.export import export as write_model

    print(f"{write_model(folder, out)}: the same as the model's own outputs, checked")
    return 0
