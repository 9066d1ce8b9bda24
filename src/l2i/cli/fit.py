"""The commands for a user's own data: fit, impute, predict, report and export."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2i.cli import parsing
from l2i.errors import InputError
from l2i.files.terminal import print_lines
from l2i.fit.options import (
    ExportOptions,
    FitOptions,
    ImputeOptions,
    PredictOptions,
    ReportOptions,
    RunFlags,
)

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.fit.artifact import FitArtifact, FitRows

FIT_FOLDER = parsing.Positional("RUN", "a fit folder")
EXPORTED_FILE = parsing.Positional("FILE", "a file to write, such as model.onnx or model.pt2")
DATA_PATH = parsing.Positional("PATH", "a file or folder")
NEW_DATA = parsing.Positional("NEW_DATA", "a file or folder")
REPLACED_FIELDS = {  # fields of a run, and the options of `fit` to use instead
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
    parsing.handle_help_flag(arguments, FitOptions, "l2i fit PATH")
    path, rest = parsing.pop_positional(arguments, "l2i fit", DATA_PATH)
    prog = f"l2i fit {path}"
    options, run_flags = parsing.parse_known_options(FitOptions, rest, prog)
    from l2i.fit.pipeline import fit as fit_data

    make_override = partial(_parse_overrides, run_flags, prog)
    run_fields = {name.split(".")[0] for name in _list_flag_names(run_flags)}
    folder, fitted, rows = fit_data(
        path, options, make_override, parsing.print_stderr, run_fields=run_fields
    )
    _print_summary(fitted, rows)
    _print_next_commands(folder)
    return 0


def _parse_overrides(run_flags: list[str], prog: str, default_run: Run) -> RunFlags:
    """Parse the flags of a run once; return what sets the fields they name."""
    from l2i.config import Run
    from l2i.config.validate import flatten_fields

    try:
        values = dict(flatten_fields(parsing.parse_options(Run, run_flags, prog, default_run)))
    except InputError as error:
        raise InputError(f"{error}{parsing.suggest_flag(FitOptions, run_flags)}") from None
    changes: dict[str, Any] = {}
    for name in _list_flag_names(run_flags):
        if name in REPLACED_FIELDS:
            problem = f"--{name.replace('_', '-')} does not apply to 'l2i fit'"
            raise InputError(f"{problem}; use {REPLACED_FIELDS[name]}")
        *sections, field = name.split(".")
        if name not in values:  # as --data.weak.no-flip
            field = field.removeprefix("no_")
        section = changes
        for section_name in sections:
            section = section.setdefault(section_name, {})
        section[field] = values[".".join([*sections, field])]
    return RunFlags(changes)


def _list_flag_names(words: list[str]) -> list[str]:
    """Return the fields that flags set, as in data.weak.noise."""
    flags = (word for word in words if word.startswith("--"))
    return [flag.partition("=")[0].removeprefix("--").replace("-", "_") for flag in flags]


def _print_summary(fitted: FitArtifact, rows: FitRows) -> None:
    """Print the metrics of the candidates, the verdict, and what to know of the labels."""
    from l2i.fit.formatting import align_columns
    from l2i.fit.impute import impute as impute_rows
    from l2i.fit.report.lead import build_lead
    from l2i.fit.report.verdict import build_verdict

    split = "cross-validation" if fitted.num_folds else "validation"
    has_test = not fitted.model or any(c.test_metric is not None for c in fitted.candidates)
    has_loss = bool(fitted.num_folds) and fitted.classes is not None
    titles = ["loss"] * has_loss + [f"test {fitted.metric_name}"] * has_test
    table = [["", f"{split} {fitted.metric_name}", *titles, "seconds", ""]]
    for c in fitted.candidates:
        loss = [f"{c.validation_cost:.3f}"] * has_loss
        test = [_format_value(c.test_metric)] * has_test
        marker = "selected" if c.name == fitted.selected_name else ""
        values = [_format_value(c.validation_metric), *loss, *test, f"{c.seconds:.1f}", marker]
        table.append([c.title, *values])
    verdict, imputations = build_verdict(fitted, rows), impute_rows(fitted, rows)
    sentences = [f"{sentence.claim}:\n  {sentence.facts}" for sentence in verdict.sentences]
    lines = align_columns(table, alignment="<" + ">" * (2 + has_loss + has_test) + "<")
    lead = build_lead(fitted, rows, imputations)
    selection = [verdict.selection] if verdict.selection else []
    print_lines(*lines, "", *sentences, *selection, "", *lead)
    _print_warnings(fitted, rows)


def _print_warnings(fitted: FitArtifact, rows: FitRows) -> None:
    """Print what the report warns of, so that nobody who skips the report misses it."""
    from l2i.fit.impute import impute as impute_rows
    from l2i.fit.report.caveats import find_caveats

    for finding, advice in find_caveats(fitted, rows, impute_rows(fitted, rows)):
        parsing.print_stderr(f"warning: {finding} {advice}")


def _format_value(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.2f}" if value == 0 or 0.01 <= abs(value) < 1e4 else f"{value:.4g}"


def _print_next_commands(folder: Path) -> None:
    quoted = shlex.quote(str(folder))
    commands = (
        f"report {quoted}",
        f"impute {quoted} --out labels.csv",
        f"predict {quoted} NEW_DATA",
    )
    print_lines(f"\nSaved in {folder}. Next:", *(f"  l2i {command}" for command in commands))


@parsing.command(ImputeOptions, FIT_FOLDER)
def impute(folder: str, options: ImputeOptions) -> None:
    """Write the labels of all rows, given and imputed."""
    from l2i.files.output import check_output_file
    from l2i.fit import label_file
    from l2i.fit.artifact import list_data_paths, read_fit
    from l2i.fit.impute import impute as impute_rows
    from l2i.fit.impute import make_imputed_frame
    from l2i.fit.report.verdict import find_doubt

    fitted, rows = read_fit(folder)
    data = list_data_paths(Path(folder), fitted)
    suffixes, overwrite = label_file.LABEL_FILE_SUFFIXES, options.overwrite
    path = check_output_file(options.out, suffixes, data=data, overwrite=overwrite)
    label_file.check_escape_formulas(Path(options.out), options.escape_formulas)
    imputations = impute_rows(fitted, rows, options.threshold)
    if find_doubt(fitted, rows) is not None:  # no label is to be used
        imputations = imputations._replace(abstain=imputations.is_imputed)
    label_file.write_label_file(
        path,
        make_imputed_frame(fitted, rows, imputations),
        parsing.print_stderr,
        escape_formulas=options.escape_formulas,
        shown=options.out,
    )
    imputed, abstained = imputations.is_imputed.sum(), imputations.abstain.sum()
    counts = f"{len(rows.ids) - imputed:,} given, {imputed:,} imputed ({abstained:,} abstain)"
    print_lines(f"wrote {len(rows.ids):,} labels to {options.out}: {counts}")
    _print_warnings(fitted, rows)


@parsing.command(PredictOptions, FIT_FOLDER, NEW_DATA)
def predict(folder: str, path: str, options: PredictOptions) -> None:
    """Predict the labels of new rows."""
    from l2i.files.output import check_output_file
    from l2i.files.terminal import print_utf8
    from l2i.fit import label_file
    from l2i.fit.artifact import list_data_paths, read_fit
    from l2i.fit.predict import predict_table
    from l2i.fit.report.verdict import find_doubt

    escape, out = options.escape_formulas, None
    fitted, rows = read_fit(folder)
    doubt = find_doubt(fitted, rows)
    if doubt is not None:
        parsing.print_stderr(f"warning: {doubt}. Do not use these predictions; label more rows.")
    if options.out is not None:
        data = [Path(path).expanduser(), *list_data_paths(Path(folder), fitted)]
        suffixes, overwrite = label_file.LABEL_FILE_SUFFIXES, options.overwrite
        out = check_output_file(options.out, suffixes, data=data, overwrite=overwrite)
        label_file.check_escape_formulas(Path(options.out), escape)
    frame = predict_table(folder, fitted, path, parsing.print_stderr)
    if out is None:
        print_utf8(label_file.to_csv(frame, parsing.print_stderr, escape_formulas=escape))
    else:
        label_file.write_label_file(
            out, frame, parsing.print_stderr, escape_formulas=escape, shown=options.out
        )
        print_lines(f"wrote {len(frame):,} predictions to {options.out}")


@parsing.command(ReportOptions, FIT_FOLDER)
def report(folder: str, options: ReportOptions) -> None:
    """Write an HTML report of a fit."""
    from l2i.fit.report import write_report

    print_lines(write_report(folder, options.out, overwrite=options.overwrite))


@parsing.command(ExportOptions, FIT_FOLDER, EXPORTED_FILE)
def export(folder: str, out: str, options: ExportOptions) -> None:
    """Export the model of a fit to a file."""
    from l2i.fit.export import export as write_model

    path = write_model(folder, out, overwrite=options.overwrite)
    print_lines(f"wrote {path}; its outputs match the model's")
