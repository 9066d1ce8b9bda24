"""Label files: cells that a spreadsheet runs as formulas are warned of, or escaped."""

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from l2i.errors import InputError
from l2i.fit.label_file import check_escape_formulas, find_formulas, to_csv, write_label_file

FORMULAS = ("=1+1", "+cmd|' /c calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1", "-", "+", "-.")
HARMLESS = ("", "a", "a=1", "-1", "+1.5", "-.5", "-1e-9", "+2E+3", "'=1", " =1", "1-2", "3", "-0")


def test_formulas_are_told_from_numbers_and_words() -> None:
    frame = pd.DataFrame({"id": [*FORMULAS, *HARMLESS], "value": -1.5})
    assert find_formulas(frame) == list(FORMULAS)


def test_names_of_columns_may_be_formulas_too() -> None:
    assert find_formulas(pd.DataFrame({"=x": [1], "y": ["a"]})) == ["=x"]


def test_values_stay_as_they_are_and_a_warning_names_the_first() -> None:
    frame = pd.DataFrame({"id": ["=HYPERLINK(0)", "-1", "@x"], "class": ["a", "b", "c"]})
    heard: list[str] = []
    text = to_csv(frame, heard.append)
    assert text == frame.to_csv(index=False)
    (line,) = heard
    assert line.startswith("warning: 2 cells begin with =, +, - or @, such as '=HYPERLINK(0)'")
    assert "use --escape-formulas" in line
    to_csv(frame[["class"]], heard.append)
    assert len(heard) == 1


def test_escaped_formulas_have_an_apostrophe_and_nothing_else_changes() -> None:
    frame = pd.DataFrame({"=x": ["=1+1", "-1", "a"], "y": [-1.5, 0.0, 2.0]})
    heard: list[str] = []
    assert to_csv(frame, heard.append, escape_formulas=True) == (
        "'=x,y\n'=1+1,-1.5\n-1,0.0\na,2.0\n"
    )
    assert heard == []


def test_parquet_holds_formulas_as_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["=1"]})
    heard: list[str] = []
    write_label_file(tmp_path / "x.parquet", frame, heard.append)
    assert pd.read_parquet(tmp_path / "x.parquet")["id"].tolist() == ["=1"] and not heard
    with pytest.raises(InputError, match="--escape-formulas applies only to CSV"):
        check_escape_formulas(tmp_path / "x.parquet", escape_formulas=True)
    check_escape_formulas(tmp_path / "x.csv", escape_formulas=True)


@pytest.mark.parametrize("sign", "=@\t\r＝＋－＠+-")
def test_every_sign_that_begins_a_formula_is_known(sign: str) -> None:
    frame = pd.DataFrame({"id": [f"{sign}A1", f"A1{sign}"]})
    assert find_formulas(frame) == [f"{sign}A1"]
    text = to_csv(frame, print, escape_formulas=True)
    assert text.replace('"', "") == f"id\n'{sign}A1\nA1{sign}\n"


def test_a_long_formula_is_cut_in_the_warning_and_one_is_no_plural() -> None:
    heard: list[str] = []
    to_csv(pd.DataFrame({"id": ["=" + "x" * 39, "y"]}), heard.append)
    assert heard[0].startswith(f"warning: 1 cell begins with =, +, - or @, such as '={'x' * 39}':")
    heard.clear()
    to_csv(pd.DataFrame({"id": ["=" + "x" * 40, "y"]}), heard.append)
    assert f"'={'x' * 38}…'" in heard[0]


@pytest.mark.parametrize("name", ["x.csv", "x.CSV"])
def test_a_csv_file_has_its_formulas_escaped_on_request(name: str, tmp_path: Path) -> None:
    frame, heard = pd.DataFrame({"id": ["=1", "ä"], "p": [0.5, -1.0]}), list[str]()
    write_label_file(tmp_path / name, frame, heard.append, escape_formulas=True)
    assert (tmp_path / name).read_text(encoding="utf-8") == "id,p\n'=1,0.5\nä,-1.0\n"
    assert not heard
    write_label_file(tmp_path / name, frame, heard.append)
    assert (tmp_path / name).read_text(encoding="utf-8") == "id,p\n=1,0.5\nä,-1.0\n"
    assert len(heard) == 1


def test_formulas_are_not_escaped_in_parquet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--escape-formulas applies only to CSV"):
        write_label_file(
            tmp_path / "x.parquet", pd.DataFrame({"id": ["=1"]}), print, escape_formulas=True
        )
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("cell", ["a\rb", "\rA1", "a\r\nb", "a\nb", 'say "a"', "a,b"])
def test_every_cell_is_read_as_it_was_written(cell: str) -> None:
    frame = pd.DataFrame({"id": [cell, "plain"], "value": [0.5, -1.0], "n": [1, 2]})
    rows = list(csv.reader(io.StringIO(to_csv(frame, lambda line: None), newline="")))
    assert rows == [["id", "value", "n"], [cell, "0.5", "1"], ["plain", "-1.0", "2"]]


def test_the_name_that_was_given_decides_the_format(tmp_path: Path) -> None:
    """A store of contents may have names without suffixes behind its links."""
    frame = pd.DataFrame({"id": ["a"]})
    write_label_file(tmp_path / "blob", frame, lambda line: None, shown="labels.csv")
    assert (tmp_path / "blob").read_bytes() == b"id\na\n"
    write_label_file(tmp_path / "blob", frame, lambda line: None, shown="labels.parquet")
    assert (tmp_path / "blob").read_bytes().startswith(b"PAR1")
