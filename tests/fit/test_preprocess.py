"""How columns, tables and images become network inputs, against values by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.feature_extraction.text import TfidfVectorizer

from l2i import InputError
from l2i.fit import preprocess
from l2i.fit.preprocess import (
    Column,
    ImageEncoder,
    ImagePreprocessor,
    TableEncoder,
    TablePreprocessor,
    compute_mean_std,
    describe_full_texts,
    fit_column,
    load_preprocessor,
)


def series(values: list[Any], name: str = "c") -> pd.Series:
    return pd.Series(values, name=name, dtype=object)


def table_of(frame: pd.DataFrame, **kinds: Any) -> TablePreprocessor:
    return TablePreprocessor(
        columns=tuple(fit_column(frame[name], kind) for name, kind in kinds.items())
    )


def test_mean_and_std_are_weighted_and_a_constant_has_a_std_of_one() -> None:
    values = np.array([[1.0, 7.0, 0.1], [5.0, 7.0, 0.1], [9.0, 7.0, 0.1]])
    mean, std = compute_mean_std(values, np.array([1.0, 0.0, 3.0]), "x")
    assert_allclose(mean, [7.0, 7.0, 0.1])
    assert_allclose(std, [np.sqrt(12.0), 1.0, 1.0])


def test_rounding_errors_of_a_constant_are_no_variation() -> None:
    values = np.full(1000, 0.1) * 3
    values[0] += 1e-16
    assert compute_mean_std(values, np.ones(1000), "x")[1] == 1.0
    tiny = np.array([1.0, 1.0 + 1e-9])
    assert compute_mean_std(tiny, np.ones(2), "x")[1] == pytest.approx(5e-10, rel=1e-6)


def test_the_std_of_numbers_whose_squares_overflow_is_right() -> None:
    mean, std = compute_mean_std(np.array([-1e200, 1e200]), np.ones(2), "x")
    assert (mean, std) == (0.0, pytest.approx(1e200))
    largest = np.full(3, 1.7e308)
    with np.errstate(all="ignore"), pytest.raises(InputError, match="'x' contains numbers too"):
        compute_mean_std(largest, np.ones(3), "x")


def test_blanks_are_left_out_of_the_mean_and_flagged_only_where_there_were_some() -> None:
    column = fit_column(series([2.0, None, 6.0], "n"), "number")
    assert (column.mean, column.std, column.blanks, column.width) == (4.0, 2.0, True, 2)
    full = fit_column(series([2.0, 6.0], "n"), "number")
    assert (full.blanks, full.width) == (False, 1)
    frame = pd.DataFrame({"n": [np.nan, 8.0]})
    assert_array_equal(TablePreprocessor(columns=(column,))(frame), [[0.0, 1.0], [2.0, 0.0]])
    assert_array_equal(TablePreprocessor(columns=(full,))(frame), [[0.0], [2.0]])
    with pytest.raises(InputError, match="'n' is blank in every row"):
        fit_column(series([None, None], "n"), "number")


def test_weights_of_blank_cells_do_not_count() -> None:
    weight = np.array([1.0, 100.0, 3.0])
    column = fit_column(series([2.0, None, 6.0], "n"), "number", weight)
    assert (column.mean, column.std) == (5.0, pytest.approx(np.sqrt(3.0)))


def test_categories_are_sorted_and_codes_are_their_places() -> None:
    column = fit_column(series(["b", "a", None, "b"]), "category")
    assert column.values == ("", "a", "b") and column.width == 3
    assert column.extract(series(["a", "b", None, "z"])).tolist() == [1, 2, 0, -1]
    assert column.find_unknown(series(["a", "z", "y", "z"])) == ["y", "z"]
    encoded = TablePreprocessor(columns=(column,))(pd.DataFrame({"c": ["b", "z"]}))
    assert encoded.tolist() == [[0, 0, 1], [0, 0, 0]]


def test_of_many_categories_the_hundred_most_frequent_are_kept() -> None:
    names = [f"v{i:03d}" for i in range(103)]
    cells = names + names[2:102]  # all but the first two and the last are there twice
    column = fit_column(series(cells), "category")
    assert column.values == tuple(names[2:102])
    ties = fit_column(series(names), "category")
    assert ties.values == tuple(names[:100])  # of equals, the first by name


def test_terms_are_weighted_as_scikit_learn_does() -> None:
    texts = ["red red wine", "white wine", "beer <br /> beer", ""]
    column = fit_column(series(texts), "text")
    oracle = TfidfVectorizer(sublinear_tf=True).fit([t.replace("<br />", " ") for t in texts])
    assert column.values == ("beer", "red", "white", "wine")
    new = ["red wine wine", "unknown words"]
    actual = TablePreprocessor(columns=(column,))(pd.DataFrame({"c": new}))
    assert_allclose(actual, oracle.transform(new).toarray(), rtol=1e-6)
    assert column.find_unknown(series(["other"])) == []


def test_from_a_hundred_texts_on_a_term_must_be_in_two() -> None:
    few = [f"common word{i}" for i in range(99)]
    assert len(fit_column(series(few), "text").values) == 100
    many = [*few, "common word0"]
    assert fit_column(series(many), "text").values == ("common", "word0")
    with pytest.raises(InputError, match="contains no usable words"):
        fit_column(series(["", "?"]), "text")


def mixed() -> tuple[pd.DataFrame, TablePreprocessor]:
    frame = pd.DataFrame(
        {
            "t": ["x1 yy", "yy", "yy yy"],
            "c": ["u", "v", "u"],
            "n": [1.0, np.nan, 3.0],
            "m": [5.0, 7.0, 9.0],
        }
    )
    return frame, table_of(frame, t="text", c="category", n="number", m="number")


def test_inputs_are_in_the_order_of_columns_whatever_their_kinds() -> None:
    frame, table = mixed()
    encoded = table(frame)
    assert encoded.dtype == np.float32 and encoded.shape == (3, 7)
    assert_allclose(encoded[:, :2], table.columns[0].extract(frame["t"]), rtol=1e-6)
    assert_array_equal(encoded[:, 2:4], [[1, 0], [0, 1], [1, 0]])
    assert_array_equal(encoded[:, 4:6], [[-1, 0], [0, 1], [1, 0]])
    assert_allclose(encoded[:, 6], [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-6)
    assert_array_equal(table(frame[["m", "n", "c", "t"]]), encoded)  # found by their names


def test_wide_tables_are_encoded_in_groups_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame, table = mixed()
    encoded = table(frame)
    for limit in (1, 6, 9, 12):
        monkeypatch.setattr(preprocess, "MAX_ENCODED_CELLS", limit)
        assert_array_equal(table(frame), encoded)
    widths = [[c.name for c in group.columns] for group in table._group_columns(4)]
    assert widths == [["t", "c"], ["n", "m"]]


def test_a_column_that_is_missing_is_named() -> None:
    frame, table = mixed()
    with pytest.raises(InputError, match="column 'c' was not found; add it"):
        table(frame.drop(columns="c"))


def test_inputs_of_a_column_belong_together_but_each_term_stands_alone() -> None:
    _, table = mixed()
    layout = table.column_layout
    groups, numeric = layout[0].tolist(), layout[1].tolist()
    assert groups == [0, 1, 2, 2, 3, 3, 4]
    assert numeric == [False, False, False, False, True, False, True]
    assert layout[2] == 5


def test_a_table_is_what_it_was_after_json() -> None:
    frame, table = mixed()
    again = load_preprocessor(table.to_json())
    assert again == table
    assert_array_equal(again(frame), table(frame))  # type: ignore[operator]
    for saved in ({}, {"kind": "other"}, {"kind": "images", "mean": 3}):
        with pytest.raises(InputError):
            load_preprocessor(saved)


def test_float64_is_used_from_a_mean_of_a_thousand_stds_on() -> None:
    def dtype(mean: float, std: float) -> torch.dtype:
        column = Column(name="n", kind="number", mean=mean, std=std)
        return TableEncoder(TablePreprocessor(columns=(column,))).dtype

    assert dtype(1000.0, 1.0) == dtype(-1000.0, 1.0) == torch.float32
    assert dtype(1001.0, 1.0) == dtype(-1001.0, 1.0) == torch.float64
    assert dtype(0.0, 1e-31) == dtype(0.0, 1e31) == torch.float64
    assert dtype(0.0, 1e-29) == dtype(0.0, 1e29) == torch.float32


def test_bytes_stay_grey_levels_and_have_mean_and_std_by_channel() -> None:
    raw = np.zeros((2, 3, 2, 2), dtype=np.uint8)
    raw[:, 0], raw[1, 1], raw[:, 2, 0] = 10, 200, 60
    inputs = ImagePreprocessor.fit(raw)
    assert (inputs.low, inputs.high, inputs.takes_uint8) == (0.0, 255.0, True)
    assert inputs.mean == pytest.approx((10, 100, 30))
    assert inputs.std[1:] == pytest.approx((100, 30))
    assert inputs.to_grey_levels(raw) is raw
    encoded = ImageEncoder(inputs)(torch.from_numpy(raw))
    assert_allclose(encoded[1, 1], 1.0, rtol=1e-6)
    assert_allclose(encoded[0, 1], -1.0, rtol=1e-6)


def test_other_values_are_stretched_rounded_and_cut() -> None:
    inputs = ImagePreprocessor.fit(np.array([-1.0, 1.0, 0.0, 0.5]).reshape(1, 1, 2, 2))
    assert (inputs.low, inputs.high, inputs.takes_uint8) == (-1.0, 1.0, False)
    raw = np.array([-9.0, -1.0, 0.0, 9.0, 1.0, -0.998]).reshape(1, 1, 2, 3)
    assert inputs.to_grey_levels(raw).ravel().tolist() == [0, 0, 128, 255, 255, 0]
    assert inputs.to_grey_levels(np.zeros((1, 1, 1, 1), dtype=np.uint8)).item() == 128
    flat = ImagePreprocessor.fit(np.full((1, 1, 2, 2), 3.0))
    assert (flat.low, flat.high) == (3.0, 4.0)
    assert load_preprocessor(inputs.to_json()) == inputs


def test_images_far_from_zero_are_read_in_float64_and_bytes_as_they_are() -> None:
    def dtype(**changes: float) -> torch.dtype:
        return ImageEncoder(ImagePreprocessor(mean=(0.0,), std=(1.0,), **changes)).dtype

    assert dtype() == torch.uint8
    assert dtype(low=-1.0, high=1.0) == dtype(low=999.0, high=1000.0) == torch.float32
    assert dtype(low=1e6, high=1e6 + 1) == dtype(low=-1e6, high=1 - 1e6) == torch.float64


class Fixed:
    """As much of a tokenizer as a note needs."""

    pad_id = 0

    def __init__(self, keep: str) -> None:
        self.text = type("T", (), {"keep_side": keep})()


def test_texts_that_fill_the_limit_are_counted() -> None:
    ids = torch.tensor([[5, 6, 7], [5, 6, 0], [5, 6, 8]])
    (note,) = describe_full_texts(ids, Fixed("end"))  # type: ignore[arg-type]
    assert note == ("2 of 3 texts reach the limit of 3 tokens; only the end of longer ones is used")
    assert describe_full_texts(ids[1:2], Fixed("end")) == []  # type: ignore[arg-type]
