"""Cells of a table as people write them: money, shares, words for missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from user_data import read, written

from l2i.errors import InputError
from l2i.fit.preprocess import TablePreprocessor, fit_column
from l2i.fit.readers.cells import clean_cells, remove_units
from l2i.fit.readers.new_rows import read_new


def column(*cells: str | None) -> pd.Series:
    return pd.Series(cells, dtype=object, name="c")


def clean(*cells: str | None, **options: object) -> list[object]:
    frame = pd.DataFrame({"c": column(*cells)})
    table = clean_cells(frame, lambda line: None, **options)  # type: ignore[arg-type]
    return [None if pd.isna(cell) else cell for cell in table.frame["c"]]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (("$1,234.50", "-$20", "($7.25)", "$ 3"), ["1234.50", "-20", "-7.25", "3"]),
        (("45%", "7.5 %", "-3%"), ["45", "7.5", "-3"]),
        (("1 234 €", "5€", "20,000.5 €"), ["1234", "5", "20000.5"]),
        (("EUR 12", "3 eur"), ["12", "3"]),
        (("1,234", "12", "1,234,567.8"), ["1234", "12", "1234567.8"]),
        (("1'234", "2'000'000"), ["1234", "2000000"]),
        (("5", "$6", None), ["5", "6", None]),
    ],
)
def test_money_shares_and_thousands_are_numbers(
    cells: tuple[str, ...], numbers: list[str | None]
) -> None:
    assert clean(*cells) == numbers


def test_points_separate_thousands_where_commas_separate_decimals() -> None:
    cells = ("1.234,50 €", "20 €", "-7,25 €")
    assert clean(*cells, separator=";") == ["1234.50", "20", "-7.25"]


@pytest.mark.parametrize(
    ("separator", "cells", "numbers"),
    [
        (";", ("1,5", "2"), ["1.5", "2"]),
        (";", ("1,234", "12,500"), ["1.234", "12.500"]),
        ("\t", ("1,5", "1,234"), ["1.5", "1.234"]),
        ("\t", ("950", "1,234", "1,234,567"), ["950", "1234", "1234567"]),
        ("|", ("12,500", "1,234"), ["12500", "1234"]),
    ],
)
def test_commas_before_three_digits_separate_thousands_except_beside_semicolons(
    separator: str, cells: tuple[str, ...], numbers: list[str]
) -> None:
    assert clean(*cells, separator=separator) == numbers


def test_points_separate_thousands_in_a_file_with_decimal_commas(tmp_path: Path) -> None:
    lines = [f"{row},5;{1 + row % 3}.2{row % 10}1;{row % 2}" for row in range(20)]
    path = written(tmp_path / "t.csv", "\n".join(["a;b;y", *lines, "1,5;754;1"]) + "\n")
    source = read(path, "y")
    assert source.inputs["b"].tolist()[:3] == [1201, 2211, 3221]
    assert any("read as numbers: 'b' ('1.201' is 1201)" in note for note in source.notes)
    plain = written(tmp_path / "p.csv", path.read_text().replace(",5", ""))
    assert read(plain, "y").inputs["b"].tolist()[:3] == [1.201, 2.211, 3.221]


@pytest.mark.parametrize(("cell", "odd"), [("$49,8{}", "n/k"), ("4{}.5%", "?!"), ("4{}5.5", "x")])
def test_an_odd_cell_among_numbers_of_a_target_is_named(
    cell: str, odd: str, tmp_path: Path
) -> None:
    lines = [f'{row},"{cell.format(row + 10)}"' for row in range(30)]
    path = written(tmp_path / "t.csv", "\n".join(["a,y", *lines, f'3,"{odd}"']) + "\n")
    with pytest.raises(InputError, match="mixes numbers and text"):
        read(path, "y")


def test_classes_that_may_be_typos_are_named(tmp_path: Path) -> None:
    cells = ["Adelie", "Gentoo"] * 5 + ["adelie", "Gento", "Chinstrap"]
    lines = [f"{row},{cell}" for row, cell in enumerate(cells)]
    notes = read(written(tmp_path / "t.csv", "\n".join(["a,y", *lines, "3,"])), "y").notes
    (found,) = [note for note in notes if "typos" in note]
    assert found == "warning: classes that may be typos: 'Gento' of 'Gentoo', 'adelie' of 'Adelie'"


def test_groups_that_were_forgotten_are_pointed_out(tmp_path: Path) -> None:
    lines = [f"{row // 5},{row % 7},{'' if row >= 20 else row % 2}" for row in range(100)]
    path = written(tmp_path / "t.csv", "\n".join(["who,a,y", *lines]) + "\n")
    (note,) = [note for note in read(path, "y").notes if "belong together" in note]
    assert "'who'" in note and "use --group who" in note and "'a'" not in note
    assert not any("belong together" in note for note in read(path, "y", group="who").notes)


def test_parentheses_are_minus_signs_if_there_are_both() -> None:
    assert clean("12.50", "(3.00)", "7") == ["12.50", "-3.00", "7"]
    assert clean("12.50", "3.00)", "7") == ["12.50", "3.00)", "7"]


def test_names_and_classes_stay_as_they_are(tmp_path: Path) -> None:
    lines = ["name;lot;size;share;kind"]
    for row in range(12):
        lines.append(f"{row} 000;{row % 3},5;{row},5;{10 * (row % 3)}%;{1 + row % 2}0%")
    path = written(tmp_path / "t.csv", "\n".join(lines) + "\n")
    source = read(path, "kind", id="name", group="lot", category=("share",))
    assert source.ids[:2] == ["0 000", "1 000"] and source.classes == ("10%", "20%")
    assert source.groups is not None and source.groups.tolist()[:2] == ["0,5", "1,5"]
    assert source.inputs["share"].tolist()[:2] == ["0%", "10%"]
    assert source.inputs["size"].tolist()[:2] == [0.5, 1.5]


def test_a_target_of_shares_is_a_number_if_it_has_fractions(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a,rate\n" + "".join(f"{i},{i}.5%\n" for i in range(9)))
    assert read(path, "rate").given_labels[:2].tolist() == [[0.5], [1.5]]
    path = written(tmp_path / "t.csv", "a,rate\n" + "".join(f"{i},{i % 3}%\n" for i in range(9)))
    assert read(path, "rate").classes == ("0%", "1%", "2%")
    numbers = read(path, "rate", task="regression").given_labels
    assert numbers[:3].tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("cell", ["10%", "unknown", "1,000"])
def test_a_category_of_new_rows_is_the_one_that_was_fitted(cell: str, tmp_path: Path) -> None:
    cells = [cell, "other", "third"] * 8
    lines = [f'{row},"{c}",{row % 2}' for row, c in enumerate(cells)]
    source = read(written(tmp_path / "t.csv", "\n".join(["a,c,y", *lines, ""])), "y")
    columns = tuple(fit_column(source.inputs[n], kind) for n, kind in source.kinds.items())
    inputs = TablePreprocessor(columns=columns)
    new = written(tmp_path / "new.csv", f'a,c\n3,"{cell}"\n4,"{cell}"\n')
    rows = read_new(str(new), source.options, inputs)
    assert rows.inputs["c"].tolist() == [cell, cell] and "new categor" not in str(rows.notes)


@pytest.mark.parametrize(
    "cells",
    [
        ("$5", "5€"),  # what they are worth depends on the day
        ("5%", "0.05"),  # not both a share and a per cent
        ("a", "$5", "b", "c"),
        ("1,2", "3,4"),  # a list, or decimals of another country
        ("12-34", "56-78"),
        ("12 kg", "3 kg"),
        ("7", "8"),
    ],
)
def test_other_words_stay_as_they_are(cells: tuple[str, ...]) -> None:
    assert remove_units(column(*cells)) is None
    assert clean(*cells) == list(cells)


def test_words_for_missing_are_blank_among_numbers_and_categories_elsewhere() -> None:
    assert clean("1", "unknown", "-", "2.5", "n.a.") == ["1", None, None, "2.5", None]
    assert clean("$1", "missing", "$2") == ["1", None, "2"]
    assert clean("red", "unknown", "blue") == ["red", "unknown", "blue"]
    assert clean("unknown", "-") == ["unknown", "-"]
    assert clean("1", "unknown", "many") == ["1", "unknown", "many"]


def test_markers_of_the_user_are_blank_in_every_column() -> None:
    assert clean("1", "-1", "-1.0", "-10", missing=("-1",)) == ["1", None, None, "-10"]
    assert clean("a", "unknown", missing=("unknown",)) == ["a", None]
    frame = pd.DataFrame({"n": [1.0, -999.0, 3.0]})
    cleaned = clean_cells(frame, lambda line: None, missing=("-999",))
    assert cleaned.frame["n"].isna().tolist() == [False, True, False]
    assert cleaned.notes == ("cells treated as blank: '-999.0' (1)",)


def test_what_was_read_as_numbers_is_said_with_an_example(tmp_path: Path) -> None:
    rows = [f'"${i},000",{i % 7}%,{"ab"[i % 2]}\n' for i in range(1, 31)]
    source = read(written(tmp_path / "a.csv", "price,share,y\n" + "".join(rows)), "y")
    assert source.kinds == {"price": "number", "share": "number"}
    assert "read as numbers: 'price' ('$1,000' is 1000), 'share' ('1%' is 1)" in source.notes
    assert source.inputs["price"].tolist()[:2] == [1000.0, 2000.0]


def test_truth_values_are_categories_however_they_are_written(tmp_path: Path) -> None:
    rows = "".join(
        f"{i % 5},{['yes', 'no', 'TRUE', 'False'][i % 4]},{'ab'[i % 2]}\n" for i in range(20)
    )
    source = read(written(tmp_path / "a.csv", f"x,flag,y\n{rows}"), "y")
    assert source.kinds["flag"] == "category"
