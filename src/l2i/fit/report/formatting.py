"""How figures are written."""

from __future__ import annotations

import math

MISSING_MARK = "–"


def format_significant(value: float, digits: int = 3) -> str:
    """A number with so many digits that count."""
    if not math.isfinite(value):
        return MISSING_MARK
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    return f"{value:.{digits - 1}e}" if not -4 <= exponent < 9 else f"{value:,.{max(0, digits - 1 - exponent)}f}"


def format_metric(value: float | None, metric_name: str, digits: int = 3) -> str:
    """A figure of that name, where there is one: per cent with one decimal, others with so many digits."""
    if value is None or not math.isfinite(value):
        return MISSING_MARK
    return f"{value:.1f}" if "%" in metric_name else format_significant(value, digits)


def format_percent(value: float) -> str:
    """A share as per cent."""
    return f"{100 * value:.0f} %" if 0.1 <= value <= 0.9 or value in (0, 1) else f"{100 * value:.1f} %"


def join_words(items: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def bind_units(text: str) -> str:
    """A sentence whose figures are not torn from their signs at the end of a line."""
    return text.replace(" %", "\u00a0%").replace("± ", "±\u00a0")


def truncate_text(text: str, max_length: int = 240) -> str:
    """Not more than so many characters of a text."""
    return text if len(text) <= max_length else text[: max_length - 1].rstrip() + "…"
