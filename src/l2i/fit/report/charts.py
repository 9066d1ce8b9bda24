"""Markup and axes, in pure functions: what comes from the data is escaped wherever it enters.

MERGED:
Charts as inline SVG; colours and strokes are the style sheet's, by class.
Curves over steps, from the run folder of each candidate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from l2i.fit.artifact import Candidate, FitArtifact
from l2i.fit.report.formatting import format_significant, join_words
from l2i.training.loading import read_metric_rows
from l2i.training.metrics import MetricRow

WIDTH, HEIGHT = 320.0, 212.0  # of a chart, in units that are pixels on a phone
LEFT, RIGHT, TOP, BOTTOM = 42.0, 10.0, 24.0, 40.0  # margins


class Svg(str):
    """Markup that is safe as it is; Jinja asks for it by this method."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def make_breakable(text: str) -> Svg:
    """Text that may be broken after the signs that join words, and so need not be broken within them."""
    return Svg(re.sub("(?<=[_/.-])(?=[^_/.-])", "<wbr>", escape(text)))


def render_tag(name: str, *children: str, **attributes: object) -> Svg:
    """An element; text and attributes are escaped, markup is not. `class_` is class, `text_anchor` text-anchor."""
    attribute_text = "".join(f' {key.rstrip("_").replace("_", "-")}="{_format_attribute(v)}"' for key, v in attributes.items())
    inner = "".join(child if isinstance(child, Svg) else escape(child) for child in children)
    return Svg(f"<{name}{attribute_text}>{inner}</{name}>")


def _format_attribute(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))


class Axis(NamedTuple):
    """Values between `low` and `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.is_log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def compute_ticks(self) -> list[float]:
        if not self.is_log:
            return compute_nice_ticks(self.low, self.high)
        powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        return [10.0**p for p in powers[:: math.ceil(len(powers) / 5)]]


def compute_nice_ticks(low: float, high: float, target_count: int = 4) -> list[float]:
    """Round values that cover the range."""
    rough = (high - low) / target_count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def make_x_axis(low: float, high: float) -> Axis:
    """A horizontal axis."""
    return Axis(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)


def make_y_axis(values: Sequence[float], *, include_zero: bool = True) -> Axis:
    """A vertical axis on which all values fit: from 0 where they allow, in decades where they span several."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 100:
        return Axis(
            10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)), HEIGHT - BOTTOM, TOP, True
        )
    low = min(0.0, low) if include_zero else low
    margin = 0.06 * (high - low) or abs(high) or 1.0
    return Axis(low if low == 0 else low - margin, high + margin, HEIGHT - BOTTOM, TOP)


def format_tick(value: float) -> str:
    """A tick's label, short."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.000499:
        size, power = f"{value:.1e}".split("e")
        return f"{size.removesuffix('.0')}e{int(power)}".replace("-", "−")
    return f"{round(value, 6):g}".replace("-", "−")


def render_with_axes(label: str, x: Axis | None, y: Axis, *marks: Svg, x_name: str, y_name: str) -> Svg:
    """A chart of marks with its axes; `label` says in words what it shows."""
    grid = [render_tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y(t), y2=y(t)) for t in y.compute_ticks()]
    y_labels = [render_tag("text", format_tick(t), class_="tick", x=LEFT - 7, y=y(t) + 3.5, text_anchor="end") for t in y.compute_ticks()]
    x_ticks = [(format_tick(t), x(t)) for t in x.compute_ticks()] if x else []
    x_labels = [render_tag("text", t, class_="tick", x=position, y=HEIGHT - 22, text_anchor="middle") for t, position in x_ticks]
    base = render_tag("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM)
    axis_names = [
        render_tag("text", x_name, class_="name", x=WIDTH - RIGHT, y=HEIGHT - 5, text_anchor="end"),
        render_tag("text", ", ".join([y_name] * bool(y_name) + ["log scale"] * y.is_log), class_="name", x=2.0, y=11.0),
    ]
    top_offset = 0.0 if y_name or y.is_log else TOP - 8  # which is left empty
    return render_svg(label, HEIGHT, *grid, *y_labels, *x_labels, base, *marks, *axis_names, top_offset=top_offset)


def render_svg(label: str, height: float, *parts: Svg, top_offset: float = 0.0) -> Svg:
    """A picture as wide as its place allows."""
    view_box = f"0 {top_offset:.0f} {WIDTH:.0f} {height - top_offset:.0f}"
    return render_tag("svg", *parts, class_="chart", viewBox=view_box, role="img", aria_label=label)


Point = tuple[float, float]
MAX_LINE_POINTS = 240  # points of a line
BAR_ROW_HEIGHT = 46.0  # height of a bar with its name


class Chart(NamedTuple):
    """A picture with its heading."""

    title: str
    svg: Svg
    note: str = ""


class MetricBar(NamedTuple):
    """A figure and its standard error."""

    name: str
    style: str
    value: float
    standard_error: float | None
    text: str


class LineSeries(NamedTuple):
    """A curve over steps."""

    name: str
    style: str
    points: list[Point]


def draw_bars(title: str, series: Sequence[MetricBar], metric_name: str) -> Chart:
    """Horizontal bars from 0 with error bars, each under its name."""
    max_value = max((bar.value + (bar.standard_error or 0.0) for bar in series), default=0.0) or 1.0
    x = Axis(0.0, max_value, 0.0, WIDTH - 74)
    parts = [part for i, bar in enumerate(series) for part in _draw_bar(bar, x, i * BAR_ROW_HEIGHT)]
    label = f"{title}, {metric_name}: " + "; ".join(f"{bar.name} {bar.text}" for bar in series)
    return Chart(title, render_svg(label, BAR_ROW_HEIGHT * len(series), *parts))


def _draw_bar(bar: MetricBar, x: Axis, top: float) -> list[Svg]:
    end, middle = x(bar.value), top + 29
    low, high = (x(max(0.0, bar.value + sign * (bar.standard_error or 0.0))) for sign in (-1, 1))
    parts = [
        render_tag("text", bar.name, class_="label", x=0.0, y=top + 14),
        render_tag("rect", class_=f"bar {bar.style}", x=0.0, y=top + 21, width=max(end, 1.0), height=16.0),
        render_tag("text", bar.text, class_="value", x=high + 8, y=middle + 4.5),
    ]
    if bar.standard_error:
        whisker = f"M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"
        parts.insert(2, render_tag("path", class_="whisker", d=whisker))
    return parts


def draw_lines(title: str, series: Sequence[LineSeries], *, note: str = "", y_name: str = "", with_zero_line: bool = False) -> Chart:
    """Curves over steps, with a line at 0 where asked for."""
    points = [point for line in series for point in line.points]
    x, y = make_x_axis(0.0, max(p[0] for p in points)), make_y_axis([0.0] * with_zero_line + [p[1] for p in points])
    marks = [render_tag("line", class_="zero", x1=LEFT, x2=WIDTH - RIGHT, y1=y(0), y2=y(0))] if with_zero_line else []
    marks += [mark for line in series for mark in _draw_curve(line, x, y)]
    ends = "; ".join(f"{line.name} ends at {format_significant(line.points[-1][1])}" for line in series)
    return Chart(title, render_with_axes(f"{title} over steps: {ends}", x, y, *marks, x_name="step", y_name=y_name), note)


def _draw_curve(line: LineSeries, x: Axis, y: Axis) -> list[Svg]:
    points = thin_points(line.points)
    path = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
    a, b = points[-1]
    end = render_tag("circle", class_=f"dot {line.style}", cx=x(a), cy=y(b), r=2.5)
    return [render_tag("path", class_=f"line {line.style}", d=path), end]


def thin_points(points: list[Point], max_points: int = MAX_LINE_POINTS) -> list[Point]:
    """Evenly fewer points, the last one kept."""
    stride = -(-len(points) // max_points)
    return points[::-1][::stride][::-1]


def draw_reliability(title: str, points: Sequence[tuple[float, float, int]], limit: float, *, x: str, y: str) -> Chart:
    """What was said against what was found: dots, larger for more rows, that should lie on the diagonal."""
    x_axis, y_axis = make_x_axis(0.0, limit), Axis(0.0, limit, HEIGHT - BOTTOM, TOP)
    total = max(1, sum(num_rows for _, _, num_rows in points))
    marks = [render_tag("line", class_="ideal", x1=x_axis(0), y1=y_axis(0), x2=x_axis(limit), y2=y_axis(limit))]
    for predicted, observed, num_rows in points:
        x_position = x_axis(predicted)
        marks.append(render_tag("line", class_="gap", x1=x_position, x2=x_position, y1=y_axis(predicted), y2=y_axis(observed)))
        marks.append(render_tag("circle", class_="dot l2i", cx=x_position, cy=y_axis(observed), r=2.5 + 7 * (num_rows / total) ** 0.5))
    pairs = "; ".join(f"{x} {predicted:.2f}, {y} {observed:.2f}" for predicted, observed, _ in points)
    return Chart(title, render_with_axes(f"{title} calibration: {pairs}", x_axis, y_axis, *marks, x_name=x, y_name=y))


def draw_histogram(
    title: str, counts: Sequence[int], low: float, high: float, *, x: str, threshold: float | None = None, threshold_label: str = ""
) -> Chart:
    """Numbers of rows in bins of equal width between `low` and `high`, with a threshold."""
    x_axis, y_axis = make_x_axis(low, high), make_y_axis([0, *counts])
    width = (x_axis(high) - x_axis(low)) / len(counts)
    marks = [
        render_tag("rect", class_="bar l2i", x=LEFT + i * width + 0.5, y=y_axis(count), width=width - 1, height=y_axis(0) - y_axis(count))
        for i, count in enumerate(counts)
        if count
    ]
    if threshold is not None and low <= threshold <= high:
        x_position, is_right_half = x_axis(threshold), x_axis(threshold) > WIDTH / 2
        marks.append(render_tag("line", class_="mark", x1=x_position, x2=x_position, y1=TOP - 6, y2=HEIGHT - BOTTOM))
        anchor = "end" if is_right_half else "start"
        marks.append(render_tag("text", threshold_label, class_="tick", x=x_position + (-6 if is_right_half else 6), y=TOP, text_anchor=anchor))
    label = f"{title}: {sum(counts):,} rows between {low:.3g} and {high:.3g}, in bins of {', '.join(map(str, counts))}"
    return Chart(title, render_with_axes(label, x_axis, y_axis, *marks, x_name=x, y_name="rows"))


def draw_columns(title: str, counts: dict[str, int], *, x: str) -> Chart:
    """Numbers of rows by name, few enough that each name has its place."""
    y_axis = make_y_axis([0, *counts.values()])
    width = (WIDTH - LEFT - RIGHT) / len(counts)
    marks = []
    for i, (name, count) in enumerate(counts.items()):
        left = LEFT + i * width
        marks.append(render_tag("rect", class_="bar l2i", x=left + 3, y=y_axis(count), width=width - 6, height=y_axis(0) - y_axis(count)))
        marks.append(render_tag("text", name, class_="tick", x=left + width / 2, y=HEIGHT - 22, text_anchor="middle"))
    label = f"{title}: " + "; ".join(f"{name}: {count:,} rows" for name, count in counts.items())
    return Chart(title, render_with_axes(label, None, y_axis, *marks, x_name=x, y_name="rows"))


def draw_scatter(title: str, points: Sequence[Point], *, x: str, y: str) -> Chart:
    """Dots around the diagonal on which both coordinates are equal."""
    coordinates = [value for point in points for value in point]
    margin = 0.04 * (max(coordinates) - min(coordinates)) or 1.0
    low, high = min(coordinates) - margin, max(coordinates) + margin
    x_axis, y_axis = make_x_axis(low, high), Axis(low, high, HEIGHT - BOTTOM, TOP)
    marks = [render_tag("line", class_="ideal", x1=x_axis(low), y1=y_axis(low), x2=x_axis(high), y2=y_axis(high))]
    marks += [render_tag("circle", class_="speck", cx=x_axis(a), cy=y_axis(b), r=2.4) for a, b in points]
    label = f"{title}: {y} against {x} for {len(points)} rows, between {format_significant(low)} and {format_significant(high)}"
    return Chart(title, render_with_axes(label, x_axis, y_axis, *marks, x_name=x, y_name=y))


COST_TITLES = {"c_t": "Cᵀ, labelled rows", "c_u": "Cᵁ, unlabelled rows", "c_h": "Cᴴ, hold-out rows"}
PROBE_TITLES = {"c_h": "Cᴴ", "test_cost": "Test cost"}
CHANGE_CAPTION = "change by an outer update, below 0 is better"


class CurvesSection(NamedTuple):
    """The section."""

    charts: list[Chart]
    legend: list[tuple[str, str]]
    """Style and title of each line, for the legend."""
    missing_note: str


def build_curves_section(folder: Path, fitted: FitArtifact) -> CurvesSection:
    """All curves that the run folders hold."""
    logged_candidates = [c for c in fitted.candidates if (folder / c.name / "metrics.jsonl").exists()]
    unlogged_titles = [c.title for c in fitted.candidates if c not in logged_candidates]
    runs = [(candidate, read_metric_rows(folder / candidate.name)) for candidate in logged_candidates]
    metric_titles = {split: f"{fitted.metric_name} on {split} rows" for split in ("validation", "test")}
    run_charts = [_draw_over_runs(title, column, runs) for column, title in (metric_titles | COST_TITLES).items()]
    probed_candidates = [c for c, rows in runs if any(row.get("c_h_before") is not None for row in rows)]
    probe_charts = [
        _draw_cost_change(f"{title}{'' if len(probed_candidates) == 1 else f' of {c.title}'}: {CHANGE_CAPTION}", prefix, c, rows)
        for c, rows in runs
        for prefix, title in PROBE_TITLES.items()
    ]
    charts = [chart for chart in (*run_charts, *probe_charts) if chart is not None]
    missing_note = f"No evaluations are kept of {join_words(unlogged_titles)}." if unlogged_titles else ""
    return CurvesSection(charts, [(c.name, c.title) for c in logged_candidates], missing_note)


def extract_points(rows: list[MetricRow], column: str) -> list[Point]:
    """The values of a column that are there, by step."""
    pairs = [(row["step"], row.get(column)) for row in rows]
    return [(float(s), float(v)) for s, v in pairs if s is not None and v is not None and math.isfinite(v)]


def _draw_over_runs(title: str, column: str, runs: list[tuple[Candidate, list[MetricRow]]]) -> Chart | None:
    all_series = [LineSeries(c.title, c.name, extract_points(rows, column)) for c, rows in runs]
    nonempty_series = [line for line in all_series if line.points]
    return draw_lines(title, nonempty_series) if nonempty_series else None


def compute_cost_changes(rows: list[MetricRow], prefix: str) -> list[Point]:
    """What an outer update adds to a cost, by step; below 0, it helped."""
    before, after = (dict(extract_points(rows, f"{prefix}_{moment}")) for moment in ("before", "after"))
    return [(step, value - before[step]) for step, value in after.items() if step in before]


def _draw_cost_change(title: str, prefix: str, candidate: Candidate, rows: list[MetricRow]) -> Chart | None:
    """A cost after an outer update less that before it."""
    points = compute_cost_changes(rows, prefix)
    note = f"{sum(value < 0 for _, value in points):,} of {len(points):,} are below 0"
    return draw_lines(title, [LineSeries(candidate.title, candidate.name, points)], note=note, with_zero_line=True) if points else None
