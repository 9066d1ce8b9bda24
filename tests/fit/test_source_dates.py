"""Columns of dates: which format they are in, and the numbers that they become."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from user_data import read, written

from l2i.errors import InputError
from l2i.fit.preprocess import TablePreprocessor, fit_date_columns
from l2i.fit.readers.dates import (
    DATE_PARTS,
    format_date,
    infer_date_format,
    list_date_parts,
    read_dates,
    take_date_part,
)


def dates(*cells: str | None) -> pd.Series:
    return pd.Series(cells, dtype=object, name="day")


@pytest.mark.parametrize(
    ("cells", "date_format", "is_ambiguous"),
    [
        (("2024-01-31", "2023-12-01"), "%Y-%m-%d", False),
        (("31.01.2024", "01.12.2023", None), "%d.%m.%Y", False),
        (("31/01/2024", "01/12/2023"), "%d/%m/%Y", False),
        (("01/31/2024", "12/01/2023"), "%m/%d/%Y", False),
        (("01/02/2024", "03/04/2023"), "%m/%d/%Y", True),
        (("5 Jan 2024", "17 Mar 2023"), "%d %b %Y", False),
        (("January 5, 2024", "March 17, 2023"), "%B %d, %Y", False),
        (("2024-01-31T10:30:00Z", "2024-01-31 11:00"), "%Y-%m-%d", False),
        (("2024-05", "2024-06"), "%Y-%m", False),
    ],
)
def test_the_format_of_most_cells_is_taken(
    cells: tuple[str, ...], date_format: str, is_ambiguous: bool
) -> None:
    assert infer_date_format(dates(*cells)) == (date_format, is_ambiguous)


def test_one_late_day_tells_which_number_is_the_month() -> None:
    common = [f"0{1 + i % 9}/0{1 + i % 8}/20{10 + i % 15}" for i in range(400)]
    assert infer_date_format(dates(*common)) == ("%m/%d/%Y", True)
    assert infer_date_format(dates(*common, "25/01/2024")) == ("%d/%m/%Y", False)


@pytest.mark.parametrize("cells", [("1.5", "2.5"), ("a", "b"), ("12-34", "56-78"), ("10:30",), ()])
def test_other_words_are_no_dates(cells: tuple[str, ...]) -> None:
    assert infer_date_format(dates(*cells)) is None


@pytest.mark.parametrize(
    ("cell", "moment"),
    [
        ("1970-01-01", datetime(1970, 1, 1)),
        ("2024-02-29", datetime(2024, 2, 29)),
        ("2024-02-29 18:45", datetime(2024, 2, 29, 18, 45)),
        ("2024-02-29T18:45:30.5Z", datetime(2024, 2, 29, 18, 45, 30, 500_000)),
        ("2024-02-29 12:10 AM", datetime(2024, 2, 29, 0, 10)),
        ("2024-02-29 6:45 pm", datetime(2024, 2, 29, 18, 45)),
        ("2024-02-29T18:45+02:00", datetime(2024, 2, 29, 16, 45)),
        ("2024-02-29T18:45-0530", datetime(2024, 3, 1, 0, 15)),
    ],
)
def test_days_are_those_of_the_calendar_in_universal_time(cell: str, moment: datetime) -> None:
    days = (moment - datetime(1970, 1, 1)).total_seconds() / 86_400
    assert read_dates(dates(cell), "%Y-%m-%d").tolist() == [pytest.approx(days, abs=1e-9)]


def test_parts_are_those_of_the_calendar() -> None:
    draw = np.random.default_rng(0)
    seconds = draw.integers(-(10**9), 2 * 10**9, 500)
    moments = pd.Series(pd.to_datetime(seconds, unit="s"))
    days = seconds / 86_400
    expected = {"month": moments.dt.month, "day": moments.dt.day, "weekday": moments.dt.day_of_week}
    for part, values in expected.items():
        assert take_date_part(days, part).tolist() == values.tolist()
    hours = moments.dt.hour + moments.dt.minute / 60 + moments.dt.second / 3600
    np.testing.assert_allclose(take_date_part(days, "hour"), hours, atol=1e-6)
    assert take_date_part(days, DATE_PARTS[0]).tolist() == days.tolist()
    blank = np.array([np.nan, 0.0])
    assert all(np.isnan(take_date_part(blank, part)[0]) for part in DATE_PARTS)


def test_only_parts_that_vary_are_inputs() -> None:
    days = read_dates(dates("2024-01-01", "2024-01-08", None), "%Y-%m-%d")
    assert list_date_parts(days) == ["days", "day"]  # both are Mondays of January, without a time
    columns = fit_date_columns(pd.Series(days, name="day"), "%Y-%m-%d")
    assert [column.title for column in columns] == [
        "day (days since 1970-01-01)",
        "day (day of the month)",
    ]
    encoded = TablePreprocessor(columns=tuple(columns))(pd.DataFrame({"day": days}))
    assert encoded.shape == (3, 3)  # and one flag of blanks
    assert np.isfinite(encoded).all()


def test_a_date_is_shown_as_it_was() -> None:
    cells = ["2024-02-29", "1969-12-31 23:59:30", ""]
    days = read_dates(dates(*cells[:2], None), "%Y-%m-%d")
    assert [format_date(day) for day in days] == cells


def test_a_cell_that_is_no_date_is_named_with_the_format(tmp_path: Path) -> None:
    cells = ["31.01.2024", "30.02.2024", *[f"{i}.03.2024" for i in range(1, 21)]]
    rows = "".join(f"{cell},{'ab'[i % 2]}\n" for i, cell in enumerate(cells))
    path = written(tmp_path / "a.csv", f"day,y\n{rows}")
    said = (
        "column 'day' holds dates, but '30.02.2024' in row 2 is no date; "
        "write it as day.month.year, leave it blank, or use --category day"
    )
    with pytest.raises(InputError, match=said):
        read(path, "y")


def test_a_table_with_dates_is_read_and_says_how(tmp_path: Path) -> None:
    rows = "".join(f"0{1 + i % 9}/0{1 + i % 7}/2024,{'ab'[i % 2]}\n" for i in range(30))
    source = read(written(tmp_path / "a.csv", f"day,y\n{rows}"), "y")
    assert source.kinds == {"day": "date"} and source.date_formats == {"day": "%m/%d/%Y"}
    assert "date columns: 'day'" in source.notes
    ambiguous = "column 'day': dates are read as month/day/year; write them as year-month-day if"
    assert any(note.startswith(ambiguous) for note in source.notes)
    assert source.make_preview(0).fields == {"day": "2024-01-01"}
