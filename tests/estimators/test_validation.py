"""X and y as they come: what is unlabelled, what a class is called, how rows are encoded."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator

from l2i import InputError
from l2i.estimators.validation import (
    encode_classes,
    encode_features,
    find_unlabeled,
    fit_inputs,
    to_array,
    validate_features,
)
from l2i.fit.preprocess import ImagePreprocessor


class Holder(BaseEstimator):
    """An estimator to which validation attaches what it learns."""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (np.array([0, -1, 1]), [0, 1, 0]),
        (np.array([0, 255], dtype=np.uint8), [0, 0]),
        (np.array([0.0, -1.0, np.nan]), [0, 1, 1]),
        (np.array([0.5, -1.0, np.nan]), [0, 0, 1]),  # measurements may well be −1
        (np.array(["a", None, float("nan"), -1], dtype=object), [0, 1, 1, 1]),
        (np.array(["a", "-1", pd.NA, -1.0, 2], dtype=object), [0, 0, 1, 1, 0]),
        (np.array(["a", "-1"]), [0, 0]),
        (np.array([True, False]), [0, 0]),
        (np.array([[np.nan, np.nan], [np.nan, 1.0], [1.0, 2.0]]), [1, 0, 0]),
        (np.array([[-1, -1]]), [0]),
    ],
)
def test_what_marks_an_unlabelled_row(target, expected):
    assert find_unlabeled(target).tolist() == [bool(e) for e in expected]


def test_classes_are_numbered_in_their_order_and_unlabelled_rows_are_minus_one():
    ids, classes = encode_classes(["b", None, "a", "c", "a"])
    assert (ids.tolist(), classes.tolist()) == ([1, -1, 0, 2, 0], ["a", "b", "c"])
    ids, classes = encode_classes([10, -1, 9, 10])
    assert (ids.tolist(), classes.tolist()) == ([1, -1, 0, 1], [9, 10])
    ids, classes = encode_classes(pd.Series([2.0, np.nan, 1.0]))
    assert (ids.tolist(), classes.tolist()) == ([1, -1, 0], [1.0, 2.0])
    ids, classes = encode_classes(np.array([3, None, 1], dtype=object))
    assert (ids.tolist(), classes.tolist(), classes.dtype.kind) == ([1, -1, 0], [1, 3], "i")


def test_one_class_or_none_or_infinity_teaches_nothing():
    with pytest.raises(InputError, match="all labelled rows are of one class, a"):
        encode_classes(["a", None, "a"])
    with pytest.raises(InputError, match="no row is labelled"):
        encode_classes([-1, -1])
    with pytest.raises(InputError, match="y mixes strings and numbers"):
        encode_classes(["a", 1, "b"])
    with pytest.raises(InputError, match="y contains infinity"):
        encode_classes([0.0, np.inf, 1.0])
    with pytest.raises(ValueError, match=r"[Uu]nknown label type"):
        encode_classes([0.5, 1.5, 2.5])


def test_a_list_with_none_or_strings_stays_what_it_is():
    assert to_array(["a", None]).tolist() == ["a", None]
    assert to_array([1, None]).dtype == object
    assert to_array([1, 2]).dtype.kind == "i"
    assert to_array((1.5, 2)).dtype.kind == "f"


def test_numbers_frames_and_images_are_told_apart():
    holder = Holder()
    assert validate_features(holder, [[1, 2], [3, 4]], reset=True).dtype == np.float64
    assert holder.kind_ == "numbers"
    numbers = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    assert validate_features(holder, numbers, reset=True).tolist() == [[1, 0.5], [2, 1.5]]
    assert holder.kind_ == "numbers"
    mixed = numbers.assign(c=[True, False])
    assert isinstance(validate_features(holder, mixed, reset=True), pd.DataFrame)
    assert holder.kind_ == "frame"
    images = validate_features(holder, np.zeros((2, 5, 4)), reset=True)
    assert (holder.kind_, images.shape, holder.image_shape_) == ("images", (2, 1, 5, 4), (1, 5, 4))
    assert holder.n_features_in_ == 5
    assert validate_features(holder, np.zeros((3, 1, 5, 4)), reset=False).shape == (3, 1, 5, 4)
    with pytest.raises(InputError, match="resize them"):
        validate_features(holder, np.zeros((2, 4, 5)), reset=False)
    with pytest.raises(InputError, match="has uint8 images, but Holder was fitted on float"):
        validate_features(holder, np.zeros((2, 5, 4), dtype=np.uint8), reset=False)
    with pytest.raises(InputError, match="pass images"):
        validate_features(holder, np.zeros((2, 5)), reset=False)


def test_what_is_wrong_with_a_frame_is_named():
    good = pd.DataFrame({"a": [1.0, 2.0], "c": ["x", "y"]})
    with pytest.raises(InputError, match="at least one row"):
        validate_features(Holder(), good[:0], reset=True)
    twice = pd.DataFrame([[1.0, "x"]], columns=["a", "a"])
    with pytest.raises(InputError, match="duplicate column names"):
        validate_features(Holder(), twice, reset=True)
    holder = Holder()
    validate_features(holder, good, reset=True)
    with pytest.raises(InputError, match="must be a DataFrame with the fitted columns"):
        validate_features(holder, good.to_numpy(), reset=False)


def test_new_rows_are_scaled_by_what_was_learned_not_by_themselves():
    x = np.array([[1.0, 5.0], [3.0, 5.0]])
    inputs = fit_inputs(x, np.ones(2))
    assert_allclose(encode_features(inputs, np.array([[4.0, 7.0]])), [[2.0, 2.0]])
    assert [c.name for c in inputs.columns] == ["x0", "x1"]
    assert (inputs.columns[1].mean, inputs.columns[1].std) == (5.0, 1.0)  # a constant


def test_a_frames_booleans_and_words_are_categories_and_its_numbers_numbers():
    frame = pd.DataFrame({"n": [1.0, 3.0], "b": [True, False], "w": ["x", "y"]})
    inputs = fit_inputs(frame, np.ones(2))
    assert [c.kind for c in inputs.columns] == ["number", "category", "category"]
    encoded = encode_features(inputs, frame[::-1])
    assert_array_equal(encoded, [[1, 1, 0, 0, 1], [-1, 0, 1, 1, 0]])  # n; False, True; x, y


def test_images_become_grey_levels_between_their_darkest_and_brightest():
    raw = np.array([2.0, 4.0, 3.0, 4.0]).reshape(1, 1, 2, 2)
    inputs = fit_inputs(raw, np.ones(1))
    assert isinstance(inputs, ImagePreprocessor) and (inputs.low, inputs.high) == (2.0, 4.0)
    assert encode_features(inputs, raw).ravel().tolist() == [0, 255, 128, 255]
    beyond = np.array([-9.0, 9.0, 2.0, 4.0]).reshape(1, 1, 2, 2)
    assert encode_features(inputs, beyond).ravel().tolist() == [0, 255, 0, 255]
