import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from user_data import class_folders, picture, read, table, written

from l2i.errors import InputError
from l2i.fit.preprocess import TablePreprocessor, fit_column
from l2i.fit.readers.new_rows import read_new
from l2i.fit.readers.rows import InputRows
from l2i.fit.readers.source import Source


def inputs_of(source: Source) -> TablePreprocessor:
    return TablePreprocessor(
        columns=tuple(fit_column(source.inputs[name], kind) for name, kind in source.kinds.items())
    )


def again(path: Path, source: Source, **changed: Any) -> InputRows:
    """New data, read with options that went through a file."""
    options = json.loads(json.dumps(source.options)) | changed
    return read_new(str(path), options, inputs_of(source) if source.kinds else None)


def test_the_same_table_read_anew_has_the_same_inputs_and_ids(tmp_path: Path) -> None:
    path = table(tmp_path)
    source = read(path, "kind", text=("note",))
    new = again(path, source)
    pd.testing.assert_frame_equal(new.inputs, source.inputs)
    assert new.ids == source.ids and new.notes == ()
    np.testing.assert_array_equal(inputs_of(source)(new.inputs), inputs_of(source)(source.inputs))


def test_targets_may_be_absent_and_other_columns_and_formats_come(tmp_path: Path) -> None:
    source = read(table(tmp_path), "kind")
    frame = pd.DataFrame({"extra": [1], "city": ["Rome"], "age": [30]})
    frame.to_parquet(tmp_path / "new.parquet", index=False)
    new = again(tmp_path / "new.parquet", source)
    assert new.inputs.to_dict("list") == {"age": [30.0], "city": ["Rome"]} and new.ids == ["1"]


def test_whole_numbers_as_categories_are_the_same_in_parquet_and_csv(tmp_path: Path) -> None:
    pd.DataFrame({"zone": [1.0, 2.0, None, 2.0], "y": ["a", "b", "a", "b"]}).to_parquet(
        tmp_path / "a.parquet"
    )
    source = read(tmp_path / "a.parquet", "y", category=("zone",))
    new = again(written(tmp_path / "new.csv", "zone,z\n2,\n1.0,\n"), source)
    assert new.inputs["zone"].tolist() == ["2", "1"] and new.notes == ()


def test_missing_columns_are_named_together(tmp_path: Path) -> None:
    source = read(table(tmp_path), "kind", text=("note",))
    message = "lacks 2 columns that the model was trained with: 'age', 'note'; add them"
    with pytest.raises(InputError, match=message):
        again(written(tmp_path / "new.csv", "city,b\nRome,1\n"), source)


def test_new_categories_and_blanks_are_counted(tmp_path: Path) -> None:
    source = read(table(tmp_path), "kind")
    rows = ["1,Oslo", ",Oslo", "2,Bath", ",Rome", "3,"]
    new = again(written(tmp_path / "new.csv", "age,city\n" + "\n".join(rows) + "\n"), source)
    assert new.notes == (
        "column 'age': 2 blank cells filled with the mean",
        "column 'city': 1 blank cell treated as an unknown category",
        "column 'city': 3 rows with 2 new categories, such as 'Bath', treated as unknown",
    )


def test_a_word_where_a_number_was_is_an_error(tmp_path: Path) -> None:
    source = read(table(tmp_path), "kind")
    with pytest.raises(InputError, match="column 'age' contains 'old' in row 2, not a number"):
        again(written(tmp_path / "new.csv", "age,city\n1,Rome\nold,Rome\n"), source)


def test_ids_are_read_where_they_are_and_rows_numbered_where_not(tmp_path: Path) -> None:
    source = read(written(tmp_path / "a.csv", "k,x,y\nu,1,a\nv,2,b\n"), "y", id="k")
    assert again(written(tmp_path / "b.csv", "x,k\n5,p\n6,q\n"), source).ids == ["p", "q"]
    without = again(written(tmp_path / "c.csv", "x,z\n5,p\n6,q\n"), source)
    assert without.ids == ["1", "2"] and without.notes == (
        "id column 'k' was not found: rows are numbered from 1",
    )


def test_a_blank_cell_in_the_only_column_keeps_its_row(tmp_path: Path) -> None:
    source = read(written(tmp_path / "a.csv", "x,y\n1,a\n2,b\n"), "y")
    assert len(again(written(tmp_path / "b.csv", "x\n5\n\n6\n"), source).ids) == 3


def test_a_folder_of_images_in_any_nesting_or_one_image_is_read_alike(tmp_path: Path) -> None:
    source = read(class_folders(tmp_path / "fit"), grey="yes")
    picture(tmp_path / "new" / "deep" / "deeper" / "b.jpg", width=50)
    picture(tmp_path / "new" / "a.png", height=99)
    new = again(tmp_path / "new", source)
    assert new.ids == ["a.png", "deep/deeper/b.jpg"] and new.inputs.shape == (2, 1, 16, 16)
    assert new.sizes is not None and new.sizes.tolist() == [[20, 99], [50, 16]]
    assert again(tmp_path / "new" / "a.png", source).ids == ["a.png"]
    same = again(tmp_path / "fit", source)
    assert same.ids == source.ids
    np.testing.assert_array_equal(same.inputs, source.inputs)


def test_unreadable_new_images_are_an_error_or_skipped(tmp_path: Path) -> None:
    source = read(class_folders(tmp_path / "fit"))
    picture(tmp_path / "new" / "a.png")
    written(tmp_path / "new" / "b.png", "no image")
    with pytest.raises(InputError, match=r"1 of 2 images cannot be read: b\.png"):
        again(tmp_path / "new", source)
    assert again(tmp_path / "new", source, skip_unreadable=True).ids == ["a.png"]


def test_landmarks_of_a_table_are_predicted_for_a_table_or_a_folder(tmp_path: Path) -> None:
    for name in "abc":
        picture(tmp_path / "in" / f"{name}.png", width=40, height=20)
    rows = "file,x1,y1,x2,y2\nin/a.png,1,2,3,4\nin/b.png,2,3,4,5\nin/c.png,,,,\n"
    path = written(tmp_path / "fit.csv", rows)
    source = read(path, "x1", "y1", "x2", "y2", image="file")
    new = again(written(tmp_path / "new.csv", "file,z\nin/c.png,1\n"), source)
    assert new.ids == ["in/c.png"] and new.inputs.shape == (1, 3, 60, 60) and new.sizes is not None
    assert again(tmp_path / "in", source).ids == ["a.png", "b.png", "c.png"]
    with pytest.raises(InputError, match="no column 'file' of image paths; it has 'z'"):
        again(written(tmp_path / "other.csv", "z,u\n1,2\n"), source)


def test_arrays_are_read_like_arrays(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 4000, (4, 8, 8))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(4) % 2)
    source = read(tmp_path / "a.npz")
    np.savez(tmp_path / "dark.npz", x=x % 200)  # would be grey levels of 8 bits on their own
    new = again(tmp_path / "dark.npz", source)
    assert new.inputs.dtype == source.inputs.dtype == np.float32 and new.ids == ["1", "2", "3", "4"]
    np.testing.assert_array_equal(new.inputs[:, 0], x % 200)


def test_a_table_of_an_array_goes_on_with_arrays_or_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(8.0).reshape(4, 2), y=np.arange(4) % 2)
    source = read(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.array([[5.0, 6.0]]))
    assert again(tmp_path / "b.npz", source).inputs.to_dict("list") == {"x0": [5.0], "x1": [6.0]}
    assert again(written(tmp_path / "b.csv", "x1,x0\n6,5\n"), source).inputs.to_dict("list") == {
        "x0": [5.0],
        "x1": [6.0],
    }


def test_other_layouts_than_the_fit_had_are_refused(tmp_path: Path) -> None:
    a_table, images = read(table(tmp_path), "kind"), read(class_folders(tmp_path / "fit"))
    np.savez(tmp_path / "grey.npz", x=np.zeros((4, 8, 8), dtype=np.uint8), y=np.arange(4) % 2)
    np.savez(tmp_path / "rgb.npz", x=np.zeros((4, 3, 8, 8), dtype=np.uint8))
    np.savez(tmp_path / "float.npz", x=np.full((4, 8, 8), 0.5))
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 3)))
    grey = read(tmp_path / "grey.npz")
    (tmp_path / "empty").mkdir()
    for path, source, said in [
        (tmp_path / "fit", a_table, "is not a table"),
        (tmp_path / "grey.npz", a_table, "trained on a table"),
        (tmp_path / "data.csv", images, "is not an image"),
        (tmp_path / "empty", images, "contains no images"),
        (tmp_path / "none", images, "none was not found; check the path"),
        (tmp_path / "data.csv", grey, "is not an .npz file"),
        (
            tmp_path / "rgb.npz",
            grey,
            "x has 3 channels, but the model was trained on 1; convert the images",
        ),
        (tmp_path / "float.npz", grey, "trained on integers from 0 to 255"),
        (tmp_path / "rows.npz", grey, "trained on images"),
    ]:
        with pytest.raises(InputError) as error:
            again(path, source)
        assert said in str(error.value)
