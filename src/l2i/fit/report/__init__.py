"""The report as one HTML file, from a fit folder."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

from l2i.errors import DamagedFile
from l2i.files.output import check_output_file, translate_write_errors, write_atomic, write_output
from l2i.fit.artifact import (
    REPORT_FILE,
    Candidate,
    FitArtifact,
    FitRows,
    check_files,
    list_data_paths,
    read_fit,
)
from l2i.fit.formatting import MISSING_MARK, bind_units, format_metric, pluralize
from l2i.fit.impute import impute
from l2i.fit.report.caveats import find_caveats
from l2i.fit.report.charts import MetricBar, Svg, build_curves_section, draw_bars, make_breakable
from l2i.fit.report.comparison import (
    Estimate,
    describe_heldout,
    estimate_metrics,
    is_metric_comparable,
    mask_known_labels,
)
from l2i.fit.report.confidence import (
    MAX_SCATTER_TARGETS,
    build_calibration_section,
    build_confidence_section,
    build_confusion_section,
    draw_scatters,
    make_cards,
)
from l2i.fit.report.grids import build_grids
from l2i.fit.report.lead import build_lead
from l2i.fit.report.verdict import build_verdict, compute_balanced_error
from l2i.training.run_dir import read_result

SPLIT_CAPTIONS = {
    "labeled": "labelled training rows",
    "unlabeled": "unlabelled rows",
    "validation": "validation rows",
    "test": "test rows",
}
ALWAYS_SHOWN_SPLITS = ("labeled", "unlabeled")
TEMPLATE_DIR = Path(__file__).parent
HTML_SUFFIXES = (".html", ".htm")
SHOWN_FILES = ("config.json", "metrics.jsonl", "result.json")  # of each candidate


def write_report(
    folder: str | Path, out: str | Path | None = None, *, overwrite: bool = False
) -> Path:
    """Write the report of a fit as `out`, or as report.html in its folder, and return its path.

    A file that `l2i` did not write is replaced only with `overwrite`.
    """
    path = Path(folder)
    fitted, rows = read_fit(path)
    own_report = path / REPORT_FILE
    if out is None or Path(out).resolve() == own_report.resolve():
        with translate_write_errors(own_report):
            write_atomic(own_report, _encode_report(path, fitted, rows))
        return own_report
    data = list_data_paths(path, fitted)
    target = check_output_file(out, HTML_SUFFIXES, data=data, overwrite=overwrite)
    write_output(target, _encode_report(path, fitted, rows), out)
    return Path(out)


def _encode_report(folder: Path, fitted: FitArtifact, rows: FitRows) -> bytes:
    return _render_report(folder, fitted, rows).encode("utf-8", "replace")


def _render_report(folder: Path, fitted: FitArtifact, rows: FitRows) -> str:
    """Render the page; Jinja and `render_tag` escape everything that comes from the data."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(TEMPLATE_DIR),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tied": bind_units, "breakable": make_breakable}
    style = Svg((TEMPLATE_DIR / "style.css").read_text(encoding="utf-8"))
    context = _build_context(folder, fitted, rows)
    return environment.get_template("template.html").render(style=style, **context)


def _build_context(folder: Path, fitted: FitArtifact, rows: FitRows) -> dict[str, Any]:
    """Return what the template shows, one name per section."""
    names = (f"{c.name}/{file}" for c in fitted.candidates for file in SHOWN_FILES)
    check_files(folder, fitted, (name for name in names if name in fitted.files))
    imputations, run_dir = impute(fitted, rows), folder / fitted.selected_name
    most_confident, least_confident = make_cards(fitted, rows, imputations)
    counts = {split: int((rows.split_names == split).sum()) for split in SPLIT_CAPTIONS}
    return {
        "fitted": fitted,
        "title": Path(str(fitted.source.get("path") or folder)).name or "data",
        "facts": [
            (f"{counts[split]:,}", caption)
            for split, caption in SPLIT_CAPTIONS.items()
            if counts[split] or split in ALWAYS_SHOWN_SPLITS or fitted.model is None
        ],
        "lead": build_lead(fitted, rows, imputations),
        "verdict": build_verdict(fitted, rows),
        "heldout": describe_heldout(fitted),
        "confused": "labelled rows, out of fold" if fitted.num_folds else "validation rows",
        "metrics": _build_metrics(fitted, rows),
        "curves": build_curves_section(folder, fitted),
        "calibration": build_calibration_section(fitted, rows),
        "confusion": build_confusion_section(fitted, rows) if fitted.classes is not None else None,
        "scatters": draw_scatters(fitted, rows) if fitted.classes is None else [],
        "unshown": max(0, len(fitted.targets) - MAX_SCATTER_TARGETS),
        "confidence": build_confidence_section(fitted, rows, imputations),
        "grids": build_grids(fitted, rows, imputations),
        "most": most_confident,
        "least": least_confident,
        "cautions": find_caveats(fitted, rows, imputations),
        "source": _describe_source(fitted),
        "config": _read_config_text(run_dir / "config.json"),
        "result": read_result(run_dir),
        "run": shlex.quote(str(folder)),
    }


def _build_metrics(fitted: FitArtifact, rows: FitRows) -> dict[str, Any]:
    """Return a table and charts of the stored metrics, with standard errors from the rows."""
    estimates = {split: _estimate_stored(fitted, rows, split) for split in ("validation", "test")}
    has_test = any(c.test_metric is not None for c in fitted.candidates)
    header = ["Validation", "Test", "Steps", "Seconds"]
    has_loss = bool(fitted.num_folds) and fitted.classes is not None
    if fitted.model is not None:
        header = ["Cross-validation", *(["Mean over classes", "Loss"] if has_loss else [])]
        header += [*(["Test"] if has_test else []), "Seconds"]
    num_rows = int(mask_known_labels(fitted, rows, "validation").sum())
    table = []
    for c in fitted.candidates:
        cells = [
            _format_with_error(getattr(c, f"{split}_metric"), by_name.get(c.name), fitted)
            for split, by_name in estimates.items()
        ]
        if fitted.model is None:
            cells += [f"{c.steps:,}", f"{c.seconds:,.0f}"]
        else:
            more = _format_class_metrics(c, fitted, rows) if has_loss else []
            cells = [cells[0], *more, *(cells[1:] if has_test else []), f"{c.seconds:,.1f}"]
        table.append({"name": c.name, "title": c.title, "cells": cells})
    charts = []
    for split in ("test", "validation"):
        bars = _make_bars(fitted, split, estimates[split])
        if bars:
            name = (
                "Cross-validation" if fitted.num_folds and split != "test" else split.capitalize()
            )
            charts.append(draw_bars(f"{name} {fitted.metric_name}", bars))
    return {
        "header": header,
        "table": table,
        "charts": charts,
        "errors": any(estimates.values()),
        "num_rows": pluralize(num_rows, "row"),
    }


def _format_class_metrics(candidate: Candidate, fitted: FitArtifact, rows: FitRows) -> list[str]:
    """Format the mean error over classes, and the loss by which candidates are compared."""
    balanced = compute_balanced_error(fitted, rows, candidate.name)
    return [format_metric(balanced, fitted.metric_name), f"{candidate.validation_cost:.3f}"]


def _estimate_stored(fitted: FitArtifact, rows: FitRows, split: str) -> dict[str, Estimate]:
    """Estimate the stored metrics; older fits store RMSEs of several targets in other units."""
    estimates = estimate_metrics(fitted, rows, split) if is_metric_comparable(fitted) else {}
    stored = {c.name: getattr(c, f"{split}_metric") or 0.0 for c in fitted.candidates}
    return {n: e for n, e in estimates.items() if math.isclose(e.value, stored[n], rel_tol=0.02)}


def _make_bars(fitted: FitArtifact, split: str, estimates: dict[str, Estimate]) -> list[MetricBar]:
    bars = []
    for c in fitted.candidates:
        value, estimate = getattr(c, f"{split}_metric"), estimates.get(c.name)
        if value is not None and math.isfinite(value):
            text = format_metric(value, fitted.metric_name)
            text = text if value else f"{text} {_count_wrong(estimate, fitted)}".strip()
            error = estimate.standard_error if estimate else None
            bars.append(MetricBar(c.title, _choose_bar_style(c, fitted), value, error, text))
    return bars


def _choose_bar_style(candidate: Candidate, fitted: FitArtifact) -> str:
    """Return a network's own colour; of a table's models, only the selected one stands out."""
    if fitted.model is None:
        return candidate.name
    return "l2i" if candidate.name == fitted.selected_name else "supervised"


def _format_with_error(value: float | None, estimate: Estimate | None, fitted: FitArtifact) -> str:
    text = format_metric(value, fitted.metric_name)
    if text == MISSING_MARK or estimate is None:
        return text
    error = format_metric(estimate.standard_error, fitted.metric_name, 2)
    return f"{text} {_count_wrong(estimate, fitted) or f'± {error}'}"


def _count_wrong(estimate: Estimate | None, fitted: FitArtifact) -> str:
    """Count the wrong rows if none or all are: their std is 0 and not informative."""
    if estimate is None or fitted.classes is None or 0 < estimate.value < 100:
        return ""
    return f"({estimate.num_rows if estimate.value else 0:,} of {estimate.num_rows:,} wrong)"


def _describe_source(fitted: FitArtifact) -> list[tuple[str, str]]:
    """Return the options of the source that are set, as text."""
    options = []
    for name, value in fitted.source.items():
        if value is not None and value is not False and value not in ("", [], (), {}):
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False, default=str)
            options.append((str(name), text))
    return options


def _read_config_text(path: Path) -> str | None:
    """Return the configuration of a run, indented, if it exists."""
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return json.dumps(config, indent=2, ensure_ascii=False)
    except (OSError, ValueError, RecursionError):
        raise DamagedFile(f"{path} is damaged; restore it") from None
