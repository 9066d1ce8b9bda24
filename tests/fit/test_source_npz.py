import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from user_data import read, written

from l2i.errors import InputError
from l2i.fit.readers.source import Source

DRAWN = np.random.default_rng(0)


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def arrays(folder: Path, x: Any, y: Any, **options: object) -> Source:
    return read(saved(folder, x=x, y=y), **options)


def test_rows_of_numbers_become_a_table(tmp_path: Path) -> None:
    x = DRAWN.normal(size=(6, 3)).astype(np.float32)
    x[1, 2], x[:, 0] = np.nan, 1
    source = arrays(tmp_path, x, np.array([0, 10, 2, -1, -1, 2]))
    assert source.kinds == {"x1": "number", "x2": "number"}
    assert "ignored (constant): 'x0'" in source.notes
    np.testing.assert_array_equal(source.inputs["x2"], x[:, 2].astype(np.float64))
    assert source.classes == ("0", "2", "10") and source.given_labels.tolist() == [
        0,
        2,
        1,
        -1,
        -1,
        1,
    ]
    assert source.target_names == ("y",) and source.ids == ["1", "2", "3", "4", "5", "6"]
    assert list(arrays(tmp_path, x, np.array([0, 1, 2, -1, -1, 2]), ignore=("x1",)).kinds) == ["x2"]


@pytest.mark.parametrize("dtype", ["U5", "S5"])
def test_strings_are_classes_and_blank_ones_unlabelled(tmp_path: Path, dtype: str) -> None:
    source = arrays(tmp_path, DRAWN.normal(size=(3, 2)), np.array(["dog", "", "cat"], dtype=dtype))
    assert source.classes == ("cat", "dog") and source.given_labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2)])
def test_floats_are_regression_and_nan_unlabelled(tmp_path: Path, shape: tuple[int, ...]) -> None:
    y = DRAWN.normal(size=shape)
    y[2] = np.nan
    source = arrays(tmp_path, DRAWN.normal(size=(4, 2)), y)
    np.testing.assert_array_equal(source.given_labels, y.reshape(4, -1))
    assert source.classes is None and source.target_names == (
        ("y0", "y1") if shape == (4, 2) else ("y",)
    )


def test_floats_can_be_classes(tmp_path: Path) -> None:
    source = arrays(
        tmp_path, DRAWN.normal(size=(4, 2)), np.array([0.0, 1, np.nan, 1]), task="classification"
    )
    assert source.classes == ("0", "1") and source.given_labels.tolist() == [0, 1, -1, 1]


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 1, 8, 8), (5, 2, 8, 8), (5, 8, 8, 3)])
def test_images_have_their_channels_first_and_are_left_as_they_are_where_they_fit(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    x = DRAWN.integers(0, 256, shape).astype(np.uint8)
    source = arrays(tmp_path, x, np.arange(5) % 2)
    expected = x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1) if shape[3] == 3 else x
    np.testing.assert_array_equal(source.inputs, expected)
    assert (
        isinstance(source.inputs, np.ndarray)
        and source.inputs.dtype == np.uint8
        and source.options["dtype"] == "uint8"
    )
    assert ("x is interpreted as [N, H, W, C]" in source.notes) == (shape[3:] == (3,))


def test_images_of_4_pixels_width_are_taken_as_such_where_their_channels_come_first(
    tmp_path: Path,
) -> None:
    x = np.zeros((5, 3, 6, 4), dtype=np.uint8)
    assert arrays(tmp_path, x, np.arange(5) % 2, size=8).inputs.shape == (5, 3, 8, 8)


def test_floats_stay_floats_and_whole_numbers_to_255_become_bytes(tmp_path: Path) -> None:
    x = DRAWN.normal(size=(4, 8, 8))
    np.testing.assert_array_equal(
        arrays(tmp_path, x, np.arange(4) % 2).inputs[:, 0], x.astype(np.float32)
    )
    assert arrays(tmp_path, np.full((4, 8, 8), 255), np.arange(4) % 2).inputs.dtype == np.uint8
    assert arrays(tmp_path, np.full((4, 8, 8), 256), np.arange(4) % 2).inputs.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_of_other_sizes_are_cut_and_resized(tmp_path: Path, dtype: Any) -> None:
    x = np.zeros((2, 20, 60), dtype=dtype)
    x[:, :, 15:45] = 200  # the centre square and what its edges are mixed with
    source = arrays(tmp_path, x, np.arange(2), size=10)
    assert (
        source.inputs.shape == (2, 1, 10, 10)
        and source.inputs.dtype == dtype
        and np.all(source.inputs == 200)
    )


def test_points_of_arrays_are_scaled_with_them(tmp_path: Path) -> None:
    x, y = (
        np.zeros((2, 30, 120), dtype=np.uint8),
        np.array([[[120.0, 30], [60, 15]], [[0, 0], [12, 3]]]),
    )
    source = arrays(tmp_path, x, y)
    assert (
        source.points
        and source.inputs.shape == (2, 1, 60, 60)
        and source.target_names == ("y0", "y1", "y2", "y3")
    )
    np.testing.assert_allclose(source.given_labels, [[60, 60, 30, 30], [0, 0, 6, 6]])


def test_floats_have_thumbnails(tmp_path: Path) -> None:
    x = np.zeros((2, 8, 8))
    x[0, :, 4:] = 1
    picture = arrays(tmp_path, x, np.arange(2)).make_preview(0).png_base64
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture or ""))))
    assert image.shape == (8, 8) and image[:, :4].max() == 0 and image[:, 4:].min() == 255


X, Y = np.arange(6.0).reshape(3, 2), np.array([0, 1, -1])


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ({"y": Y}, {}, "has no array x, only y"),
        ({"x": X, "z": Y}, {}, "has no array y, only x, z"),
        ({"x": X, "y": Y[:2]}, {}, "x has 3 rows but y is [2]"),
        ({"x": np.arange(3.0), "y": Y}, {}, "x is float64 [3]"),
        ({"x": np.array([["a", "b"]]), "y": Y[:1]}, {}, "x is <U1 [1, 2]"),
        ({"x": np.zeros((0, 2)), "y": Y[:0]}, {}, "x is float64 [0, 2]"),
        ({"x": X, "y": Y - 1}, {}, "y contains -2; number classes from 0"),
        ({"x": X, "y": Y * 0 - 1}, {}, "no row is labelled"),
        ({"x": X, "y": np.array(["", "", ""])}, {}, "no row is labelled"),
        ({"x": X, "y": np.stack([Y, Y], axis=1)}, {}, "y is int64 [3, 2]"),
        ({"x": X, "y": Y}, {"task": "regression"}, "--task regression needs floats"),
        ({"x": X, "y": np.array([[1.0, np.nan], [1, 2], [3, 4]])}, {}, "row 1 has some targets"),
        ({"x": X, "y": np.array([{}, {}, {}])}, {}, "is damaged, or not an .npz of plain arrays"),
        (
            {"x": np.array([[1, np.inf], [2, 3], [3, 4]]), "y": Y},
            {},
            "column 'x1' contains infinity in row 1",
        ),
        (
            {"x": np.full((3, 8, 8), np.nan), "y": Y},
            {},
            "the image in row 1 of x contains NaN or infinity",
        ),
        (
            {"x": np.zeros((3, 8, 8, 4)), "y": Y},
            {},
            "drop it, and write x as [N, H, W, 3] or [N, C, H, W]",
        ),
        (
            {"x": np.zeros((3, 4, 8, 2)), "y": Y},
            {},
            "x is [3, 4, 8, 2], apparently with an alpha channel",
        ),
        ({"x": X, "y": Y}, {"target": ("y",)}, "--target applies only to tables"),
        ({"x": X, "y": Y}, {"ignore": ("x7",)}, "--ignore 'x7'"),
    ],
)
def test_arrays_that_are_wrong_are_named(
    tmp_path: Path, content: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    path = saved(tmp_path, **content)
    with pytest.raises(InputError) as error:
        read(path, *options.pop("target", ()), **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    whole = saved(tmp_path, x=X, y=Y).read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    for path in (tmp_path / "a.npz", written(tmp_path / "b.npz", "")):
        with pytest.raises(InputError, match=r"is damaged, or not an \.npz"):
            read(path)


def test_numbers_that_resizing_takes_out_of_float32_are_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).choice([-3.4e38, 3.4e38], size=(4, 9, 9)).astype(np.float32)
    with pytest.raises(InputError, match="too large to resize; rescale them"):
        arrays(tmp_path, x, np.array([0, 1, -1, 0]), size=8)
