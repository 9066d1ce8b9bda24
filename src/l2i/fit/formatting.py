"""Format names, numbers and plain tables for messages and reports. Nothing heavy is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_NAMES_SHOWN = 8  # in a message
MISSING_MARK = "–"


def format_names(names: Sequence[str]) -> str:
    """Quote and join names, cutting a long list."""
    return join_truncated([f"'{name}'" for name in names])


def format_first_and_last(names: Sequence[str]) -> str:
    """Quote and join names, leaving out the middle of a long list."""
    quoted = [f"'{name}'" for name in names]
    is_long = len(names) > MAX_NAMES_SHOWN
    return ", ".join([*quoted[: MAX_NAMES_SHOWN - 3], "…", *quoted[-3:]] if is_long else quoted)


def join_truncated(items: Sequence[str]) -> str:
    """Join items, cutting a long list."""
    suffix = f" and {len(items) - MAX_NAMES_SHOWN:,} more" if len(items) > MAX_NAMES_SHOWN else ""
    return ", ".join(items[:MAX_NAMES_SHOWN]) + suffix


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """Format a count, as in '1 row' or '3 rows'."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


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


def align_columns(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """Return rows as plain lines; `alignment` has < (left) or > (right) for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = [f"{{:{side}{width}}}" for side, width in zip(alignment, widths, strict=True)]
    return ["  ".join(columns).format(*row).rstrip() for row in rows]
