"""The commands for a person's own data: fit, impute, predict, report and export."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from l2i.cli.parsing import (
    handle_help_flag,
    parse_known_options,
    parse_options,
    pop_positional,
    print_stderr,
    print_utf8,
)
from l2i.errors import InputError
from l2i.fit.options import FitOptions, ImputeOptions, PredictOptions, ReportOptions

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.fit.artifact import FitArtifact, FitRows

REPLACED_FIELDS = {  # fields of a run that other options of `fit` stand for
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
    handle_help_flag(arguments, FitOptions, "l2i fit PATH")
    path, rest = pop_positional(arguments, "fit", "PATH", "a file or folder", [])
    prog = f"l2i fit {path}"
    options, run_flags = parse_known_options(FitOptions, rest, prog, FitOptions())
    from l2i.files.output import check_outside_data
    from l2i.fit.pipeline import fit as fit_data
    from l2i.fit.predict import resolve_fit_dir

    check_outside_data(resolve_fit_dir(path, options), Path(path))
    folder, fitted, rows = fit_data(path, options, partial(override_run, run_flags, prog), lambda line: print_stderr(line, 0))
    print_summary(fitted, rows)
    print(f"in {folder}; next: l2i impute {folder} --out labels.csv, l2i report {folder}")
    return 0


def override_run(run_flags: list[str], prog: str, run: Run) -> Run:
    """The run with the fields that arguments override."""
    from l2i.config import Run

    try:
        updated_run = parse_options(Run, run_flags, prog, run)
    except InputError as error:
        raise InputError(f"{error}{suggest_flag(run_flags)}") from None
    flag_names = {flag.partition("=")[0].removeprefix("--").replace("-", "_") for flag in run_flags}
    wrong_name = next((name for name in REPLACED_FIELDS if name in flag_names), None)
    if wrong_name is not None:
        raise InputError(f"--{wrong_name.replace('_', '-')} is not for your own data; use {REPLACED_FIELDS[wrong_name]}")
    return updated_run


def print_summary(fitted: FitArtifact, rows: FitRows) -> None:
    """Print the candidates as a table, and the verdict."""
    from l2i.fit.pipeline import summary_rows
    from l2i.fit.report.comparison import build_verdict

    table = [["", f"validation {fitted.metric_name}", f"test {fitted.metric_name}", "seconds", ""], *summary_rows(fitted)]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:-1], widths[1:-1], strict=True))]
        print("  ".join([*cells, row[-1]]).rstrip())
    outcome = build_verdict(fitted, rows)
    print(*outcome.sentences, outcome.selection, sep="\n")


def suggest_flag(run_flags: list[str]) -> str:
    """A hint where an argument is almost one of `fit`'s own, which a run does not know of."""
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(FitOptions)]
    suggestions = [flag for word in run_flags if word.startswith("--") for flag in get_close_matches(word, flags, 1, 0.8)]
    return f"; perhaps you meant {suggestions[0]}" if suggestions else ""


def impute(arguments: list[str]) -> int:
    """The labels of a fit's rows."""
    handle_help_flag(arguments, ImputeOptions, "l2i impute RUN")
    folder, rest = pop_positional(arguments, "impute", "RUN", "the folder of a fit", [])
    options = parse_options(ImputeOptions, rest, f"l2i impute {folder}", ImputeOptions())
    from l2i.files.output import check_output_file
    from l2i.fit.artifact import read_fit
    from l2i.fit.impute import TABLE_SUFFIXES, make_imputed_frame, write_table
    from l2i.fit.impute import impute as impute_rows

    check_output_file(options.out, TABLE_SUFFIXES)
    fitted, rows = read_fit(folder)
    imputations = impute_rows(fitted, rows, options.threshold)
    write_table(options.out, make_imputed_frame(fitted, rows, imputations))
    count = int(imputations.is_imputed.sum())
    print(f"{len(rows.ids):,} rows in {options.out}: {count:,} imputed, {int(imputations.abstain.sum()):,} of them abstained")
    return 0


def predict(arguments: list[str]) -> int:
    """Labels of new rows."""
    handle_help_flag(arguments, PredictOptions, "l2i predict RUN NEW_DATA")
    folder, rest = pop_positional(arguments, "predict", "RUN", "the folder of a fit", [])
    path, rest = pop_positional(rest, f"predict {folder}", "NEW_DATA", "a file or folder", [])
    options = parse_options(PredictOptions, rest, f"l2i predict {folder} {path}", PredictOptions())
    from l2i.files.output import check_output_file
    from l2i.fit.impute import TABLE_SUFFIXES, to_csv, write_table
    from l2i.fit.predict import predict_table

    if options.out is not None:
        check_output_file(options.out, TABLE_SUFFIXES)
    frame = predict_table(folder, path, lambda line: print_stderr(line, 0))
    if options.out is None:
        print_utf8(to_csv(frame))
    else:
        write_table(options.out, frame)
        print(f"{len(frame):,} rows in {options.out}")
    return 0


def report(arguments: list[str]) -> int:
    """A page about a fit."""
    handle_help_flag(arguments, ReportOptions, "l2i report RUN")
    folder, rest = pop_positional(arguments, "report", "RUN", "the folder of a fit", [])
    options = parse_options(ReportOptions, rest, f"l2i report {folder}", ReportOptions())
    from l2i.fit.report.page import write_report

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
    folder, rest = pop_positional(arguments, "export", "RUN", "the folder of a fit", [])
    out, rest = pop_positional(rest, f"export {folder}", "FILE", "a file to write, .onnx or .pt2", ["model.onnx"])
    if rest:
        raise InputError(f"'l2i export' takes a folder and a file, and was given '{rest[0]}' as well; leave it out")
    from l2i.fit.export import export as write_model

    print(f"{write_model(folder, out)}: the same as the model's own outputs, checked")
    return 0
