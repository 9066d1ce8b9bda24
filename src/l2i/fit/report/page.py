"""The report as one HTML file, from a fit folder."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

from l2i.errors import InputError
from l2i.files.atomic import write_atomic
from l2i.files.output import check_output_file, translate_write_errors
from l2i.fit.artifact import FitArtifact, FitRows, read_fit
from l2i.fit.impute import impute
from l2i.fit.report.caveats import find_caveats
from l2i.fit.report.charts import Chart, MetricBar, Svg, build_curves_section, draw_bars, make_breakable
from l2i.fit.report.comparison import Estimate, build_verdict, estimate_metrics, is_metric_comparable
from l2i.fit.report.confidence import (
    MAX_SCATTER_TARGETS,
    build_calibration_section,
    build_confidence_section,
    build_confusion_section,
    draw_scatters,
    make_cards,
)
from l2i.fit.report.formatting import MISSING_MARK, bind_units, format_metric
from l2i.training.run_dir import read_result

SPLIT_CAPTIONS = {
    "labeled": "labelled rows trained on",
    "unlabeled": "unlabelled rows",
    "validation": "validation rows",
    "test": "test rows",
}
TEMPLATE_DIR = Path(__file__).parent
HTML_SUFFIXES = (".html", ".htm")


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the fit in `folder`, as report.html there or as `out`, and return where it is."""
    path = Path(folder)
    target = path / "report.html" if out is None else check_output_file(out, HTML_SUFFIXES)
    page = render_report(path, *read_fit(path))
    with translate_write_errors(target):
        write_atomic(target, page.encode("utf-8", "replace"))
    return target


def render_report(folder: Path, fitted: FitArtifact, rows: FitRows) -> str:
    """The page; everything from the data is escaped, by Jinja in the template and by `svg.tag` in charts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(TEMPLATE_DIR)
    environment = Environment(autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"tied": bind_units, "breakable": make_breakable}
    style = Svg((TEMPLATE_DIR / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("template.html").render(style=style, **build_context(folder, fitted, rows))


def build_context(folder: Path, fitted: FitArtifact, rows: FitRows) -> dict[str, Any]:
    """What the template shows, a section a name."""
    imputations = impute(fitted, rows)
    most_confident, least_confident = make_cards(fitted, rows, imputations)
    return {
        "fitted": fitted,
        "title": Path(str(fitted.source.get("path") or folder)).name or "own data",
        "facts": _count_split_rows(fitted, rows),
        "verdict": build_verdict(fitted, rows),
        "figures": _build_metrics(fitted, rows),
        "curves": build_curves_section(folder, fitted),
        "calibration": build_calibration_section(fitted, rows),
        "confusion": build_confusion_section(fitted, rows) if fitted.classes is not None else None,
        "scatters": draw_scatters(fitted, rows) if fitted.classes is None else [],
        "unshown": max(0, len(fitted.targets) - MAX_SCATTER_TARGETS),
        "sureness": build_confidence_section(fitted, rows, imputations),
        "most": most_confident,
        "least": least_confident,
        "cautions": find_caveats(fitted, rows, imputations),
        "source": [(str(name), _to_text(value)) for name, value in fitted.source.items() if _is_informative(value)],
        "config": _read_config_text(folder / fitted.selected_name / "config.json"),
        "result": read_result(folder / fitted.selected_name),
        "run": shlex.quote(str(folder)),
    }


def _count_split_rows(fitted: FitArtifact, rows: FitRows) -> list[tuple[str, str]]:
    """How many rows there are of each part."""
    counts = {name: int((rows.split_names == split).sum()) for split, name in SPLIT_CAPTIONS.items()}
    return [(f"{count:,}", name) for name, count in counts.items()]


def _build_metrics(fitted: FitArtifact, rows: FitRows) -> dict[str, Any]:
    """A table of what is stored of the candidates, and charts with the standard errors that the rows give."""
    estimates = {split: _estimate_stored(fitted, rows, split) for split in ("validation", "test")}
    table = [
        {
            "name": c.name,
            "title": c.title,
            "cells": [_format_with_error(value, estimates[split].get(c.name), fitted) for split, value in _stored_metrics(c).items()],
            "steps": f"{c.steps:,}",
            "seconds": f"{c.seconds:,.0f}",
        }
        for c in fitted.candidates
    ]
    charts = [chart for split in ("test", "validation") if (chart := _draw_metric_bars(fitted, split, estimates[split])) is not None]
    return {"table": table, "charts": charts, "errors": any(estimates.values())}


def _estimate_stored(fitted: FitArtifact, rows: FitRows, split: str) -> dict[str, Estimate]:
    """What the rows give, where it is the stored figure: older fits have RMSEs of several targets in other units."""
    estimates = estimate_metrics(fitted, rows, split) if is_metric_comparable(fitted) else {}
    stored_values = {c.name: _stored_metrics(c)[split] for c in fitted.candidates}
    return {name: estimate for name, estimate in estimates.items() if math.isclose(estimate.value, stored_values[name] or 0.0, rel_tol=0.02)}


def _stored_metrics(candidate: Any) -> dict[str, float | None]:
    return {"validation": candidate.validation_metric, "test": candidate.test_metric}


def _format_with_error(value: float | None, estimate: Estimate | None, fitted: FitArtifact) -> str:
    text = format_metric(value, fitted.metric_name)
    if text == MISSING_MARK or estimate is None:
        return text
    return f"{text} {_format_wrong_count(estimate, fitted) or f'± {format_metric(estimate.standard_error, fitted.metric_name, 2)}'}"


def _format_wrong_count(estimate: Estimate | None, fitted: FitArtifact) -> str:
    """How many rows are wrong where none or all are: their spread is 0, and says nothing on the figure's error."""
    if estimate is None or fitted.classes is None or 0 < estimate.value < 100:
        return ""
    return f"({estimate.num_rows if estimate.value else 0:,} of {estimate.num_rows:,} wrong)"


def _draw_metric_bars(fitted: FitArtifact, split: str, estimates: dict[str, Estimate]) -> Chart | None:
    """The candidates side by side on the rows of a part."""
    candidate_values = [(c, _stored_metrics(c)[split], estimates.get(c.name)) for c in fitted.candidates]
    metric_bars = [
        MetricBar(c.title, c.name, value, estimate.standard_error if estimate else None, _format_bar_text(value, estimate, fitted))
        for c, value, estimate in candidate_values
        if value is not None and math.isfinite(value)
    ]
    return draw_bars(f"{split.capitalize()} rows", metric_bars, fitted.metric_name) if metric_bars else None


def _format_bar_text(value: float, estimate: Estimate | None, fitted: FitArtifact) -> str:
    text = format_metric(value, fitted.metric_name)
    return text if value else f"{text} {_format_wrong_count(estimate, fitted)}".strip()


def _is_informative(value: Any) -> bool:
    """Whether an option says anything: not where it is off, or left at nothing."""
    return value is not None and value is not False and value not in ("", [], (), {})


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _read_config_text(path: Path) -> str | None:
    """The configuration of a run, indented; None where it is not kept."""
    if not path.is_file():
        return None
    try:
        return json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2, ensure_ascii=False)
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{path} is damaged; restore it") from None
