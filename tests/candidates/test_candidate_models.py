"""The arrays that fitted models are kept as give scikit-learn's own predictions."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from tables_made_up import class_rows, target_rows

from l2i.candidates import models
from l2i.candidates.base import TableRows, predict
from l2i.candidates.catalog import MODELS
from l2i.candidates.models import (
    RIDGE_PENALTIES,
    Model,
    fit_boosted_trees,
    fit_constant,
    fit_extra_trees,
    fit_gaussian_process,
    fit_neighbors,
    fit_ridge,
    fit_scaled_process,
    make_logistic,
)
from l2i.candidates.predictors import MIN_PROBABILITY
from l2i.candidates.semi_supervised import Imputing, SelfTraining, Spreading
from l2i.candidates.storage import build_model, describe_model

NEW = np.random.default_rng(7).normal(size=(50, 4)).astype(np.float32) * 2


def probability(model: torch.nn.Module) -> np.ndarray:
    return np.asarray(softmax(predict(model, NEW), axis=1))


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_those_of_scikit_learn(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = class_rows(classes=classes)
    pairs = [
        (make_logistic(1.0), LogisticRegression(max_iter=1000)),
        (make_logistic(10.0), LogisticRegression(C=0.1, max_iter=1000)),
        (fit_boosted_trees, GradientBoostingClassifier(random_state=3)),
    ]
    for fit, oracle in pairs:
        wanted = oracle.fit(rows.x, rows.y).predict_proba(NEW)
        assert_allclose(probability(fit(rows, 3)), wanted, atol=1e-6)
    forest = ExtraTreesClassifier(300, random_state=3).fit(rows.x, rows.y)
    wanted = np.maximum(forest.predict_proba(NEW), MIN_PROBABILITY)
    wanted /= wanted.sum(axis=1, keepdims=True)
    assert_allclose(probability(fit_extra_trees(rows, 3)), wanted, atol=1e-6)
    shares = KNeighborsClassifier(5).fit(rows.x, rows.y).predict_proba(NEW)
    wanted = (5 * shares + np.bincount(rows.y) / 60) / 6
    assert_allclose(probability(fit_neighbors(rows, 3)), wanted, atol=1e-6)
    monkeypatch.setattr(models, "MIN_HISTOGRAM_ROWS", 10)
    oracle = HistGradientBoostingClassifier(random_state=3).fit(rows.x, rows.y)
    assert_allclose(probability(fit_boosted_trees(rows, 3)), oracle.predict_proba(NEW), atol=1e-6)


def test_a_process_of_classes_is_laplaces_with_the_usual_approximation() -> None:
    rows = class_rows(30, classes=2)
    model = fit_gaussian_process(rows, 0)
    kernel = models.ConstantKernel(1.0, (1e-3, 1e4)) * models.RBF(2.0, (1e-2, 1e4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = GaussianProcessClassifier(kernel, random_state=0).fit(rows.x, rows.y)
    # scikit-learn integrates the sigmoid by five error functions, the model by MacKay's formula
    assert_allclose(probability(model), oracle.predict_proba(NEW), atol=0.02)


@pytest.mark.parametrize("targets", [1, 2])
def test_targets_are_those_of_scikit_learn(targets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = target_rows(targets=targets)
    for fit, oracle in [
        (fit_ridge, RidgeCV(alphas=RIDGE_PENALTIES)),
        (fit_extra_trees, ExtraTreesRegressor(300, random_state=3)),
        (fit_neighbors, KNeighborsRegressor(5)),
    ]:
        wanted = oracle.fit(rows.x, rows.y if targets > 1 else rows.y[:, 0]).predict(NEW)
        assert_allclose(predict(fit(rows, 3), NEW), wanted.reshape(50, -1), atol=1e-5)
    for limit, make in ((10**9, GradientBoostingRegressor), (10, HistGradientBoostingRegressor)):
        monkeypatch.setattr(models, "MIN_HISTOGRAM_ROWS", limit)
        wanted = [make(random_state=3).fit(rows.x, y).predict(NEW) for y in rows.y.T]
        assert_allclose(predict(fit_boosted_trees(rows, 3), NEW), np.stack(wanted, 1), atol=1e-9)


@pytest.mark.parametrize(
    ("fit", "lengths"),
    [
        (fit_gaussian_process, models.RBF(2.0, (1e-2, 1e4))),
        (fit_scaled_process, models.RBF([2.0] * 4, (1e-1, 1e3))),
    ],
)
def test_a_process_of_targets_is_that_of_scikit_learn(fit, lengths) -> None:  # type: ignore[no-untyped-def]
    rows = target_rows(40)
    kernel = models.ConstantKernel(1.0, (1e-3, 1e4)) * lengths
    kernel = kernel + models.WhiteKernel(1.0, (1e-6, 10.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = GaussianProcessRegressor(kernel, random_state=0).fit(rows.x.astype(float), rows.y)
        model = fit(rows, 0)
    assert_allclose(predict(model, NEW)[:, 0], oracle.predict(NEW.astype(float)).ravel(), atol=1e-3)


def test_a_class_without_labels_is_never_predicted() -> None:
    rows = class_rows(classes=3)
    some = dataclasses.replace(rows.take(np.flatnonzero(rows.y != 1)), num_classes=3)
    for model in MODELS:
        if isinstance(model, Model) and model.find_obstacle(some) is None:
            chosen = predict(model.fit(some, 0), NEW).argmax(axis=1)
            assert set(chosen.tolist()) <= {0, 2}, model.name
    single = dataclasses.replace(rows.take(np.flatnonzero(rows.y == 1)), num_classes=3)
    for name in ("extra-trees", "boosted-trees", "logistic-regression"):
        model = next(m for m in MODELS if m.name == name)
        assert_array_equal(predict(model.fit(single, 0), NEW).argmax(axis=1), 1)


def test_weights_count_as_repetitions() -> None:
    rows = class_rows(30, classes=2)
    twice = np.arange(30) % 3 == 0
    weighted = dataclasses.replace(rows, weight=np.where(twice, 2.0, 1.0))
    repeated = rows.take(np.concatenate([np.arange(30), np.flatnonzero(twice)]))
    for fit in (make_logistic(1.0), fit_constant):
        expected = predict(fit(repeated, 0), NEW)
        assert_allclose(predict(fit(weighted, 0), NEW), expected, atol=1e-3)
    numbers = target_rows(30)
    weighted = dataclasses.replace(numbers, weight=np.where(twice, 1e6, 1.0))
    assert_allclose(predict(fit_ridge(weighted, 0), numbers.x[twice]).std(), 1.0, atol=0.5)
    unweighted = [m for m in MODELS if isinstance(m, Model) and not m.takes_weights]
    processes = {"gaussian-process", "gaussian-process-per-column"}
    assert {m.name for m in unweighted} == {"nearest-neighbors", *processes}
    assert all(model.find_obstacle(weighted) for model in unweighted)


def every_model(rows: TableRows) -> list[tuple[str, torch.nn.Module]]:
    base = next(m for m in MODELS if m.name == ("ridge", "extra-trees")[bool(rows.num_classes)])
    candidates = [m for m in MODELS if m.find_obstacle(rows) is None] + [Imputing(base=base)]
    return [(c.name, c.fit(rows, 0)) for c in candidates]


@pytest.mark.parametrize("make", [class_rows, target_rows])
def test_a_saved_model_predicts_the_same(make) -> None:  # type: ignore[no-untyped-def]
    rows = make()
    for name, model in every_model(rows):
        description, tensors = describe_model(model)
        is_classifier = rows.num_classes is not None
        sizes = {"num_inputs": 4, "num_outputs": rows.num_outputs}
        again = build_model(description, tensors, **sizes, is_classifier=is_classifier)
        assert_array_equal(predict(again, NEW), predict(model, NEW), err_msg=name)


@pytest.mark.parametrize("make", [class_rows, target_rows])
def test_tensors_that_do_not_fit_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    rows = make()
    for _, model in every_model(rows):
        description, tensors = describe_model(model)
        is_classifier = rows.num_classes is not None
        for num_inputs, num_outputs in ((5, rows.num_outputs), (4, rows.num_outputs + 1)):
            if description["kind"] in ("trees", "boosted") and num_inputs == 5:
                continue  # trees need not look at every column
            with pytest.raises((ValueError, KeyError)):
                build_model(
                    description,
                    tensors,
                    num_inputs=num_inputs,
                    num_outputs=num_outputs,
                    is_classifier=is_classifier,
                )


def test_indices_out_of_range_are_refused() -> None:
    description, tensors = describe_model(fit_extra_trees(class_rows(), 0))
    sizes = {"num_inputs": 4, "num_outputs": 3, "is_classifier": True}
    for name, value in (("left", 10**6), ("feature", 4), ("roots", -1), ("depth", 10**6)):
        damaged = {n: t.clone() for n, t in tensors.items()}
        damaged[name].view(-1)[0] = value
        with pytest.raises(ValueError, match=r"out of range|too deep"):
            build_model(description, damaged, **sizes)


def test_self_training_takes_confident_labels_and_spreading_reaches_all_rows() -> None:
    rows = class_rows(12, 200, classes=2)
    logistic = next(m for m in MODELS if m.name == "logistic-regression")
    plain, taught = logistic.fit(rows, 0), SelfTraining(base=logistic).fit(rows, 0)
    assert np.abs(predict(taught, NEW)).mean() > np.abs(predict(plain, NEW)).mean()
    spread = softmax(predict(Spreading().fit(rows, 0), rows.unlabeled), axis=1)
    assert_allclose(spread.sum(axis=1), 1)
    assert (spread.max(axis=1) > 0.9).mean() > 0.5


def test_imputing_around_ridge_leaves_a_linear_model_where_it_was() -> None:
    """Labels that a linear model imputes lie on it: refitting to them moves it hardly at all."""
    rows = target_rows(40, 100)
    ridge = next(m for m in MODELS if m.name == "ridge")
    plain, imputing = ridge.fit(rows, 0), Imputing(base=ridge).fit(rows, 0)
    assert_allclose(predict(imputing, NEW), predict(plain, NEW), atol=0.1)
