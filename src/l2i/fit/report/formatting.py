"""Format numbers and text for the report."""

from __future__ import annotations

import math

MISSING_MARK = "–"


def format_significant(value: float, digits: int = 3) -> str:
    """Format a number with that many significant digits."""
    if not math.isfinite(value):
        return MISSING_MARK
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def format_metric(value: float | None, metric_name: str, digits: int = 3) -> str:
    """Format a metric: per cent with one decimal, others with significant digits."""
    if value is None or not math.isfinite(value):
        return MISSING_MARK
    return f"{value:.1f}" if "%" in metric_name else format_significant(value, digits)


def format_percent(value: float) -> str:
    """Format a share as per cent, with a decimal near 0 and 1."""
    decimals = 0 if 0.1 <= value <= 0.9 or value in (0, 1) else 1
    return f"{100 * value:.{decimals}f} %"


def join_words(items: list[str]) -> str:
    """Join words as in "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def bind_units(text: str) -> str:
    """Keep numbers and their signs on one line."""
    return text.replace(" %", "\u00a0%").replace("± ", "±\u00a0")


def truncate_text(text: str, max_length: int = 240) -> str:
    """Cut a text after that many characters."""
    return text if len(text) <= max_length else text[: max_length - 1].rstrip() + "…"
