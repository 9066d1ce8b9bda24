from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from user_data import read, table, written

from l2i.errors import InputError
from l2i.fit.options import ReadOptions
from l2i.fit.readers.source import read_source


def wrong(path: Path, *target: str, **options: object) -> str:
    """The one line that wrong input ends with."""
    with pytest.raises(InputError) as error:
        read(path, *target, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_table_has_its_kinds_inferred_and_blank_targets_unlabelled(tmp_path: Path) -> None:
    source = read(table(tmp_path), "kind", text=("note",))
    assert source.target_names == ("kind",) and not source.points
    assert source.kinds == {"age": "number", "city": "category", "note": "text"}
    assert list(source.inputs.columns) == ["age", "city", "note"]
    assert source.classes == ("cat", "dog")
    assert (
        source.given_labels[:7].tolist() == [1, -1, -1, 0, -1, -1, 1]
        and source.given_labels.dtype == np.int64
    )
    assert source.ids[0] == "1" and source.ids[-1] == "60"
    assert "20 labelled rows, 40 unlabelled" in source.notes
    assert (
        "numeric columns: 'age'" in source.notes and "categorical columns: 'city'" in source.notes
    )
    assert source.inputs["age"].dtype == np.float64


def test_an_unlikely_category_is_left_out_with_a_note_that_names_the_option(tmp_path: Path) -> None:
    source = read(table(tmp_path), "kind")
    assert "note" not in source.kinds
    assert (
        "ignored (60 distinct values in 60 rows): 'note'; use --text note to read it as text"
        in source.notes
    )


@pytest.mark.parametrize(("separator", "name"), [(";", "a.csv"), ("\t", "a.tsv"), ("|", "a.txt")])
def test_the_separator_is_found_in_the_header(tmp_path: Path, separator: str, name: str) -> None:
    plain = table(tmp_path, name="plain.csv").read_text().replace(",", separator)
    source = read(written(tmp_path / name, plain), "kind")
    assert source.kinds == {"age": "number", "city": "category"}
    assert any(note.startswith("separator: ") for note in source.notes)


def test_a_given_separator_is_used_and_one_of_two_characters_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a:b,c\n1:x\n2:y\n3:\n")
    assert list(read(path, "b,c", separator=":").inputs.columns) == ["a"]
    assert "--separator '::' is not a single character" in wrong(path, "b,c", separator="::")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
def test_marks_of_encodings_at_the_start_are_understood(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path / "a.csv", "größe,y\n1,ä\n2,ö\n3,\n", encoding)
    source = read(path, "y")
    assert source.classes == ("ä", "ö") and list(source.inputs.columns) == ["größe"]


def test_another_encoding_is_named_with_the_option_that_helps(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "größe,y\n1,a\n2,b\n", "latin-1")
    source = read(path, "y")
    assert list(source.inputs.columns) == ["größe"]
    note = "encoding: Windows-1252, as the file is not UTF-8; choose another with --encoding"
    assert note in source.notes
    message = "is not valid UTF-8; use --encoding latin-1, or save it as UTF-8"
    assert message in wrong(path, "y", encoding="utf-8")
    assert list(read(path, "y", encoding="latin-1").inputs.columns) == ["größe"]
    assert "unknown encoding 'latni'" in wrong(path, "y", encoding="latni")


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("utf-16-le", "size"), ("utf-16-be", "size"), ("latin-1", "größe\x81"), ("cp1252", "size €")],
)
def test_encodings_are_told_by_content(tmp_path: Path, encoding: str, text: str) -> None:
    path = written(tmp_path / "a.csv", f"{text},y\n1,a\n2,b\n3,\n", encoding)
    source = read(path, "y")
    assert list(source.inputs.columns) == [text] and source.classes == ("a", "b")
    assert any(note.startswith("encoding: ") for note in source.notes)


def test_wrong_bytes_far_from_the_header_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n" + b"1,a\n" * 50_000 + b"2,\xff\n")
    assert "is not valid UTF-8" in wrong(path, "y", encoding="utf-8")
    assert read(path, "y").classes == ("a", "ÿ")


def test_blanks_of_all_spellings_count_as_blank_and_are_said(tmp_path: Path) -> None:
    cells = ["", "NA", "N/A", "nan", "NaN", "null", "None", "?", "  "]
    rows = [f"{cell},{i % 2}" for i, cell in enumerate(cells)] + ["1,0", "2,1"]
    source = read(written(tmp_path / "a.csv", "x,y\n" + "\n".join(rows) + "\n"), "y")
    assert source.inputs["x"].isna().sum() == len(cells)
    assert "blank cells are filled with the mean and flagged: 'x' (9)" in source.notes
    assert any(
        note.startswith("cells treated as blank:") and "'?' (1)" in note for note in source.notes
    )


def test_parquet_is_read_like_csv_and_keeps_whole_numbers_whole(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "n": [1.5, None, 3.0, 4.0],
            "flag": [True, False, None, True],
            "code": pd.array([7, None, 7, 9], dtype="Int64"),
            "big": [2**60, 2**60 + 1, 2**60 + 2, 2**60 + 3],
            "day": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-01", "2024-01-02"]),
            "bag": [[1], [2], [3], [4]],
            "y": [0.0, 1.0, None, 1.0],
        },
        index=[5, 6, 7, 9],
    )
    frame.to_parquet(tmp_path / "a.parquet")
    source = read(tmp_path / "a.parquet", "y", category=("code",), id="big")
    assert source.kinds == {"n": "number", "flag": "category", "code": "category", "day": "date"}
    assert source.inputs["code"].tolist() == ["7", "", "7", "9"]
    assert source.inputs["flag"].tolist() == ["True", "False", "", "True"]
    assert source.ids[1] == str(2**60 + 1)
    assert source.classes == ("0", "1") and source.given_labels.tolist() == [0, 1, -1, 1]
    assert any("neither strings nor numbers): 'bag'" in note for note in source.notes)
    assert any("index written by pandas" in note for note in source.notes)


def test_columns_without_information_are_left_out_and_named(tmp_path: Path) -> None:
    rows = [f"{row},{row + 1},7,,{row % 5},{row},{row % 2}" for row in range(20)]
    text = ",PassengerId,same,empty,x,count,y\n" + "\n".join(rows) + "\n"
    source = read(written(tmp_path / "a.csv", text), "y")
    assert list(source.kinds) == ["x"]
    assert "ignored (ids; keep with --number): 'Unnamed: 0', 'PassengerId'" in source.notes
    assert "ignored (row numbers; keep with --number): 'count'" in source.notes
    kept = read(tmp_path / "a.csv", "y", number=("count", "PassengerId"))
    assert list(kept.kinds) == ["PassengerId", "x", "count"]
    assert "ignored (constant): 'same'" in source.notes
    assert "ignored (blank in every row): 'empty'" in source.notes


def test_numbers_can_be_read_as_categories_and_columns_ignored(tmp_path: Path) -> None:
    rows = [f"{row % 3},{row},{row % 2}" for row in range(20)]
    path = written(tmp_path / "a.csv", "zone,x,y\n" + "\n".join(rows) + "\n")
    source = read(path, "y", category=("zone",), ignore=("x",))
    assert source.kinds == {"zone": "category"} and source.inputs["zone"].tolist()[:4] == [
        "0",
        "1",
        "2",
        "0",
    ]


def test_decimal_commas_are_read_where_the_comma_separates_nothing(tmp_path: Path) -> None:
    source = read(written(tmp_path / "a.csv", "x;y\n1,5;a\n-2,25;b\n3;\n"), "y")
    assert source.inputs["x"].tolist() == [1.5, -2.25, 3.0]
    assert "decimal commas read as decimal points: 'x'" in source.notes


def test_mostly_numbers_with_some_words_is_an_error_that_names_the_cell_and_the_options(
    tmp_path: Path,
) -> None:
    rows = [f"{'oops' if row == 6 else row},{row % 2}" for row in range(20)]
    path = written(tmp_path / "a.csv", "x,y\n" + "\n".join(rows) + "\n")
    message = wrong(path, "y")
    assert "column 'x' mixes numbers and text (1 cell, first 'oops' in row 7)" in message
    assert "--category x, --text x or --ignore x" in message
    assert read(path, "y", category=("x",)).kinds == {"x": "category"}


def test_mostly_words_with_some_numbers_are_categories(tmp_path: Path) -> None:
    rows = [f"{'7' if row % 3 == 0 else 'word'},{row % 2}" for row in range(20)]
    assert read(written(tmp_path / "a.csv", "x,y\n" + "\n".join(rows) + "\n"), "y").kinds == {
        "x": "category"
    }


def test_ids_come_from_a_column_and_must_differ(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "k,x,y\nu,1,a\nv,2,b\nw,3,\n")
    assert read(path, "y", id="k").ids == ["u", "v", "w"] and list(
        read(path, "y", id="k").kinds
    ) == ["x"]
    assert "id 'u' in row 3 is a duplicate" in wrong(
        written(tmp_path / "b.csv", "k,x,y\nu,1,a\nv,2,b\nu,3,\n"), "y", id="k"
    )
    assert "blank in row 2" in wrong(
        written(tmp_path / "c.csv", "k,x,y\nu,1,a\n,2,b\nu,3,\n"), "y", id="k"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("x,y\n", "has a header but no rows"),
        ("x,y,x\n1,a,2\n", "two columns named 'x'"),
        ("x,y\n1,a\n2,b,3\n", "line 3: 3 cells, expected 2"),
        ("x,y\n1,a,9\n2,b,3\n", "line 2: more cells than the header"),
        ('x,y\n1,"a\n2,b\n', "cannot be parsed as a table"),
        ("x,y\n1,a\ninf,b\n", "column 'x' contains infinity in row 2"),
        ("y\na\nb\n", "no input columns are left"),
        ("x,y\n1,a\n1,b\n", "no input columns are left: ignored (constant): 'x'"),
    ],
)
def test_tables_that_are_wrong_are_named_with_what_is_wrong(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in wrong(written(tmp_path / "a.csv", text), "y")


def test_a_missing_target_lists_the_first_and_last_columns(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(30)]
    path = written(tmp_path / "a.csv", ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    message = wrong(path)
    assert message.startswith("--target must name the column of ")
    assert message.endswith("'c0', 'c1', 'c2', 'c3', 'c4', …, 'c27', 'c28', 'c29'")


@pytest.mark.parametrize("word", ["-1", "Unknown"])
def test_a_class_that_may_mean_unlabelled_is_pointed_out(word: str, tmp_path: Path) -> None:
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(["a", "b", word, word] * 5))
    source = read(written(tmp_path / "a.csv", f"x,kind\n{rows}"), "kind")
    (warning,) = [note for note in source.notes if note.startswith("warning: ")]
    assert f"10 labels are '{word}'; if it means unlabelled, use --missing {word}" in warning
    source = read(tmp_path / "a.csv", "kind", missing=(word,))
    assert source.classes == ("a", "b") and (source.given_labels == -1).sum() == 10


def test_a_column_that_is_not_there_has_the_nearest_named(tmp_path: Path) -> None:
    assert "--target 'knid'" in wrong(table(tmp_path), "knid")
    assert "perhaps you meant 'kind'" in wrong(table(tmp_path), "knid")
    assert "it has 'age', 'city'" in wrong(table(tmp_path), "kind", text=("zzz",))


def test_a_column_is_named_for_one_purpose_alone(tmp_path: Path) -> None:
    assert "'kind' is named twice, by --target and --category" in wrong(
        table(tmp_path), "kind", category=("kind",)
    )
    assert "'kind' is named twice, by --target and --target" in wrong(
        table(tmp_path), "kind", "kind"
    )


def test_options_that_could_do_nothing_are_refused(tmp_path: Path) -> None:
    assert "--skip-unreadable applies only to images" in wrong(
        table(tmp_path), "kind", skip_unreadable=True
    )


def test_what_is_not_there_or_of_no_known_kind_is_said(tmp_path: Path) -> None:
    assert "none.csv was not found; check the path" in wrong(tmp_path / "none.csv", "y")
    assert "cannot be read (File name too long)" in wrong(tmp_path / ("a" * 300), "y")
    message = wrong(written(tmp_path / "a.doc", "x"), "y")
    assert "unsupported format" in message and ".parquet" in message


def test_a_damaged_parquet_is_said(tmp_path: Path) -> None:
    assert "is damaged, or not a Parquet file" in wrong(
        written(tmp_path / "a.parquet", "PAR1 not at all"), "y"
    )


def test_a_sample_shows_the_cells_cut(tmp_path: Path) -> None:
    rows = [f"{row}.25,{'c' * 300},{'long ' * 200}{row},{row % 2}" for row in range(3)] + [
        "1,d,text,0",
        "2,d,,1",
    ]
    path = written(tmp_path / "a.csv", "x,c,t,y\n" + "\n".join(rows) + "\n")
    source = read(path, "y", text=("t",), category=("c",))
    fields = source.make_preview(1).fields
    assert fields is not None and list(fields) == ["x", "c", "t"] and fields["x"] == "1.25"
    assert (len(fields["c"]), len(fields["t"])) == (200, 400) and fields["t"].endswith("…")
    assert source.make_preview(4).fields == {"x": "2", "c": "d", "t": ""}


def test_messages_and_notes_are_one_line_whatever_cells_and_names_hold(tmp_path: Path) -> None:
    rows = [f'{row},"two\nlines {row}",{row % 2}' for row in range(8)]
    text = 'x,"a\nname",y\n' + "\n".join(rows) + "\n"
    notes = read(written(tmp_path / "a.csv", text), "y").notes
    assert any("'a name'; use --text a name" in note for note in notes) and not any(
        "\n" in note for note in notes
    )
    assert "'bad cell' in row 9" in wrong(
        written(tmp_path / "b.csv", text + '"bad\ncell",b,1\n'), "y"
    )


def test_reading_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    path = table(tmp_path)
    read_source(str(path), ReadOptions(target=("kind",)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.csv"]
