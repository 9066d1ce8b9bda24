"""Curves over steps, from the run folder of each candidate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from l2i.own.fitted import Candidate, Fitted
from l2i.report.charts import Chart, Line, Point, lines
from l2i.report.words import listed
from l2i.training.load import read_rows
from l2i.training.log import Row

COSTS = {"c_t": "Cᵀ, labelled rows", "c_u": "Cᵁ, unlabelled rows", "c_h": "Cᴴ, hold-out rows"}
PROBES = {"c_h": "Cᴴ", "test_cost": "Test cost"}
CHANGE = "change by an outer update, below 0 is better"


class Curves(NamedTuple):
    """The section."""

    charts: list[Chart]
    names: list[tuple[str, str]]
    """Style and title of each line, for the legend."""
    missing: str


def curves(folder: Path, fitted: Fitted) -> Curves:
    """All curves that the run folders hold."""
    there = [c for c in fitted.candidates if (folder / c.name / "metrics.jsonl").exists()]
    gone = [c.title for c in fitted.candidates if c not in there]
    runs = [(candidate, read_rows(folder / candidate.name)) for candidate in there]
    figures = {part: f"{fitted.figure_name} on {part} rows" for part in ("validation", "test")}
    plain = [_over_runs(title, column, runs) for column, title in (figures | COSTS).items()]
    probing = [c for c, rows in runs if any(row.get("c_h_before") is not None for row in rows)]
    probes = [
        _change(f"{title}{'' if len(probing) == 1 else f' of {c.title}'}: {CHANGE}", prefix, c, rows)
        for c, rows in runs
        for prefix, title in PROBES.items()
    ]
    found = [chart for chart in (*plain, *probes) if chart is not None]
    missing = f"No evaluations are kept of {listed(gone)}." if gone else ""
    return Curves(found, [(c.name, c.title) for c in there], missing)


def points_of(rows: list[Row], column: str) -> list[Point]:
    """The values of a column that are there, by step."""
    pairs = [(row["step"], row.get(column)) for row in rows]
    return [(float(s), float(v)) for s, v in pairs if s is not None and v is not None and math.isfinite(v)]


def _over_runs(title: str, column: str, runs: list[tuple[Candidate, list[Row]]]) -> Chart | None:
    every = [Line(c.title, c.name, points_of(rows, column)) for c, rows in runs]
    drawn = [line for line in every if line.points]
    return lines(title, drawn) if drawn else None


def changes_of(rows: list[Row], prefix: str) -> list[Point]:
    """What an outer update adds to a cost, by step; below 0, it helped."""
    before, after = (dict(points_of(rows, f"{prefix}_{when}")) for when in ("before", "after"))
    return [(step, value - before[step]) for step, value in after.items() if step in before]


def _change(title: str, prefix: str, candidate: Candidate, rows: list[Row]) -> Chart | None:
    """A cost after an outer update less that before it."""
    points = changes_of(rows, prefix)
    note = f"{sum(value < 0 for _, value in points):,} of {len(points):,} are below 0"
    return lines(title, [Line(candidate.title, candidate.name, points)], note=note, zero=True) if points else None
