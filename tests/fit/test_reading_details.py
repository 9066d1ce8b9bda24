"""Cells, columns, arrays and images as they are read, at the borders of the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from user_data import class_folders, picture, read, written

from l2i.errors import InputError
from l2i.fit.options import ReadOptions
from l2i.fit.readers.columns import (
    _infer_kind,
    convert_columns,
    find_blank,
    infer_columns,
    select_text_columns,
    to_floats,
    to_strings,
)
from l2i.fit.readers.delimited import read_table
from l2i.fit.readers.folders import list_class_files, list_image_files, resolve_listed_files
from l2i.fit.readers.image_files import ImageSpec, _to_eight_bits
from l2i.fit.readers.images import (
    _targets_are_points,
    choose_side,
    points_from_square,
    points_to_square,
    read_array_images,
    read_new_array_images,
)
from l2i.fit.readers.npz import parse_npz_targets, to_channels_first, to_image_array
from l2i.fit.readers.source import read_source
from l2i.fit.readers.targets import read_targets

HERE = Path("a.npz")


def series(values: list[Any], name: str = "c") -> pd.Series:
    return pd.Series(values, name=name, dtype=object)


def kind_of(values: list[Any], forced: Any = None, name: str = "c") -> Any:
    kind = _infer_kind(series(values, name), forced)
    return kind if isinstance(kind, str) else kind.reason


# Columns


def test_a_category_has_each_value_twice_on_average() -> None:
    assert kind_of(["a", "b"] * 2) == "category"
    assert kind_of(["a", "b", "a"]).startswith("ignored (2 distinct values in 3 rows)")
    many = [f"v{i}" for i in range(101)]
    assert kind_of(many * 2) == "category"
    frame = pd.DataFrame({"c": many * 2, "x": ["1", "2"] * 101}, dtype=object)
    notes = infer_columns(frame).notes
    limit = "the 100 most frequent are kept, others treated as unknown"
    assert f"column 'c' has 101 categories: {limit}" in notes
    assert kind_of(["a", "b", None, None]) == "category"  # blank rows are rows


def test_a_word_of_its_own_in_every_row_is_a_name_and_a_sentence_may_be_text() -> None:
    assert kind_of(["ann", "bob", "cy"]) == "a different name in every row; keep with --text"
    reviews = [f"a film of {word}" for word in ("joy", "war", "old")]
    assert kind_of(reviews).startswith("ignored (3 distinct values in 3 rows): 'c'; use --text c")


def test_a_column_is_mixed_unless_more_than_half_of_its_cells_are_words() -> None:
    with pytest.raises(InputError, match="mixes numbers and text"):
        kind_of(["1", "a", "2", "a", None])
    assert kind_of(["1", "a", "2", "a", "a", "a"]) == "category"


def test_a_constant_tells_nothing_unless_some_rows_are_blank() -> None:
    assert kind_of(["7", "7"]) == "constant"
    assert kind_of(["7", "7"], "category") == "constant"
    assert kind_of(["7", None]) == "number"
    assert kind_of(["7"]) == "number"  # one row is no evidence
    assert kind_of([None, None]) == "blank in every row"
    with pytest.raises(InputError, match="--text 'c': the column is blank in every row"):
        kind_of([None], "text")


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        (["0", "1", "2"], "id", "ids"),
        (["3", "1", "2"], "RowId", "ids"),
        (["903", "17", "4711"], "account number", "ids"),
        (["903", "17", "4711"], "number of rooms", "number"),
        (["0", "2", "1"], "width", "number"),
        (["0", "1", None], "id", "number"),
        (["0", "1", "1"], "index", "number"),
        (["1.5", "2.5", "3.5"], "id", "number"),
        (["903", "17", "4711"], "heat_index", "number"),
        (["903", "17", "4711"], "row_index", "ids"),
        (["903", "17", "4711"], "phone", "ids"),
        ([str(i + i // 3) for i in range(20)], "width", "row numbers"),  # without every fourth
        ([str(3 * i + 1) for i in range(20)], "dose", "number"),  # sorted, and decisive
        ([str(i + i // 3) for i in range(20)], "year", "number"),
        ([str(i + i // 3) for i in range(19)], "width", "number"),
        ([str(50 * i) for i in range(20)], "width", "number"),
    ],
)
def test_ids_are_left_out_by_name_and_row_numbers_by_growing(
    values: list[Any], name: str, kind: str
) -> None:
    assert kind_of(values, name=name) == kind


def test_columns_named_by_the_user_are_read_as_they_say() -> None:
    frame = pd.DataFrame({"n": ["1", "2", "3"], "w": ["a", "b", "c"]}, dtype=object)
    inputs = infer_columns(frame, text=["w"], category=["n"])
    assert inputs.kinds == {"n": "category", "w": "text"}
    assert inputs.frame["n"].tolist() == ["1", "2", "3"]


def test_cells_become_numbers_names_and_texts() -> None:
    frame = pd.DataFrame(
        {"n": ["1.5", None, "-2e3"], "c": ["1.0", None, "+2.00"], "t": ["1.0", None, "2.5"]},
        dtype=object,
    )
    table = convert_columns(frame, {"t": "text", "n": "number", "c": "category"}, {})
    assert list(table.columns) == ["t", "n", "c"]
    assert table["n"].tolist()[::2] == [1.5, -2000.0] and np.isnan(table["n"][1])
    assert table["c"].tolist() == ["1", "", "+2"]  # programs write 1 as 1.0 beside blanks
    assert table["t"].tolist() == ["1.0", "", "2.5"]
    assert [int(find_blank(table[name]).sum()) for name in "tnc"] == [1, 1, 1]
    assert to_strings(series([None, np.nan, pd.NA, "x", 3])) == ["", "", "", "x", "3"]


def test_words_and_infinities_among_numbers_are_named_by_their_row() -> None:
    with pytest.raises(InputError, match="column 'c' contains 'x' in row 3, not a number"):
        to_floats(series(["1", None, "x", "y"]))
    with pytest.raises(InputError, match="contains infinity in row 2; fix it"):
        to_floats(series(["1", "-inf", "inf"]))


def test_texts_are_joined_in_the_order_named_and_blank_ones_counted() -> None:
    frame = pd.DataFrame({"a": ["x", None, None], "b": ["y", "z", None], "n": ["1", "2", "3"]})
    inputs = select_text_columns(frame, ["b", "a"])
    assert list(inputs.frame.columns) == ["b", "a"]
    assert inputs.notes == (
        "text columns: 'b', 'a', joined in this order",
        "ignored (--encoder uses text columns only): 'n'",
        "1 row without text, treated as empty",
    )
    with pytest.raises(InputError, match="is blank in every row"):
        select_text_columns(frame[2:], ["a", "b"])


# Targets


def targets(values: list[Any], task: Any = "auto") -> Any:
    return read_targets(pd.DataFrame({"y": series(values, "y")}), task)


def test_classes_are_numbered_by_name_or_by_value() -> None:
    assert targets(["b", "a", None, "B"]).classes == ("B", "a", "b")
    assert targets(["b", "a", None, "B"]).given_labels.tolist() == [2, 1, -1, 0]
    assert targets(["10", "9", "-1", "9.0"]).classes == ("-1", "9", "10")
    assert targets(["10", "9", "x"]).classes == ("10", "9", "x")


def test_whole_numbers_are_classes_up_to_twenty_and_words_decide_by_half() -> None:
    assert targets([str(i) for i in range(20)]).classes is not None
    assert targets([str(i) for i in range(21)]).classes is None
    assert targets(["1.5", "2.5", "a", "b", "c"]).classes is not None
    with pytest.raises(InputError, match="mixes numbers and text"):
        targets(["1.5", "2.5", "a", "b"])
    assert targets(["1", "2", "a", "b"]).classes == ("1", "2", "a", "b")


def test_labelled_rows_are_counted() -> None:
    assert "2 labelled rows, 1 unlabelled" in targets(["a", "b", None]).notes
    notes = targets(["a", "a", "b", None]).notes
    assert notes[0] == "target 'y' has 2 classes: 'a' (2), 'b' (1)"
    assert notes[2].endswith("judge a model by: 'b'")
    frame = pd.DataFrame({"u": ["1.5", None, "2"], "v": ["3", None, "3"]}, dtype=object)
    several = read_targets(frame, "auto")
    assert several.classes is None and several.given_labels.shape == (3, 2)
    assert several.notes == (
        "2 labelled rows, 1 unlabelled",
        "targets that are constant over the labelled rows: 'v'",
    )


# Tables


def test_cells_are_stripped_and_blank_markers_are_blank_in_any_file(tmp_path: Path) -> None:
    markers = ["", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "?", " NA "]
    words = ["na", "none", "unknown", "-", "0", " x "]
    csv = written(tmp_path / "a.csv", "w,i\n" + "".join(f"{m},1\n" for m in markers + words))
    pd.DataFrame({"w": markers + words, "i": 1}).to_parquet(tmp_path / "a.parquet")
    for path in (csv, tmp_path / "a.parquet"):
        cells = read_table(path, encoding="utf-8", separator="auto").frame["w"]
        assert cells.isna().tolist() == [True] * len(markers) + [False] * len(words), path
        assert cells[len(markers) :].tolist() == ["na", "none", "unknown", "-", "0", "x"], path


def test_a_comma_separates_decimals_only_where_it_separates_no_cells(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "x;w;v\n1,5;a,b;1,2,3\n-20;c,d;4,5\n+3,25;1,5;6\n")
    frame = read_table(path, encoding="utf-8", separator="auto").frame
    assert frame["x"].tolist() == ["1.5", "-20", "+3.25"]
    assert frame["w"].tolist() == ["a,b", "c,d", "1,5"]  # not all cells are numbers
    assert frame["v"].tolist() == ["1,2,3", "4,5", "6"]
    quoted = written(tmp_path / "b.csv", 'x,y\n"1,5",a\n"2,5",b\n')
    assert read_table(quoted, encoding="utf-8", separator="auto").frame["x"].tolist() == [
        "1,5",
        "2,5",
    ]


def test_separators_within_quotes_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", '"a;b;c;d",x\n1,2\n')
    assert list(read_table(path, encoding="utf-8", separator="auto").frame.columns) == [
        "a;b;c;d",
        "x",
    ]
    tab = written(tmp_path / "b.csv", "a\tb,c\n1\t2\n")
    assert list(read_table(tab, encoding="utf-8", separator="tab").frame.columns) == ["a", "b,c"]


def test_columns_of_parquet_keep_their_values_and_their_blanks(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "i": pd.array([5, None, -7], dtype="Int64"),
            "u": np.array([2**64 - 1, 0, 1], dtype=np.uint64),
            "f": [0.5, None, np.nan],
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": ["x", None, "y"],
            "c": pd.Categorical(["q", None, "q"]),
        }
    )
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=2)
    actual = read_table(tmp_path / "a.parquet", encoding="utf-8", separator="auto").frame
    assert to_strings(actual["i"]) == ["5", "", "-7"]
    assert to_strings(actual["u"]) == [str(2**64 - 1), "0", "1"]
    assert actual["f"].isna().tolist() == [False, True, True] and actual["f"][0] == 0.5
    assert to_strings(actual["b"]) == ["True", "", "False"]
    assert to_strings(actual["s"]) == ["x", "", "y"]
    assert to_strings(actual["c"]) == ["q", "", "q"]


def test_ids_stay_with_their_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "k,x,y\nz,1,a\nb,2,\nq,3,b\n")
    source = read(path, "y", id="k")
    assert source.ids == ["z", "b", "q"] and source.given_labels.tolist() == [0, -1, 1]
    assert source.inputs["x"].tolist() == [1.0, 2.0, 3.0]
    assert list(source.kinds) == ["x"]  # neither the id nor the target is an input


# Arrays


def test_blank_classes_of_arrays_are_minus_one_or_nothing() -> None:
    for y in (np.array([3, -1, 0]), np.array(["3", "", "0"]), np.array([b"3", b"", b"0"])):
        frame, task = parse_npz_targets(y, "auto", HERE)
        assert task == "classification"
        assert [None if pd.isna(v) else v for v in frame["y"]] == ["3", None, "0"]
    minus = parse_npz_targets(np.array(["-1", "a"]), "auto", HERE)[0]
    assert minus["y"].tolist() == ["-1", "a"]  # among strings it is a name
    unsigned = parse_npz_targets(np.array([255, 0], dtype=np.uint8), "auto", HERE)[0]
    assert unsigned["y"].tolist() == ["255", "0"]
    with pytest.raises(InputError, match="y contains -2; number classes from 0"):
        parse_npz_targets(np.array([0, -2]), "auto", HERE)


def test_floats_of_arrays_are_targets_in_the_order_of_their_axes() -> None:
    y = np.arange(8.0).reshape(2, 2, 2)
    frame, task = parse_npz_targets(y, "auto", HERE)
    assert task == "regression" and frame.to_numpy().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(frame.columns) == ["y0", "y1", "y2", "y3"]
    assert list(parse_npz_targets(y[:, 0, 0], "auto", HERE)[0].columns) == ["y"]
    assert parse_npz_targets(y[:, 0, 0], "classification", HERE)[1] == "classification"


def test_channels_come_first_wherever_they_were() -> None:
    x = np.arange(2 * 5 * 6 * 3).reshape(2, 5, 6, 3)
    assert (to_channels_first(x, HERE)[1, 2] == x[1, :, :, 2]).all()
    assert (to_channels_first(x[..., :1], HERE)[1, 0] == x[1, :, :, 0]).all()
    assert to_channels_first(x[..., :2].transpose(0, 3, 1, 2), HERE).shape == (2, 2, 5, 6)
    first = np.zeros((2, 3, 5, 1))
    assert to_channels_first(first, HERE) is first
    assert to_channels_first(x[..., 0], HERE).shape == (2, 1, 5, 6)
    with pytest.raises(InputError, match="apparently with an alpha channel"):
        to_channels_first(np.zeros((2, 5, 6, 4)), HERE)


def test_whole_numbers_up_to_255_are_grey_levels_and_others_values() -> None:
    def dtype(values: list[float], of: Any) -> Any:
        return to_image_array(np.array(values, dtype=of).reshape(1, 1, 2), HERE).dtype

    assert dtype([0, 255], np.int64) == np.uint8
    assert dtype([0, 256], np.int64) == dtype([-1, 5], np.int64) == np.float32
    assert dtype([0, 1], np.float64) == np.float32
    with pytest.raises(InputError, match="row 2 of x contains NaN or infinity"):
        to_image_array(np.array([[[1.0]], [[np.nan]]]), HERE)
    with pytest.raises(InputError, match="the model was trained on integers from 0 to 255"):
        to_image_array(np.array([[[1.0]]]), HERE, "uint8")


# Images


def test_an_array_is_cut_at_its_centre_or_squeezed_for_landmarks() -> None:
    """The left third is 0, the middle 100, the right 200: of 4 × 12 the centre is all 100."""
    x = np.repeat(np.array([0, 100, 200], dtype=np.uint8), 4)[None, None].repeat(4, 1)
    cut = read_array_images(x, HERE, ReadOptions(size=4), None)
    assert (cut.pixels == 100).all() and cut.sizes.tolist() == [[12, 4]] and not cut.spec.whole
    points = np.array([[0.0, 0.0, 12.0, 4.0]])
    squeezed = read_array_images(x, HERE, ReadOptions(size=12), points)
    assert squeezed.spec.whole
    assert squeezed.pixels[0, 0, :, 0].max() < 20 and squeezed.pixels[0, 0, :, -1].min() > 180
    tall = read_array_images(x.transpose(0, 2, 1), HERE, ReadOptions(size=4), None)
    assert (tall.pixels == 100).all() and tall.sizes.tolist() == [[4, 12]]


def test_points_are_scaled_by_width_and_height() -> None:
    points, sizes = np.array([[10.0, 10.0, 80.0, 40.0]]), np.array([[80, 40]])
    square = points_to_square(points, sizes, 8)
    assert square.tolist() == [[1.0, 2.0, 8.0, 8.0]]
    assert points_from_square(square, sizes, 8).tolist() == points.tolist()


def test_targets_are_points_if_four_or_more_lie_within_the_images() -> None:
    sizes = np.array([[30, 20], [40, 50]])

    def are_points(values: list[list[float]], landmarks: str = "auto") -> bool:
        options = ReadOptions(landmarks=landmarks)  # type: ignore[arg-type]
        return _targets_are_points(options, np.array(values), sizes)

    inside = [[0.0, 0, 30, 20], [40, 50, 1, 1]]
    assert are_points(inside) and not are_points(inside, "no")
    assert not are_points([[0, 0, 31, 20], [1, 1, 1, 1]])
    assert not are_points([[0, 0, 20, 30], [1, 1, 1, 1]])  # x and y are not the same
    assert not are_points([[-0.1, 0, 1, 1], [1, 1, 1, 1]])
    assert are_points([[0, 0, 1, 1], [np.nan] * 4])
    assert not are_points([[1.0, 1], [1, 1]]) and are_points([[1.0, 1], [1, 1]], "yes")
    assert not are_points([[1.0, 1, 1, 1, 1]] * 2)
    with pytest.raises(InputError, match="pairs of coordinates"):
        are_points([[1.0, 1, 1]] * 2, "yes")


@pytest.mark.parametrize(
    ("shorter", "side"), [(3, 8), (11, 8), (12, 16), (20, 24), (28, 32), (500, 32)]
)
def test_of_two_sides_as_near_the_larger_is_chosen(shorter: int, side: int) -> None:
    assert choose_side(0, np.array([[shorter, 900], [900, shorter]]), points=False) == side
    assert choose_side(0, np.array([[shorter, 900]]), points=True) == 60
    assert choose_side(48, np.array([[shorter, 900]]), points=True) == 48


def test_new_arrays_have_the_channels_and_the_size_of_the_fit() -> None:
    spec = ImageSpec(side=4, channels=3, whole=False)
    images = read_new_array_images(np.zeros((2, 8, 6, 3), dtype=np.uint8), HERE, spec, "uint8")
    assert images.pixels.shape == (2, 3, 4, 4) and images.sizes.tolist() == [[6, 8]] * 2
    with pytest.raises(InputError, match="x has 1 channel, but the model was trained on 3"):
        read_new_array_images(np.zeros((2, 8, 6), dtype=np.uint8), HERE, spec, "uint8")


def test_images_and_labels_stay_together_where_one_is_skipped(tmp_path: Path) -> None:
    """Each image's grey level tells which row it is."""
    levels = {"a": 10, "b": 60, "c": 110, "d": 160}
    for name, level in levels.items():
        picture(tmp_path / f"{name}.png", width=8, height=8, colour=(level,))
    (tmp_path / "b.png").write_bytes(b"not an image")
    text = "p,k,y\na.png,one,x\nb.png,two,x\nc.png,three,\nd.png,four,z\n"
    table = written(tmp_path / "t.csv", text.replace(",x\nb", ",w\nb"))
    source = read_source(
        str(table), ReadOptions(target=("y",), image="p", id="k", skip_unreadable=True)
    )
    assert source.ids == ["one", "three", "four"]
    assert source.classes == ("w", "z") and source.given_labels.tolist() == [0, -1, 1]
    assert source.inputs[:, 0, 0, 0].tolist() == [10, 110, 160]
    assert source.sizes is not None and source.sizes.tolist() == [[8, 8]] * 3


def test_class_folders_come_in_order_and_unlabelled_ones_last(tmp_path: Path) -> None:
    class_folders(tmp_path, each=2, unlabeled=1)
    picture(tmp_path / "Unlabelled" / "a.png")
    picture(tmp_path / "aardvark" / "z.PNG")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    files, classes, notes = list_class_files(tmp_path)
    assert files.names == [
        "aardvark/z.PNG",
        "cat/0.png",
        "cat/1.png",
        "dog/0.png",
        "dog/1.png",
        "Unlabelled/a.png",
        "unlabeled/deep/0.jpg",
    ]
    assert classes["class"].tolist() == ["aardvark", "cat", "cat", "dog", "dog", None, None]
    assert any("1 file of other formats ('.txt')" in note for note in notes)
    assert list_image_files(tmp_path / "dog").names == ["0.png", "1.png"]


def test_listed_paths_are_taken_from_the_tables_folder_in_their_order(tmp_path: Path) -> None:
    column = series(["b.png", "in\\a.png", str(tmp_path / "c.png")])
    files = resolve_listed_files(column, tmp_path / "t.csv")
    assert files.paths == [str(tmp_path / n) for n in ("b.png", "in/a.png", "c.png")]
    assert files.names == column.tolist()
    with pytest.raises(InputError, match=r"row 2: '\.\./x\.png' is outside"):
        resolve_listed_files(series(["a.png", "../x.png"]), tmp_path / "t.csv")
    with pytest.raises(InputError, match="row 1: the image path is blank"):
        resolve_listed_files(series([None]), tmp_path / "t.csv")


def test_sixteen_bits_of_grey_are_brought_to_eight(tmp_path: Path) -> None:
    for name, level in (("a/0.png", 256 * 100), ("a/1.png", 256 * 200), ("b/0.png", 256 * 50)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), level, dtype=np.uint16)).save(tmp_path / name)
    source = read(tmp_path)
    assert source.inputs.shape == (3, 1, 8, 8)
    assert source.inputs[:, 0, 0, 0].tolist() == [100, 200, 50]


def test_grey_of_32_bits_is_16_bits_where_it_exceeds_eight() -> None:
    def levels(*values: int) -> list[int]:
        image = Image.fromarray(np.array([values], dtype=np.int32))
        return np.asarray(_to_eight_bits(image)).ravel().tolist()

    assert levels(0, 25_855, 65_535) == [0, 100, 255]
    assert levels(0, 100, 255) == [0, 100, 255]
    assert levels(-5, 256) == [0, 1]
    plain = Image.new("RGB", (1, 1))
    assert _to_eight_bits(plain) is plain


def test_yellow_is_a_colour_though_red_and_green_are_equal(tmp_path: Path) -> None:
    for name, colour in (("a", (200, 200, 20)), ("b", (200, 20, 200)), ("c", (20, 200, 200))):
        for other in ("x", "y"):
            picture(tmp_path / name / other / "0.png", width=8, height=8, colour=colour)
        assert read(tmp_path / name).inputs[0, :, 0, 0].tolist() == list(colour)


def test_colours_are_kept_in_their_order_unless_grey_is_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / name / "0.png", width=8, height=8, colour=(200, 80, 20))
    assert read(tmp_path).inputs[0, :, 0, 0].tolist() == [200, 80, 20]
    grey = read(tmp_path, grey="yes").inputs
    assert grey.shape == (2, 1, 8, 8) and 100 < grey[0, 0, 0, 0] < 120  # luma of that colour


def test_how_images_are_resized_is_noted(tmp_path: Path) -> None:
    def noted(sizes: list[tuple[int, int]], **options: Any) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for i, (width, height) in enumerate(sizes):
            picture(folder / "ab"[i % 2] / f"{i}.png", width=width, height=height)
        (note,) = [n for n in read(folder, **options).notes if n.startswith("images ")]
        return note

    assert noted([(8, 8)] * 2) == "images are 8 × 8 pixels, RGB"
    assert noted([(20, 20)] * 2) == (
        "images of 20 × 20 pixels are resized to 24 × 24, RGB; --size sets another size"
    )
    assert noted([(20, 16), (40, 50)], size=8) == (
        "images of 20 × 16 to 40 × 50 pixels are resized to 8 × 8 (centre crop), RGB"
    )
