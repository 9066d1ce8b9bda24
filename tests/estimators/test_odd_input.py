"""Units, types and frames that people really have."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from l2i import InputError, L2IClassifier, L2IRegressor, LabeledKFold

QUICK = {"steps": 40, "random_state": 0}
PLAIN = {"candidates": ["logistic-regression", "ridge"], "random_state": 0}


def two_groups(rows: int = 60):
    """Two features, of which the first tells the class; labels of every third row."""
    draw = np.random.default_rng(0)
    truth = np.arange(rows) % 2
    x = np.column_stack([truth * 4 + draw.normal(size=rows), draw.normal(size=rows)])
    return x, np.where(np.arange(rows) % 3 == 0, truth, -1), truth


@pytest.mark.parametrize("unit", [1e-13, 1e-200, 1e150])
def test_the_unit_of_a_feature_does_not_matter(unit):
    x, y, truth = two_groups()
    assert L2IClassifier(**PLAIN).fit(x * unit, y).score(x * unit, truth) > 0.9


def test_the_offset_of_a_target_does_not_matter():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 3))
    truth = 60 * x[:, 0]
    y = np.where(np.arange(120) % 2, np.nan, truth)
    for options in (PLAIN, {"method": "mean-teacher", **QUICK}):
        plain = L2IRegressor(**options).fit(x, y)
        dated = L2IRegressor(**options).fit(x, y + 1.7e9)  # seconds since 1970
        # other draws, since rows are ordered by what they hold
        assert_allclose(dated.predict(x) - 1.7e9, plain.predict(x), atol=5)
    assert plain.score(x, truth) > 0.5


def test_a_regressor_of_a_gpu_or_not_keeps_nothing_but_numbers_and_its_network():
    x, _, truth = two_groups()
    model = L2IRegressor(**QUICK).fit(x, truth)
    assert isinstance(model.target_mean_, np.ndarray) and {
        p.device.type for p in model.model_.parameters()
    } == {"cpu"}


@pytest.mark.parametrize("dtype", ["string", "category", object])
def test_missing_labels_of_pandas_are_unlabelled_rows(dtype):
    x, y, _ = two_groups()
    words = pd.Series(np.where(y < 0, None, np.array(["no", "yes"])[y])).astype(dtype)
    model = L2IClassifier("vat", **QUICK).fit(x, words)
    assert model.classes_.tolist() == ["no", "yes"] and model.run_.method.name == "vat"
    for _, test in LabeledKFold(4, random_state=0).split(x, words):
        assert (y[test] >= 0).all()


def test_nullable_numbers_and_objects_mark_blanks_as_plain_ones_do():
    x, y, _ = two_groups()
    plain = L2IClassifier(**PLAIN).fit(x, y).predict(x)
    nullable = pd.Series(y).where(y >= 0).astype("Int64")
    assert_array_equal(L2IClassifier(**PLAIN).fit(x, nullable).predict(x), plain)
    assert_array_equal(
        L2IClassifier(**PLAIN).fit(x, np.array(list(y), dtype=object)).predict(x), plain
    )


def test_no_fold_scores_an_unlabelled_row_whatever_marks_it():
    x, y, _ = two_groups()
    listed = [np.nan if v < 0 else "ab"[v] for v in y]
    both = np.where(np.arange(60) % 2, np.where(y < 0, np.nan, y), y)  # −1 and NaN
    for target in (listed, both, y.astype(float)):
        tested = np.concatenate(
            [test for _, test in LabeledKFold(4, random_state=0).split(x, target)]
        )
        assert sorted(tested) == np.flatnonzero(y >= 0).tolist()


def frame():
    x, y, truth = two_groups()
    return pd.DataFrame({0: x[:, 0], 1: np.array(["a", "b"])[truth]}), y, truth


def test_columns_may_be_named_by_numbers():
    table, y, truth = frame()
    assert L2IClassifier(**PLAIN).fit(table, y).score(table, truth) > 0.9


def test_a_frame_with_categories_wants_such_a_frame_again():
    table, y, _ = frame()
    model = L2IClassifier(**PLAIN).fit(table, y)
    with pytest.raises(InputError, match="must be a DataFrame"):
        model.predict(np.zeros((3, 2)))
    with pytest.raises(InputError, match="infinity in row 4"):
        L2IClassifier(**PLAIN).fit(
            pd.DataFrame({0: [np.inf if i == 3 else 0.0 for i in range(60)], 1: table[1]}), y
        )
    with pytest.raises(InputError, match="duplicate column names"):
        L2IClassifier(**PLAIN).fit(table.set_axis(["a", "a"], axis=1), y)
    with pytest.raises(InputError, match="lists or other objects"):
        L2IClassifier(**PLAIN).fit(pd.DataFrame({0: table[0], 1: [[1]] * 60}), y)


def test_a_fit_on_images_and_one_on_a_table_do_not_mix():
    x, y, _ = two_groups()
    images = np.random.default_rng(0).random((60, 4, 4))
    model = L2IClassifier(**QUICK).fit(images, y)
    with pytest.raises(InputError, match="fitted on images"):
        model.predict(x)
    with pytest.raises(InputError, match="uint8 images"):
        model.predict((images * 255).astype(np.uint8))
    assert model.fit(x, y).predict(x).shape == (60,)
    with pytest.raises(ValueError, match="dim"):
        model.predict(images)


def test_images_of_a_pixel_are_learned_too():
    _, y, truth = two_groups()
    images = (truth + 0.1 * np.random.default_rng(0).random(60)).reshape(60, 1, 1)
    assert L2IClassifier(**QUICK).fit(images, y).score(images, truth) > 0.9


def test_a_method_that_is_not_there_is_one_even_where_nothing_is_unlabelled():
    x, _, truth = two_groups()
    with pytest.raises(InputError, match="perhaps you meant 'vat'"):
        L2IClassifier("vatt").fit(x, truth)


def test_a_function_of_another_shape_cannot_make_the_network():
    x, y, _ = two_groups()
    with pytest.raises(InputError, match=r"must take \(shape, outputs\)"):
        L2IClassifier(model=lambda: None).fit(x, y)


def test_auto_trains_on_the_labels_alone_where_unlabelled_rows_do_harm():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 4))
    truth = x @ [3.0, -2.0, 1.0, 0.5]
    y = np.where(np.arange(200) < 60, truth, np.nan)
    model = L2IRegressor(candidates=["mean", "ridge", "imputing"], random_state=0).fit(x, y)
    assert model.candidate_ == "ridge regression" and model.helped_ is False
    assert model.validation_["ridge"] < 0.01 < 0.5 < model.validation_["mean"]
    named = L2IRegressor("mean-teacher", steps=150, random_state=0).fit(x, y)
    assert named.helped_ is None and named.run_.method.name == "mean-teacher"
    assert model.score(x[60:], truth[60:]) > named.score(x[60:], truth[60:])


def test_auto_learns_from_unlabelled_rows_where_they_help():
    """Two spirals of which few rows are labelled: only the unlabelled ones show the spirals."""
    draw = np.random.default_rng(0)
    truth = np.arange(600) % 2
    turn = 1 + 3 * np.pi * np.sqrt(draw.uniform(size=600))
    angle = turn + np.pi * truth
    x = turn[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    y = np.where(np.arange(600) < 30, truth, -1)
    names = ["logistic-regression", "extra-trees", "label-spreading"]
    model = L2IClassifier(candidates=names, random_state=0).fit(x, y)
    assert model.helped_ is True and model.candidate_ == "label spreading"
    assert (model.predict(x) == truth).mean() > 0.93
    assert (model.transduction_ == truth).mean() > 0.93
