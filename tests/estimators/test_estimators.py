"""What the estimators promise beyond scikit-learn's checks."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from torch import nn

from l2i import InputError, L2IClassifier, L2IRegressor, LabeledKFold
from l2i.fit.preprocess import TablePreprocessor, fit_column

QUICK = {"steps": 40, "random_state": 0}


def wine(each: int = 5):
    """Wine with few labels: x, y with −1 for most rows, and the truth."""
    x, truth = load_wine(return_X_y=True)
    return x, few(truth, each), truth


def few(truth, each):
    y = np.full(len(truth), -1)
    for c in np.unique(truth):
        rows = np.flatnonzero(truth == c)[:each]
        y[rows] = c
    return y


def diabetes(labeled: int = 60):
    x, truth = load_diabetes(return_X_y=True)
    return x, np.where(np.arange(len(truth)) < labeled, truth, np.nan), truth


def test_given_labels_stay_and_the_others_are_imputed():
    x, y, truth = wine()
    model = L2IClassifier(**QUICK).fit(x, y)
    assert model.run_.method.name == "pseudo-label" and model.run_.l2i.update == "normalized"
    assert_array_equal(model.transduction_[y >= 0], y[y >= 0])
    assert (model.transduction_ == truth).mean() > 0.85
    assert_allclose(model.label_distributions_.sum(axis=1), 1)
    assert_allclose(model.label_distributions_[y >= 0].max(axis=1), 1)
    unlabeled = y < 0
    assert_allclose(
        model.label_distributions_[unlabeled], model.predict_proba(x[unlabeled]), rtol=1e-9
    )


def test_costs_on_the_way_are_kept():
    x, y, _ = wine()
    history = L2IClassifier(**QUICK).fit(x, y).history_
    assert [row["step"] for row in history] == list(range(2, 41, 2))
    assert history[-1]["c_t"] < history[0]["c_t"] and {"c_u", "c_h"} <= set(history[0])


@pytest.mark.parametrize("blank", [None, np.nan])
def test_none_and_nan_mark_unlabelled_rows_among_strings(blank):
    x, y, _ = wine()
    names = np.array(["Barolo", "Grignolino", "Barbera"], dtype=object)
    words = np.where(y < 0, blank, names[y])
    model = L2IClassifier(**QUICK).fit(x, words)
    assert model.classes_.tolist() == ["Barbera", "Barolo", "Grignolino"]
    assert set(model.predict(x)) <= set(names) and model.transduction_[0] == "Barolo"
    assert_array_equal(L2IClassifier(**QUICK).fit(x, pd.Series(words)).predict(x), model.predict(x))


def test_float_classes_may_be_blank_by_nan_or_by_minus_one():
    x, y, _ = wine()
    by_nan = L2IClassifier(**QUICK).fit(x, np.where(y < 0, np.nan, y))
    assert_array_equal(by_nan.predict(x), L2IClassifier(**QUICK).fit(x, y.astype(float)).predict(x))


def test_without_unlabelled_rows_it_trains_supervised():
    x, _, truth = wine()
    model = L2IClassifier("fixmatch", **QUICK).fit(x, truth)
    assert model.run_.method.name == "supervised" and model.score(x, truth) > 0.9


def test_the_order_of_rows_does_not_matter_and_weights_are_repetitions():
    x, y, _ = wine()
    order, weight = (
        np.random.default_rng(0).permutation(len(x)),
        np.random.default_rng(1).integers(0, 3, len(x)),
    )
    model = L2IClassifier(**QUICK).fit(x, y)
    assert_array_equal(
        L2IClassifier(**QUICK).fit(x[order], y[order]).predict_proba(x), model.predict_proba(x)
    )
    weighted = L2IClassifier(**QUICK).fit(x, y, sample_weight=weight)
    repeated = L2IClassifier(**QUICK).fit(x.repeat(weight, axis=0), y.repeat(weight))
    assert_array_equal(weighted.predict_proba(x), repeated.predict_proba(x))
    assert not np.allclose(weighted.predict_proba(x), model.predict_proba(x))


def test_a_seed_gives_the_same_model_and_another_seed_another():
    x, y, _ = wine()
    first = L2IClassifier(**QUICK).fit(x, y).predict_proba(x)
    assert_array_equal(L2IClassifier(**QUICK).fit(x, y).predict_proba(x), first)
    assert not np.allclose(
        L2IClassifier(steps=40, random_state=1).fit(x, y).predict_proba(x), first
    )


def test_a_fitted_estimator_goes_through_pickle_and_clone():
    x, y, _ = wine()
    model = L2IClassifier(**QUICK, settings={"l2i": {"rho": 0.5}}).fit(x, y)
    assert model.run_.l2i.rho == 0.5
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert_array_equal(clone(model).fit(x, y).predict_proba(x), model.predict_proba(x))


def test_it_works_in_a_pipeline_and_a_grid_search_that_scores_labelled_rows_alone():
    x, y, truth = wine(10)
    pipeline = make_pipeline(MinMaxScaler(), L2IClassifier(**QUICK))
    grid = {
        "l2iclassifier__method": ["supervised", "mean-teacher"],
        "l2iclassifier__impute": [True, False],
    }
    search = GridSearchCV(pipeline, grid, cv=LabeledKFold(3, random_state=0)).fit(x, y)
    assert len(search.cv_results_["params"]) == 4 and search.score(x, truth) > 0.85
    plain = make_pipeline(MinMaxScaler(), L2IClassifier(candidates=["logistic-regression"]))
    assert cross_val_score(plain, x, y, cv=LabeledKFold(5, random_state=0)).mean() > 0.8


def test_images_are_told_from_tables_by_their_shape():
    images, truth = load_digits(return_X_y=True)
    images, y = images.reshape(-1, 8, 8)[:300], few(truth[:300], 4)
    model = L2IClassifier(**QUICK).fit(images, y)
    assert (model.run_.model.name, model.run_.method.name) == ("conv", "fixmatch")
    assert model.predict_proba(images[:5]).shape == (5, 10)
    with_channel = L2IClassifier(**QUICK).fit(images[:, None], y)
    assert_array_equal(with_channel.predict(images[:, None]), model.predict(images))
    eight = L2IClassifier(**QUICK).fit(np.rint(images * 255 / 16).astype(np.uint8), y)
    assert eight.inputs_.mean == model.inputs_.mean and (model.inputs_.low, model.inputs_.high) == (
        0,
        16,
    )
    with pytest.raises(ValueError, match="was fitted on"):
        model.predict(images[:, :4])


def net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), 16), nn.ReLU(), nn.Linear(16, outputs)
    )


def test_a_network_of_ones_own_is_made_from_shape_and_outputs():
    x, y, _ = wine()
    model = L2IClassifier(model=net, **QUICK).fit(x, y)
    assert isinstance(model.model_, nn.Sequential) and model.model_[1].in_features == 13
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    x, y, _ = diabetes()
    assert (
        L2IRegressor(model=net, **QUICK).fit(x, np.column_stack([y, y])).model_[3].out_features == 2
    )


def test_numbers_and_categories_of_a_frame_are_encoded_inside():
    x, y, truth = wine()
    frame = pd.DataFrame(
        {
            "alcohol": x[:, 0],
            "place": np.array(["north", "south", "west"])[truth],
            "old": x[:, 1] > 2,
        }
    )
    model = L2IClassifier(**QUICK).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["alcohol", "place", "old"]
    assert [c.kind for c in model.inputs_.columns] == ["number", "category", "category"]
    assert model.score(frame, truth) > 0.95
    new = frame.assign(place="nowhere")
    assert np.isfinite(model.predict_proba(new)).all()  # a new category treated as unknown
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"old": "young"}))
    with pytest.raises(InputError, match="column 'alcohol' is blank in every row; drop it"):
        L2IClassifier(**QUICK).fit(frame.assign(alcohol=np.nan), y)


@pytest.mark.parametrize("as_frame", [False, True])
def test_blank_inputs_become_the_mean_and_are_flagged(as_frame):
    """As `l2i fit` does: whether a cell is blank says the class here."""
    x, y, truth = wine()
    x = x.copy()
    x[truth == 2, 3] = np.nan
    names = [f"x{i}" for i in range(x.shape[1])]
    table = pd.DataFrame(x, columns=names).assign(place="here") if as_frame else x
    model = L2IClassifier(candidates=["logistic-regression"], random_state=0).fit(table, y)
    assert (model.predict(table) == truth)[truth == 2].all()
    column = model.inputs_.columns[3]
    assert column.blanks and column.mean == pytest.approx(np.nanmean(x[:, 3]))
    assert column.std == pytest.approx(np.nanstd(x[:, 3]))
    whole = table.assign(x0=np.nan) if as_frame else np.where(np.arange(13) == 0, np.nan, x)
    assert np.isfinite(model.predict_proba(whole)).all()  # blank where no training row was
    with pytest.raises(ValueError, match="infinity"):
        model.fit(table.assign(x0=np.inf) if as_frame else np.where(np.isnan(x), np.inf, x), y)


def test_columns_are_encoded_as_an_oracle_does():
    frame = pd.DataFrame({"n": [1.0, 2.0, np.nan, 5.0], "c": ["a", None, "b", "a"]})
    number, category = fit_column(frame["n"], "number"), fit_column(frame["c"], "category")
    expected = (np.array([1, 2, 5]) - 8 / 3) / np.std([1, 2, 5])
    encoded = TablePreprocessor(columns=(number, category))(frame)  # number, blank, "", "a", "b"
    assert_allclose(encoded[[0, 1, 3], 0], expected, rtol=1e-6)
    assert encoded[:, 1].tolist() == [0, 0, 1, 0]
    assert encoded[2, 0] == 0
    assert category.values == ("", "a", "b")
    assert encoded[:, 2:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_targets_are_imputed_where_they_are_nan():
    x, y, truth = diabetes()
    model = L2IRegressor("mean-teacher", **QUICK).fit(x, y)
    assert model.run_.method.name == "mean-teacher" and model.transduction_.shape == truth.shape
    assert_array_equal(model.transduction_[:60], truth[:60])
    assert_allclose(model.transduction_[60:], model.predict(x[60:]), rtol=1e-9)
    assert np.corrcoef(model.transduction_[60:], truth[60:])[0, 1] > 0.3


def test_several_targets_are_learned_at_once():
    x, y, _ = diabetes()
    model = L2IRegressor("mean-teacher", **QUICK).fit(x, np.column_stack([y, -2 * y]))
    assert model.predict(x).shape == (len(x), 2)
    assert np.corrcoef(model.predict(x).T)[0, 1] < -0.9
    half = np.column_stack([y, np.where(np.arange(len(y)) == 3, np.nan, y)])
    with pytest.raises(InputError, match="row 3 of y has some targets, and NaN for others"):
        L2IRegressor(**QUICK).fit(x, half)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([-1] * 6, "no row is labelled"),
        ([0, 0, 0, -1, -1, -1], "one class"),
        (["a", 1, None, "b", "a", 2], "mixes strings and numbers"),
    ],
)
def test_labels_that_teach_nothing_are_refused(y, words):
    with pytest.raises(ValueError, match=words):
        L2IClassifier(**QUICK).fit(np.arange(12.0).reshape(6, 2), y)


def test_wrong_parameters_say_what_would_be_right():
    x, y, _ = wine()
    with pytest.raises(InputError, match="perhaps you meant 'fixmatch'"):
        L2IClassifier("fixmach").fit(x, y)
    with pytest.raises(InputError, match="perhaps you meant 'conv'"):
        L2IClassifier(model="convv").fit(x, y)
    with pytest.raises(InputError, match=r"function \(shape, outputs\)"):
        L2IClassifier(model=nn.Linear(13, 3)).fit(x, y)
    with pytest.raises(InputError, match="fixmatch does not support regression"):
        L2IRegressor("fixmatch").fit(*diabetes()[:2])
    with pytest.raises(InputError, match=r"l2i\.rhoo"):
        L2IClassifier(settings={"l2i": {"rhoo": 1}}).fit(x, y)
    with pytest.raises(InputError, match="y is NaN everywhere"):
        L2IRegressor().fit(x, np.full(len(x), np.nan))


def test_fitting_leaves_torch_as_it_was():
    x, y, _ = wine()
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    L2IClassifier(**QUICK).fit(x, y)
    assert torch.get_num_threads() == threads and torch.equal(torch.random.get_rng_state(), state)


def test_folds_hold_labelled_rows_alone_and_train_on_every_unlabelled_one():
    x, y, _ = wine(6)
    observed = []
    for train, test in LabeledKFold(3, random_state=0).split(x, y):
        assert (y[test] >= 0).all() and set(np.flatnonzero(y < 0)) <= set(train)
        assert not set(train) & set(test) and np.bincount(y[test]).tolist() == [2, 2, 2]
        observed += test.tolist()
    assert sorted(observed) == np.flatnonzero(y >= 0).tolist()
    targets = diabetes()[1]
    folds = list(LabeledKFold(4, random_state=0).split(targets, targets))
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(60))
    with warnings.catch_warnings(), pytest.raises(InputError, match="are too few for 5 folds"):
        next(LabeledKFold(5).split(x[:4], [0, 1, -1, -1]))
