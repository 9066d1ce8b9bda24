"""Charts as inline SVG; colours and strokes are the style sheet's, by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from l2i.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Svg, across, drawn, framed, tag, upward
from l2i.report.words import significant

Point = tuple[float, float]
MOST = 240  # points of a line
ROW = 46.0  # height of a bar with its name


class Chart(NamedTuple):
    """A picture with its heading."""

    title: str
    svg: Svg
    note: str = ""


class Bar(NamedTuple):
    """A figure and its standard error."""

    name: str
    style: str
    value: float
    error: float | None
    text: str


class Line(NamedTuple):
    """A curve over steps."""

    name: str
    style: str
    points: list[Point]


def bars(title: str, listed: Sequence[Bar], name: str) -> Chart:
    """Horizontal bars from 0 with error bars, each under its name."""
    most = max((bar.value + (bar.error or 0.0) for bar in listed), default=0.0) or 1.0
    x = Axis(0.0, most, 0.0, WIDTH - 74)
    parts = [part for i, bar in enumerate(listed) for part in _bar(bar, x, i * ROW)]
    label = f"{title}, {name}: " + "; ".join(f"{bar.name} {bar.text}" for bar in listed)
    return Chart(title, drawn(label, ROW * len(listed), *parts))


def _bar(bar: Bar, x: Axis, top: float) -> list[Svg]:
    end, middle = x(bar.value), top + 29
    low, high = (x(max(0.0, bar.value + sign * (bar.error or 0.0))) for sign in (-1, 1))
    parts = [
        tag("text", bar.name, class_="label", x=0.0, y=top + 14),
        tag("rect", class_=f"bar {bar.style}", x=0.0, y=top + 21, width=max(end, 1.0), height=16.0),
        tag("text", bar.text, class_="value", x=high + 8, y=middle + 4.5),
    ]
    if bar.error:
        whisker = f"M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"
        parts.insert(2, tag("path", class_="whisker", d=whisker))
    return parts


def lines(title: str, listed: Sequence[Line], *, note: str = "", y_name: str = "", zero: bool = False) -> Chart:
    """Curves over steps, with a line at 0 where asked for."""
    points = [point for line in listed for point in line.points]
    x, y = across(0.0, max(p[0] for p in points)), upward([0.0] * zero + [p[1] for p in points])
    marks = [tag("line", class_="zero", x1=LEFT, x2=WIDTH - RIGHT, y1=y(0), y2=y(0))] if zero else []
    marks += [mark for line in listed for mark in _curve(line, x, y)]
    ends = "; ".join(f"{line.name} ends at {significant(line.points[-1][1])}" for line in listed)
    return Chart(title, framed(f"{title} over steps: {ends}", x, y, *marks, x_name="step", y_name=y_name), note)


def _curve(line: Line, x: Axis, y: Axis) -> list[Svg]:
    kept = thinned(line.points)
    path = "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in kept)
    a, b = kept[-1]
    end = tag("circle", class_=f"dot {line.style}", cx=x(a), cy=y(b), r=2.5)
    return [tag("path", class_=f"line {line.style}", d=path), end]


def thinned(points: list[Point], most: int = MOST) -> list[Point]:
    """Evenly fewer points, the last one kept."""
    stride = -(-len(points) // most)
    return points[::-1][::stride][::-1]


def agreement(title: str, points: Sequence[tuple[float, float, int]], limit: float, *, x: str, y: str) -> Chart:
    """What was said against what was found: dots, larger for more rows, that should lie on the diagonal."""
    along, up = across(0.0, limit), Axis(0.0, limit, HEIGHT - BOTTOM, TOP)
    total = max(1, sum(rows for _, _, rows in points))
    marks = [tag("line", class_="ideal", x1=along(0), y1=up(0), x2=along(limit), y2=up(limit))]
    for said, found, rows in points:
        at = along(said)
        marks.append(tag("line", class_="gap", x1=at, x2=at, y1=up(said), y2=up(found)))
        marks.append(tag("circle", class_="dot l2i", cx=at, cy=up(found), r=2.5 + 7 * (rows / total) ** 0.5))
    pairs = "; ".join(f"{x} {said:.2f}, {y} {found:.2f}" for said, found, _ in points)
    return Chart(title, framed(f"{title} calibration: {pairs}", along, up, *marks, x_name=x, y_name=y))


def histogram(
    title: str, counts: Sequence[int], low: float, high: float, *, x: str, mark: float | None = None, said: str = ""
) -> Chart:
    """Numbers of rows in bins of equal width between `low` and `high`, with a threshold."""
    along, up = across(low, high), upward([0, *counts])
    width = (along(high) - along(low)) / len(counts)
    marks = [
        tag("rect", class_="bar l2i", x=LEFT + i * width + 0.5, y=up(n), width=width - 1, height=up(0) - up(n))
        for i, n in enumerate(counts)
        if n
    ]
    if mark is not None and low <= mark <= high:
        at, right = along(mark), along(mark) > WIDTH / 2
        marks.append(tag("line", class_="mark", x1=at, x2=at, y1=TOP - 6, y2=HEIGHT - BOTTOM))
        anchor = "end" if right else "start"
        marks.append(tag("text", said, class_="tick", x=at + (-6 if right else 6), y=TOP, text_anchor=anchor))
    label = f"{title}: {sum(counts):,} rows between {low:.3g} and {high:.3g}, in bins of {', '.join(map(str, counts))}"
    return Chart(title, framed(label, along, up, *marks, x_name=x, y_name="rows"))


def columns(title: str, counts: dict[str, int], *, x: str) -> Chart:
    """Numbers of rows by name, few enough that each name has its place."""
    up = upward([0, *counts.values()])
    width = (WIDTH - LEFT - RIGHT) / len(counts)
    marks = []
    for i, (name, n) in enumerate(counts.items()):
        left = LEFT + i * width
        marks.append(tag("rect", class_="bar l2i", x=left + 3, y=up(n), width=width - 6, height=up(0) - up(n)))
        marks.append(tag("text", name, class_="tick", x=left + width / 2, y=HEIGHT - 22, text_anchor="middle"))
    label = f"{title}: " + "; ".join(f"{name}: {n:,} rows" for name, n in counts.items())
    return Chart(title, framed(label, None, up, *marks, x_name=x, y_name="rows"))


def scatter(title: str, points: Sequence[Point], *, x: str, y: str) -> Chart:
    """Dots around the diagonal on which both coordinates are equal."""
    both = [value for point in points for value in point]
    room = 0.04 * (max(both) - min(both)) or 1.0
    low, high = min(both) - room, max(both) + room
    along, up = across(low, high), Axis(low, high, HEIGHT - BOTTOM, TOP)
    marks = [tag("line", class_="ideal", x1=along(low), y1=up(low), x2=along(high), y2=up(high))]
    marks += [tag("circle", class_="speck", cx=along(a), cy=up(b), r=2.4) for a, b in points]
    label = f"{title}: {y} against {x} for {len(points)} rows, between {significant(low)} and {significant(high)}"
    return Chart(title, framed(label, along, up, *marks, x_name=x, y_name=y))
