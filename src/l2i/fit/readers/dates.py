"""Recognise columns of dates, and turn them into numbers: elapsed days and calendar parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.fit.readers.cells import is_missing_word

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
DATE_TITLES = {  # by format; where two suit a column equally, the first is taken
    "%Y-%m-%d": "year-month-day",
    "%Y/%m/%d": "year/month/day",
    "%Y.%m.%d": "year.month.day",
    "%d.%m.%Y": "day.month.year",
    "%d.%m.%y": "day.month.year",
    "%m/%d/%Y": "month/day/year",
    "%d/%m/%Y": "day/month/year",
    "%m/%d/%y": "month/day/year",
    "%d/%m/%y": "day/month/year",
    "%d-%m-%Y": "day-month-year",
    "%m-%d-%Y": "month-day-year",
    "%d %b %Y": "day month year",
    "%d %B %Y": "day month year",
    "%d-%b-%Y": "day-month-year",
    "%b %d, %Y": "month day, year",
    "%B %d, %Y": "month day, year",
    "%Y-%m": "year-month",
}
DATE_PARTS = ("days", "month", "day", "weekday", "hour")
PART_TITLES = {
    "days": "days since 1970-01-01",
    "month": "month, 1 to 12",
    "day": "day of the month",
    "weekday": "weekday, 0 for Monday",
    "hour": "hour of the day",
}
SECONDS_PER_DAY = 86_400.0
MIN_DAYS, MAX_DAYS = -62_091.0, 84_006.0  # since 1970: the years 1800 to 2199
MAX_SAMPLE = 200  # distinct cells that decide whether a column holds dates
LOOKS_LIKE_DATE = re.compile(r"\d.*[-/. ].*\d")
DATE_AND_TIME = (
    r"(?P<date>.*?\d)(?:(?:T|,?\s+)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
    r"\s*(?P<half>[AaPp]\.?[Mm]\.?)?\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?"
)


class DateFormat(NamedTuple):
    """How the dates of a column are written."""

    format: str
    is_ambiguous: bool
    """Whether day and month could as well be exchanged."""


def _draw_sample(cells: pd.Series) -> pd.Series | None:
    """Return some distinct cells, if they are words of which most could be dates."""
    sample = cells[~is_missing_word(cells)].dropna().drop_duplicates().head(MAX_SAMPLE)
    if not len(sample) or not sample.map(lambda cell: isinstance(cell, str)).all():
        return None
    return sample if 2 * sample.str.contains(LOOKS_LIKE_DATE).sum() > len(sample) else None


def has_mixed_dates(cells: pd.Series) -> bool:
    """Return whether all cells are dates, but in different formats."""
    sample = _draw_sample(cells)
    if sample is None:
        return False
    return bool(np.any([np.isfinite(_parse(sample, name)) for name in DATE_TITLES], axis=0).all())


def infer_date_format(cells: pd.Series) -> DateFormat | None:
    """Return the format in which more than half of the cells are dates, if there is one."""
    sample = _draw_sample(cells)
    if sample is None:
        return None
    counts = {name: int(np.isfinite(_parse(sample, name)).sum()) for name in DATE_TITLES}
    best = max(counts, key=lambda name: counts[name])
    if 2 * counts[best] <= len(sample):
        return None
    swapped = best.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m")
    if not best.startswith("%Y") and counts.get(swapped, 0) == counts[best]:
        # the sample may not show which comes first, the other cells may
        known = cells.dropna()
        both = [int(np.isfinite(_parse(known, name)).sum()) for name in (best, swapped)]
        return DateFormat(swapped if both[1] > both[0] else best, both[0] == both[1])
    return DateFormat(best, False)


def read_dates(cells: pd.Series, date_format: str) -> Floats:
    """Return days since 1970, NaN where blank; raise InputError for a cell that is no date."""
    days = _parse(cells, date_format)
    is_blank = (cells.isna() | is_missing_word(cells)).to_numpy(dtype=bool)
    bad_rows = np.flatnonzero(np.isnan(days) & ~is_blank)
    if len(bad_rows):
        cell, row = str(cells.iloc[bad_rows[0]])[:40], bad_rows[0] + 1
        name = cells.name
        problem = f"column '{name}' holds dates, but '{cell}' in row {row} is no date"
        fix = f"write it as {DATE_TITLES[date_format]}, leave it blank, or use --category {name}"
        raise InputError(f"{problem}; {fix}")
    return days


def _parse(cells: pd.Series, date_format: str) -> Floats:
    """Return days since 1970 in universal time, NaN where a cell is blank or no such date."""
    import pandas as pd

    text = cells.astype(object).where(cells.notna(), "").astype(str).str.strip()
    distinct, inverse = np.unique(text.to_numpy(dtype=str), return_inverse=True)
    parts = pd.Series(distinct, dtype=object).str.extract(f"^{DATE_AND_TIME}$")
    dates = pd.to_datetime(parts["date"], format=date_format, errors="coerce")
    moments = dates.to_numpy().astype("datetime64[s]")
    days = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / SECONDS_PER_DAY)
    days[(days < MIN_DAYS) | (days > MAX_DAYS)] = np.nan
    return np.asarray((days + _parse_times(parts) / SECONDS_PER_DAY)[inverse])


def _parse_times(parts: pd.DataFrame) -> Floats:
    """Return seconds after midnight in universal time, 0 without a time; NaN if impossible."""
    hour, minute, second = (
        parts[name].astype(np.float64).fillna(0.0).to_numpy()
        for name in ("hour", "minute", "second")
    )
    half = parts["half"].str.lower().str[0]
    is_twelve_hours, is_afternoon = half.notna().to_numpy(), (half == "p").to_numpy()
    is_possible = (minute < 60) & (second < 61) & (hour < np.where(is_twelve_hours, 13, 24))
    hour = np.where(is_twelve_hours, hour % 12 + 12 * is_afternoon, hour)
    zone = parts["zone"].str.extract(r"^([+-])(\d{2}):?(\d{2})?$")
    sign = np.where((zone[0] == "-").to_numpy(), -1.0, 1.0)
    hours, minutes = (zone[i].astype(np.float64).fillna(0.0).to_numpy() for i in (1, 2))
    seconds = 3600 * (hour - sign * hours) + 60 * (minute - sign * minutes) + second
    return np.asarray(np.where(is_possible, seconds, np.nan))


def take_date_part(days: Floats, part: str) -> Floats:
    """Return a part of dates in days since 1970, NaN where blank."""
    if part == "days":
        return days
    whole = np.floor(days)
    if part == "hour":
        return (days - whole) * 24
    if part == "weekday":
        return np.asarray(np.mod(whole + 3, 7))  # 1970 began on a Thursday
    is_known = np.isfinite(whole)
    dates = np.where(is_known, whole, 0).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    if part == "month":
        values: Any = months.astype(np.int64) % 12 + 1
    else:
        values = (dates - months).astype(np.int64) + 1
    return np.where(is_known, values.astype(np.float64), np.nan)


def list_date_parts(days: Floats) -> list[str]:
    """Return the parts that vary: always the elapsed days, and those of which there are several."""
    known = days[np.isfinite(days)]
    varying = [part for part in DATE_PARTS[1:] if np.ptp(take_date_part(known, part)) > 0]
    return ["days", *varying]


def format_date(days: float) -> str:
    """Return a date as year-month-day, with its time if it has one."""
    if np.isnan(days):
        return ""
    seconds = np.datetime64(round(days * SECONDS_PER_DAY), "s")
    text = str(seconds).replace("T", " ")
    return text.removesuffix(" 00:00:00")
