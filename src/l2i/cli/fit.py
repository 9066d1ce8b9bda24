"""The commands for a user's own data: fit, impute, predict, report and export."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2i.cli.parsing import (
    handle_help_flag,
    parse_known_options,
    parse_options,
    pop_positional,
    print_stderr,
    suggest_flag,
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
    "data.text.paraphrases": "--data.words.replace",
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
    make_override = partial(_parse_overrides, run_flags, prog)
    folder, fitted, rows = fit_data(path, options, make_override, _print_note)
    _print_summary(fitted, rows)
    print(f"in {folder}; next: l2i impute {folder} --out labels.csv, l2i report {folder}")
    return 0


def _parse_overrides(run_flags: list[str], prog: str, default_run: Run) -> Callable[[Run], Run]:
    """Parse the flags of a run once; return a function that sets the fields they name."""
    from l2i.config import Run, replace
    from l2i.config.validate import flatten_fields

    try:
        values = dict(flatten_fields(parse_options(Run, run_flags, prog, default_run)))
    except InputError as error:
        raise InputError(f"{error}{suggest_flag(FitOptions, run_flags)}") from None
    changes: dict[str, Any] = {}
    for flag in (word for word in run_flags if word.startswith("--")):
        name = flag.partition("=")[0].removeprefix("--").replace("-", "_")
        if name in REPLACED_FIELDS:
            flag_name = name.replace("_", "-")
            raise InputError(f"--{flag_name} is not for your own data; use {REPLACED_FIELDS[name]}")
        *sections, field = name.split(".")
        if name not in values:  # as --data.weak.no-flip
            field = field.removeprefix("no_")
        section = changes
        for section_name in sections:
            section = section.setdefault(section_name, {})
        section[field] = values[".".join([*sections, field])]
    return lambda run: replace(run, **changes)


def _print_note(line: str) -> None:
    print_stderr(line, 0)


def _print_summary(fitted: FitArtifact, rows: FitRows) -> None:
    """Print a table of the candidates, and the verdict."""
    from l2i.fit.report.comparison import build_verdict

    def format_value(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}" if abs(value) < 1e4 else f"{value:.4g}"

    table = [["", f"validation {fitted.metric_name}", f"test {fitted.metric_name}", "seconds", ""]]
    for c in fitted.candidates:
        values = [format_value(c.validation_metric), format_value(c.test_metric)]
        marker = "chosen" if c.name == fitted.selected_name else ""
        table.append([c.title, *values, f"{c.seconds:.1f}", marker])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for title, *cells, marker in table:
        aligned = [cell.rjust(w) for cell, w in zip(cells, widths[1:-1], strict=True)]
        print("  ".join([title.ljust(widths[0]), *aligned, marker]).rstrip())
    verdict = build_verdict(fitted, rows)
    print(*verdict.sentences, verdict.selection, sep="\n")


def impute(arguments: list[str]) -> int:
    """Write the labels of a fit's rows."""
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
    imputed, abstained = imputations.is_imputed.sum(), imputations.abstain.sum()
    counts = f"{imputed:,} imputed, {abstained:,} of them abstained"
    print(f"{len(rows.ids):,} rows in {options.out}: {counts}")
    return 0


def predict(arguments: list[str]) -> int:
    """Predict the labels of new rows."""
    handle_help_flag(arguments, PredictOptions, "l2i predict RUN NEW_DATA")
    folder, rest = pop_positional(arguments, "predict", "RUN", "the folder of a fit", [])
    path, rest = pop_positional(rest, f"predict {folder}", "NEW_DATA", "a file or folder", [])
    options = parse_options(PredictOptions, rest, f"l2i predict {folder} {path}", PredictOptions())
    from l2i.files.output import check_output_file, print_utf8
    from l2i.fit.impute import TABLE_SUFFIXES, to_csv, write_table
    from l2i.fit.predict import predict_table

    if options.out is not None:
        check_output_file(options.out, TABLE_SUFFIXES)
    frame = predict_table(folder, path, _print_note)
    if options.out is None:
        print_utf8(to_csv(frame))
    else:
        write_table(options.out, frame)
        print(f"{len(frame):,} rows in {options.out}")
    return 0


def report(arguments: list[str]) -> int:
    """Write an HTML page about a fit."""
    handle_help_flag(arguments, ReportOptions, "l2i report RUN")
    folder, rest = pop_positional(arguments, "report", "RUN", "the folder of a fit", [])
    options = parse_options(ReportOptions, rest, f"l2i report {folder}", ReportOptions())
    from l2i.fit.report import write_report

    print(write_report(folder, options.out))
    return 0


def export(arguments: list[str]) -> int:
    """Write the model of a fit as one file."""
    if any(word in ("-h", "--help") for word in arguments):
        print(
            "usage: l2i export RUN FILE\n\nThe model of a fit with its preprocessing, as ONNX "
            "(FILE.onnx) or torch.export (FILE.pt2)."
        )
        return 0
    folder, rest = pop_positional(arguments, "export", "RUN", "the folder of a fit", [])
    out, rest = pop_positional(
        rest, f"export {folder}", "FILE", "a file to write, .onnx or .pt2", ["model.onnx"]
    )
    if rest:
        raise InputError(
            f"'l2i export' takes a folder and a file, and was given '{rest[0]}' as well; "
            "leave it out"
        )
    from l2i.fit.export import export as write_model

    print(f"{write_model(folder, out)}: the same as the model's own outputs, checked")
    return 0
