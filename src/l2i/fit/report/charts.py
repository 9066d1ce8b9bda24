"""Charts as inline SVG, styled by the style sheet; whatever comes from the data is escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from l2i.fit.artifact import Candidate, FitArtifact
from l2i.fit.formatting import format_significant, join_words
from l2i.training.loading import read_metric_rows
from l2i.training.metrics import MetricRow

WIDTH, HEIGHT = 320.0, 212.0  # of a chart, in units that are pixels on a phone
LEFT, RIGHT, TOP, BOTTOM = 42.0, 10.0, 24.0, 40.0  # margins
MAX_LINE_POINTS = 240
BAR_ROW_HEIGHT = 46.0  # a bar and its name
COST_TITLES = {"c_t": "Loss Cᵀ, labelled", "c_u": "Loss Cᵁ, unlabelled", "c_h": "Loss Cᴴ, hold-out"}
PROBE_TITLES = {"c_h": "Cᴴ", "test_cost": "Test loss"}
CHANGE_CAPTION = "change per outer update"
Point = tuple[float, float]


class Svg(str):
    """Markup that needs no escaping; Jinja asks for it by this method."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


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
        first = math.ceil(math.log10(self.low) - 1e-9)
        powers = range(first, math.floor(math.log10(self.high) + 1e-9) + 1)
        return [10.0**p for p in powers[:: math.ceil(len(powers) / 5)]]


class Chart(NamedTuple):
    """A picture with its heading."""

    title: str
    svg: Svg
    note: str = ""


class MetricBar(NamedTuple):
    """A metric and its standard error."""

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


class CurvesSection(NamedTuple):
    """Curves over steps of all candidates."""

    charts: list[Chart]
    legend: list[tuple[str, str]]
    """Style and title of each line."""
    missing_note: str


def draw_bars(title: str, series: Sequence[MetricBar]) -> Chart:
    """Draw horizontal bars from 0 with error bars, each below its name."""
    max_value = max((bar.value + (bar.standard_error or 0.0) for bar in series), default=0.0) or 1.0
    x = Axis(0.0, max_value, 0.0, WIDTH - 74)
    parts = [part for i, bar in enumerate(series) for part in _draw_bar(bar, x, i * BAR_ROW_HEIGHT)]
    label = f"{title}: " + "; ".join(f"{bar.name} {bar.text}" for bar in series)
    return Chart(title, _render_svg(label, BAR_ROW_HEIGHT * len(series), *parts))


def _draw_bar(bar: MetricBar, x: Axis, top: float) -> list[Svg]:
    width, middle = max(x(bar.value), 1.0), top + 29
    low, high = (x(max(0.0, bar.value + sign * (bar.standard_error or 0.0))) for sign in (-1, 1))
    style = f"bar {bar.style}"
    parts = [
        render_tag("text", bar.name, class_="label", x=0.0, y=top + 14),
        render_tag("rect", class_=style, x=0.0, y=top + 21, width=width, height=16.0),
        render_tag("text", bar.text, class_="value", x=high + 8, y=middle + 4.5),
    ]
    if bar.standard_error:
        ends = "".join(f"M{end:.1f} {middle - 4:.1f}v8" for end in (low, high))
        whisker = f"M{low:.1f} {middle:.1f}H{high:.1f}{ends}"
        parts.insert(2, render_tag("path", class_="whisker", d=whisker))
    return parts


def _draw_lines(
    title: str, series: Sequence[LineSeries], *, note: str = "", with_zero_line: bool = False
) -> Chart:
    """Draw curves over steps, optionally with a line at 0."""
    points = [point for line in series for point in line.points]
    x = _make_x_axis(0.0, max(p[0] for p in points))
    y = _make_y_axis([0.0] * with_zero_line + [p[1] for p in points])
    marks = [_draw_horizontal("zero", y(0))] if with_zero_line else []
    marks += [mark for line in series for mark in _draw_curve(line, x, y)]
    ends = [f"{line.name} ends at {format_significant(line.points[-1][1])}" for line in series]
    label = f"{title} over steps: {'; '.join(ends)}"
    return Chart(title, _render_with_axes(label, x, y, *marks, x_name="step", y_name=""), note)


def _draw_curve(line: LineSeries, x: Axis, y: Axis) -> list[Svg]:
    points = thin_points(line.points)
    path = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
    a, b = points[-1]
    end = render_tag("circle", class_=f"dot {line.style}", cx=x(a), cy=y(b), r=2.5)
    return [render_tag("path", class_=f"line {line.style}", d=path), end]


def thin_points(points: list[Point], max_points: int = MAX_LINE_POINTS) -> list[Point]:
    """Drop points evenly, but never the last one."""
    stride = -(-len(points) // max_points)
    return points[::-1][::stride][::-1]


def draw_reliability(
    title: str, points: Sequence[tuple[float, float, int]], limit: float, *, x: str, y: str
) -> Chart:
    """Draw observed against predicted: dots, larger for more rows, ideally on the diagonal."""
    x_axis, y_axis = _make_x_axis(0.0, limit), Axis(0.0, limit, HEIGHT - BOTTOM, TOP)
    total = max(1, sum(num_rows for _, _, num_rows in points))
    marks = [_draw_diagonal(x_axis, y_axis, 0, limit)]
    for predicted, observed, num_rows in points:
        cx, cy, radius = x_axis(predicted), y_axis(observed), 2.5 + 7 * (num_rows / total) ** 0.5
        marks += [
            render_tag("line", class_="gap", x1=cx, x2=cx, y1=y_axis(predicted), y2=cy),
            render_tag("circle", class_="dot l2i", cx=cx, cy=cy, r=radius),
        ]
    label = f"{title}: " + "; ".join(f"{x} {a:.2f}, {y} {b:.2f}" for a, b, _ in points)
    return Chart(title, _render_with_axes(label, x_axis, y_axis, *marks, x_name=x, y_name=y))


def draw_histogram(
    title: str,
    counts: Sequence[int],
    bounds: tuple[float, float],
    *,
    x: str,
    threshold: float,
    threshold_label: str,
) -> Chart:
    """Draw numbers of rows in bins of equal width, with a threshold."""
    low, high = bounds
    x_axis, y_axis = _make_x_axis(low, high), _make_y_axis([0, *counts])
    width = (x_axis(high) - x_axis(low)) / len(counts)
    bins = [(LEFT + i * width, count) for i, count in enumerate(counts) if count]
    marks = [_draw_column(left + 0.5, width - 1, y_axis, count) for left, count in bins]
    if low <= threshold <= high:
        at = x_axis(threshold)
        offset, anchor = (-6, "end") if at > WIDTH / 2 else (6, "start")
        marks += [
            render_tag("line", class_="mark", x1=at, x2=at, y1=TOP - 6, y2=HEIGHT - BOTTOM),
            _draw_tick_label(threshold_label, at + offset, TOP, anchor),
        ]
    sizes = ", ".join(map(str, counts))
    label = f"{title}: {sum(counts):,} rows between {low:.3g} and {high:.3g}, in bins of {sizes}"
    return Chart(title, _render_with_axes(label, x_axis, y_axis, *marks, x_name=x, y_name="rows"))


def draw_columns(title: str, counts: dict[str, int], *, x: str) -> Chart:
    """Draw numbers of rows by name, few enough for each name to have room."""
    y_axis = _make_y_axis([0, *counts.values()])
    width = (WIDTH - LEFT - RIGHT) / len(counts)
    marks = []
    for i, (name, count) in enumerate(counts.items()):
        left = LEFT + i * width
        marks.append(_draw_column(left + 3, width - 6, y_axis, count))
        marks.append(_draw_tick_label(name, left + width / 2, HEIGHT - 22, "middle"))
    label = f"{title}: " + "; ".join(f"{name}: {count:,} rows" for name, count in counts.items())
    return Chart(title, _render_with_axes(label, None, y_axis, *marks, x_name=x, y_name="rows"))


def draw_scatter(title: str, points: Sequence[Point], *, x: str, y: str) -> Chart:
    """Draw dots around the diagonal, where both coordinates are equal."""
    coordinates = [value for point in points for value in point]
    margin = 0.04 * (max(coordinates) - min(coordinates)) or 1.0
    low, high = min(coordinates) - margin, max(coordinates) + margin
    x_axis, y_axis = _make_x_axis(low, high), Axis(low, high, HEIGHT - BOTTOM, TOP)
    marks = [_draw_diagonal(x_axis, y_axis, low, high)]
    for a, b in points:
        marks.append(render_tag("circle", class_="speck", cx=x_axis(a), cy=y_axis(b), r=2.4))
    bounds = f"between {format_significant(low)} and {format_significant(high)}"
    label = f"{title}: {y} against {x} for {len(points)} rows, {bounds}"
    return Chart(title, _render_with_axes(label, x_axis, y_axis, *marks, x_name=x, y_name=y))


def _draw_diagonal(x: Axis, y: Axis, low: float, high: float) -> Svg:
    return render_tag("line", class_="ideal", x1=x(low), y1=y(low), x2=x(high), y2=y(high))


def _draw_horizontal(style: str, y: float) -> Svg:
    return render_tag("line", class_=style, x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)


def _draw_column(x: float, width: float, y: Axis, count: int) -> Svg:
    height = y(0) - y(count)
    return render_tag("rect", class_="bar l2i", x=x, y=y(count), width=width, height=height)


def _draw_tick_label(text: str, x: float, y: float, anchor: str) -> Svg:
    return render_tag("text", text, class_="tick", x=x, y=y, text_anchor=anchor)


def _render_with_axes(
    label: str, x: Axis | None, y: Axis, *marks: Svg, x_name: str, y_name: str
) -> Svg:
    """Render a chart of marks with its axes; `label` describes it in words."""
    y_ticks, x_ticks = y.compute_ticks(), x.compute_ticks() if x else []
    parts = [_draw_horizontal("grid", y(t)) for t in y_ticks]
    parts += [_draw_tick_label(format_tick(t), LEFT - 7, y(t) + 3.5, "end") for t in y_ticks]
    if x:
        parts += [_draw_tick_label(format_tick(t), x(t), HEIGHT - 22, "middle") for t in x_ticks]
    y_title = ", ".join([y_name] * bool(y_name) + ["log scale"] * y.is_log)
    x_end = WIDTH - RIGHT
    parts += [_draw_horizontal("axis", HEIGHT - BOTTOM), *marks]
    parts += [
        render_tag("text", x_name, class_="name", x=x_end, y=HEIGHT - 5, text_anchor="end"),
        render_tag("text", y_title, class_="name", x=2.0, y=11.0),
    ]
    return _render_svg(label, HEIGHT, *parts, top_offset=0.0 if y_title else TOP - 8)


def _render_svg(label: str, height: float, *parts: Svg, top_offset: float = 0.0) -> Svg:
    """Render a picture as wide as its container."""
    view_box = f"0 {top_offset:.0f} {WIDTH:.0f} {height - top_offset:.0f}"
    return render_tag("svg", *parts, class_="chart", viewBox=view_box, role="img", aria_label=label)


def render_tag(name: str, *children: str, **attributes: object) -> Svg:
    """Render an element, escaping text and attributes; `text_anchor` stands for text-anchor."""

    def format_value(value: object) -> str:
        return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))

    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}  # class_ is class
    text = "".join(f' {names[key]}="{format_value(v)}"' for key, v in attributes.items())
    inner = "".join(child if isinstance(child, Svg) else escape(child) for child in children)
    return Svg(f"<{name}{text}>{inner}</{name}>")


def make_breakable(text: str) -> Svg:
    """Allow line breaks after characters that join words, so that words are not broken."""
    return Svg(re.sub("(?<=[_/.-])(?=[^_/.-])", "<wbr>", escape(text)))


def _make_x_axis(low: float, high: float) -> Axis:
    return Axis(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)


def _make_y_axis(values: Sequence[float]) -> Axis:
    """Return a vertical axis: from 0 if possible, logarithmic if values span decades."""
    low, high = min(values), max(values)
    bottom, is_log = HEIGHT - BOTTOM, low > 0 and high / low > 100
    if is_log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return Axis(10.0**first, 10.0**last, bottom, TOP, is_log)
    low = min(0.0, low)
    margin = 0.06 * (high - low) or abs(high) or 1.0
    return Axis(low if low == 0 else low - margin, high + margin, bottom, TOP)


def compute_nice_ticks(low: float, high: float, target_count: int = 4) -> list[float]:
    """Return round values that cover the range."""
    rough = (high - low) / target_count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def format_tick(value: float) -> str:
    """Format the short label of a tick."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.000499:
        size, power = f"{value:.1e}".split("e")
        return f"{size.removesuffix('.0')}e{int(power)}".replace("-", "−")
    return f"{round(value, 6):g}".replace("-", "−")


def build_curves_section(folder: Path, fitted: FitArtifact) -> CurvesSection:
    """Draw all curves that the run folders hold."""
    is_logged = [(folder / c.name / "metrics.jsonl").exists() for c in fitted.candidates]
    logged = [c for c, has_log in zip(fitted.candidates, is_logged, strict=True) if has_log]
    unlogged_titles = [c.title for c in fitted.candidates if c not in logged]
    runs = [(c, read_metric_rows(folder / c.name)) for c in logged]
    titles = {s: f"{s.capitalize()} {fitted.metric_name}" for s in ("validation", "test")}
    charts = [_draw_over_runs(title, name, runs) for name, title in (titles | COST_TITLES).items()]
    probed = [c for c, rows in runs if any(row.get("c_h_before") is not None for row in rows)]
    for c, rows in runs:
        owner = "" if len(probed) == 1 else f" of {c.title}"
        for prefix, title in PROBE_TITLES.items():
            charts.append(_draw_cost_change(f"{title}{owner}: {CHANGE_CAPTION}", prefix, c, rows))
    note = f"No metrics were logged for {join_words(unlogged_titles)}." if unlogged_titles else ""
    drawn = [chart for chart in charts if chart is not None]
    return CurvesSection(drawn, [(c.name, c.title) for c in logged], note)


def _draw_over_runs(
    title: str, column: str, runs: list[tuple[Candidate, list[MetricRow]]]
) -> Chart | None:
    series = [LineSeries(c.title, c.name, _extract_points(rows, column)) for c, rows in runs]
    nonempty = [line for line in series if line.points]
    return _draw_lines(title, nonempty) if nonempty else None


def _extract_points(rows: list[MetricRow], column: str) -> list[Point]:
    """Return the values of a column by step, without missing ones."""
    pairs = [(row["step"], row.get(column)) for row in rows]
    known = [(s, v) for s, v in pairs if s is not None and v is not None and math.isfinite(v)]
    return [(float(step), float(value)) for step, value in known]


def _draw_cost_change(
    title: str, prefix: str, candidate: Candidate, rows: list[MetricRow]
) -> Chart | None:
    """Draw how much an outer update changes a cost."""
    points = compute_cost_changes(rows, prefix)
    if not points:
        return None
    num_better = sum(value < 0 for _, value in points)
    note = f"negative (better) at {num_better:,} of {len(points):,} evaluations"
    series = [LineSeries(candidate.title, candidate.name, points)]
    return _draw_lines(title, series, note=note, with_zero_line=True)


def compute_cost_changes(rows: list[MetricRow], prefix: str) -> list[Point]:
    """Return by step what an outer update adds to a cost; below 0, it helped."""
    before, after = (dict(_extract_points(rows, f"{prefix}_{t}")) for t in ("before", "after"))
    return [(step, value - before[step]) for step, value in after.items() if step in before]
