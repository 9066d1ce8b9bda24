"""Markup and axes, in pure functions: what comes from the data is escaped wherever it enters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 320.0, 212.0  # of a chart, in units that are pixels on a phone
LEFT, RIGHT, TOP, BOTTOM = 42.0, 10.0, 24.0, 40.0  # margins


class Svg(str):
    """Markup that is safe as it is; Jinja asks for it by this method."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def breakable(text: str) -> Svg:
    """Text that may be broken after the signs that join words, and so need not be broken within them."""
    return Svg(re.sub("(?<=[_/.-])(?=[^_/.-])", "<wbr>", escape(text)))


def tag(name: str, *children: str, **attributes: object) -> Svg:
    """An element; text and attributes are escaped, markup is not. `class_` is class, `text_anchor` text-anchor."""
    listed = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(v)}"' for key, v in attributes.items())
    inner = "".join(child if isinstance(child, Svg) else escape(child) for child in children)
    return Svg(f"<{name}{listed}>{inner}</{name}>")


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))


class Axis(NamedTuple):
    """Values between `low` and `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        if not self.log:
            return nice(self.low, self.high)
        powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        return [10.0**p for p in powers[:: math.ceil(len(powers) / 5)]]


def nice(low: float, high: float, about: int = 4) -> list[float]:
    """Round values that cover the range."""
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def across(low: float, high: float) -> Axis:
    """A horizontal axis."""
    return Axis(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)


def upward(values: Sequence[float], *, zero: bool = True) -> Axis:
    """A vertical axis on which all values fit: from 0 where they allow, in decades where they span several."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 100:
        return Axis(
            10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)), HEIGHT - BOTTOM, TOP, True
        )
    low = min(0.0, low) if zero else low
    room = 0.06 * (high - low) or abs(high) or 1.0
    return Axis(low if low == 0 else low - room, high + room, HEIGHT - BOTTOM, TOP)


def tick(value: float) -> str:
    """A tick's label, short."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.000499:
        size, power = f"{value:.1e}".split("e")
        return f"{size.removesuffix('.0')}e{int(power)}".replace("-", "−")
    return f"{round(value, 6):g}".replace("-", "−")


def framed(label: str, x: Axis | None, y: Axis, *marks: Svg, x_name: str, y_name: str) -> Svg:
    """A chart of marks with its axes; `label` says in words what it shows."""
    grid = [tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y(t), y2=y(t)) for t in y.ticks()]
    sides = [tag("text", tick(t), class_="tick", x=LEFT - 7, y=y(t) + 3.5, text_anchor="end") for t in y.ticks()]
    marked = [(tick(t), x(t)) for t in x.ticks()] if x else []
    floor = [tag("text", t, class_="tick", x=at, y=HEIGHT - 22, text_anchor="middle") for t, at in marked]
    base = tag("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM)
    names = [
        tag("text", x_name, class_="name", x=WIDTH - RIGHT, y=HEIGHT - 5, text_anchor="end"),
        tag("text", ", ".join([y_name] * bool(y_name) + ["log scale"] * y.log), class_="name", x=2.0, y=11.0),
    ]
    above = 0.0 if y_name or y.log else TOP - 8  # which is left empty
    return drawn(label, HEIGHT, *grid, *sides, *floor, base, *marks, *names, above=above)


def drawn(label: str, height: float, *parts: Svg, above: float = 0.0) -> Svg:
    """A picture as wide as its place allows."""
    box = f"0 {above:.0f} {WIDTH:.0f} {height - above:.0f}"
    return tag("svg", *parts, class_="chart", viewBox=box, role="img", aria_label=label)
