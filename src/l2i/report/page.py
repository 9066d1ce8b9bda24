"""The report as one HTML file, from a fit folder."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

from l2i.errors import InputError
from l2i.own.fitted import Fitted, Rows, read_fit
from l2i.own.imputed import impute
from l2i.own.places import checked_file, writing
from l2i.report.calibration import calibration
from l2i.report.cautions import cautions
from l2i.report.charts import Bar, Chart, bars
from l2i.report.confusion import TARGETS, confusion, scatters
from l2i.report.curves import curves
from l2i.report.paired import Estimate, comparable, figures
from l2i.report.sureness import cards, sureness
from l2i.report.svg import Svg, breakable
from l2i.report.verdict import verdict
from l2i.report.words import NONE, tied, told
from l2i.training.checkpoint import write_whole
from l2i.training.folder import read_result

PARTS = {
    "labeled": "labelled rows trained on",
    "unlabeled": "unlabelled rows",
    "validation": "validation rows",
    "test": "test rows",
}
HERE = Path(__file__).parent
SUFFIXES = (".html", ".htm")


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the fit in `folder`, as report.html there or as `out`, and return where it is."""
    path = Path(folder)
    target = path / "report.html" if out is None else checked_file(out, SUFFIXES)
    page = rendered(path, *read_fit(path))
    with writing(target):
        write_whole(target, page.encode("utf-8", "replace"))
    return target


def rendered(folder: Path, fitted: Fitted, rows: Rows) -> str:
    """The page; everything from the data is escaped, by Jinja in the template and by `svg.tag` in charts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(HERE)
    made = Environment(autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"tied": tied, "breakable": breakable}
    style = Svg((HERE / "style.css").read_text(encoding="utf-8"))
    return made.get_template("template.html").render(style=style, **context(folder, fitted, rows))


def context(folder: Path, fitted: Fitted, rows: Rows) -> dict[str, Any]:
    """What the template shows, a section a name."""
    imputed = impute(fitted, rows)
    most, least = cards(fitted, rows, imputed)
    return {
        "fitted": fitted,
        "title": Path(str(fitted.source.get("path") or folder)).name or "own data",
        "facts": _facts(fitted, rows),
        "verdict": verdict(fitted, rows),
        "figures": _figures(fitted, rows),
        "curves": curves(folder, fitted),
        "calibration": calibration(fitted, rows),
        "confusion": confusion(fitted, rows) if fitted.classes is not None else None,
        "scatters": scatters(fitted, rows) if fitted.classes is None else [],
        "unshown": max(0, len(fitted.targets) - TARGETS),
        "sureness": sureness(fitted, rows, imputed),
        "most": most,
        "least": least,
        "cautions": cautions(fitted, rows, imputed),
        "source": [(str(name), _plain(value)) for name, value in fitted.source.items() if _told(value)],
        "config": _config(folder / fitted.chosen / "config.json"),
        "result": read_result(folder / fitted.chosen),
        "run": shlex.quote(str(folder)),
    }


def _facts(fitted: Fitted, rows: Rows) -> list[tuple[str, str]]:
    """How many rows there are of each part."""
    counts = {name: int((rows.parts == part).sum()) for part, name in PARTS.items()}
    return [(f"{count:,}", name) for name, count in counts.items()]


def _figures(fitted: Fitted, rows: Rows) -> dict[str, Any]:
    """A table of what is stored of the candidates, and charts with the standard errors that the rows give."""
    errors = {part: _errors(fitted, rows, part) for part in ("validation", "test")}
    table = [
        {
            "name": c.name,
            "title": c.title,
            "cells": [_with_error(v, errors[p].get(c.name), fitted) for p, v in _stored(c).items()],
            "steps": f"{c.steps:,}",
            "seconds": f"{c.seconds:,.0f}",
        }
        for c in fitted.candidates
    ]
    charts = [chart for part in ("test", "validation") if (chart := _bars(fitted, part, errors[part])) is not None]
    return {"table": table, "charts": charts, "errors": any(errors.values())}


def _errors(fitted: Fitted, rows: Rows, part: str) -> dict[str, Estimate]:
    """What the rows give, where it is the stored figure: older fits have RMSEs of several targets in other units."""
    found = figures(fitted, rows, part) if comparable(fitted) else {}
    stored = {c.name: _stored(c)[part] for c in fitted.candidates}
    return {name: e for name, e in found.items() if math.isclose(e.value, stored[name] or 0.0, rel_tol=0.02)}


def _stored(candidate: Any) -> dict[str, float | None]:
    return {"validation": candidate.validation, "test": candidate.test}


def _with_error(value: float | None, estimate: Estimate | None, fitted: Fitted) -> str:
    text = told(value, fitted.figure_name)
    if text == NONE or estimate is None:
        return text
    return f"{text} {_counted(estimate, fitted) or f'± {told(estimate.error, fitted.figure_name, 2)}'}"


def _counted(estimate: Estimate | None, fitted: Fitted) -> str:
    """How many rows are wrong where none or all are: their spread is 0, and says nothing on the figure's error."""
    if estimate is None or fitted.classes is None or 0 < estimate.value < 100:
        return ""
    return f"({estimate.rows if estimate.value else 0:,} of {estimate.rows:,} wrong)"


def _bars(fitted: Fitted, part: str, errors: dict[str, Estimate]) -> Chart | None:
    """The candidates side by side on the rows of a part."""
    found = [(c, _stored(c)[part], errors.get(c.name)) for c in fitted.candidates]
    made = [
        Bar(c.title, c.name, value, error.error if error else None, _bar_text(value, error, fitted))
        for c, value, error in found
        if value is not None and math.isfinite(value)
    ]
    return bars(f"{part.capitalize()} rows", made, fitted.figure_name) if made else None


def _bar_text(value: float, error: Estimate | None, fitted: Fitted) -> str:
    text = told(value, fitted.figure_name)
    return text if value else f"{text} {_counted(error, fitted)}".strip()


def _told(value: Any) -> bool:
    """Whether an option says anything: not where it is off, or left at nothing."""
    return value is not None and value is not False and value not in ("", [], (), {})


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _config(path: Path) -> str | None:
    """The configuration of a run, indented; None where it is not kept."""
    if not path.is_file():
        return None
    try:
        return json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2, ensure_ascii=False)
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{path} is damaged; restore it") from None
