"""scikit-learn's models with few labels, and the choice among them by cross-validation.

All rows are at hand: features of rows without a label serve to preprocess, and to learn from by the
semi-supervised models.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.tables_cpu.sources import Split, Table, Task, split_rows
from benchmarks.tables_cpu.summary import CHOICE
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

UNLABELED = -1  # the mark of scikit-learn
MAX_PROCESS_ROWS = 1000  # that a Gaussian process learns from
MAX_FOLDS = 5
NUM_NEIGHBORS = 5
NUM_TREES = 300
BOOSTING = {"n_estimators": 200}
PENALTIES = np.logspace(-2, 4, 20)

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """All rows of a table as numbers, and which of them have a label."""

    task: Task
    matrix: Floats  # [N, F]
    target: NDArray[Any]  # [N], class numbers from 0 or targets
    split: Split


def make_problem(table: Table, seed: int) -> Problem:
    task, target = table.source.task, table.target
    if task == "classification":
        target = np.unique(target, return_inverse=True)[1]
    matrix = make_preprocessor().fit_transform(table.features).astype(np.float64)
    return Problem(task, matrix, target, split_rows(table, seed))


def make_preprocessor() -> ColumnTransformer:
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    categories = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="blank"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector(dtype_include=np.number)),
            ("categories", categories, make_column_selector(dtype_exclude=np.number)),
        ]
    )


def predict_linear(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    model = make_logistic() if problem.task == "classification" else RidgeCV(PENALTIES)
    return fit_predict(model, problem, train, rows)


def predict_process(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    """Predict by a Gaussian process that standardises its targets."""
    if len(train) > MAX_PROCESS_ROWS:
        train = np.random.RandomState(seed).permutation(train)[:MAX_PROCESS_ROWS]
    kernel: Kernel = ConstantKernel() * RBF(math.sqrt(problem.matrix.shape[1]))
    if problem.task == "classification":
        return fit_predict(GaussianProcessClassifier(kernel), problem, train, rows)
    kernel = kernel + WhiteKernel()
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return fit_predict(model, problem, train, rows)


def predict_trees(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    is_class = problem.task == "classification"
    model = ExtraTreesClassifier if is_class else ExtraTreesRegressor
    return fit_predict(model(NUM_TREES, random_state=seed), problem, train, rows)


def predict_boosted(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    is_class = problem.task == "classification"
    model = GradientBoostingClassifier if is_class else GradientBoostingRegressor
    return fit_predict(model(**BOOSTING, random_state=seed), problem, train, rows)


def predict_histograms(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    is_class = problem.task == "classification"
    model = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    return fit_predict(model(random_state=seed), problem, train, rows)


def predict_neighbors(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    """Predict by five neighbours, or as many as the smallest class has rows."""
    if problem.task == "regression":
        return fit_predict(KNeighborsRegressor(NUM_NEIGHBORS), problem, train, rows)
    count = min(NUM_NEIGHBORS, find_smallest_class(problem.target[train]))
    return fit_predict(KNeighborsClassifier(count), problem, train, rows)


def predict_self_trained(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    model = SelfTrainingClassifier(make_logistic())
    model.fit(problem.matrix, mask_labels(problem, train))
    return np.asarray(model.predict(problem.matrix[rows]))


def predict_spread(problem: Problem, train: Rows, rows: Rows, seed: int) -> NDArray[Any]:
    model = LabelSpreading(kernel="knn", max_iter=200)
    model.fit(problem.matrix, mask_labels(problem, train))
    return np.asarray(model.transduction_[rows])


def make_logistic() -> LogisticRegression:
    return LogisticRegression(C=1.0, max_iter=2000)


def fit_predict(model: Any, problem: Problem, train: Rows, rows: Rows) -> NDArray[Any]:
    model.fit(problem.matrix[train], problem.target[train])
    return np.asarray(model.predict(problem.matrix[rows]))


def mask_labels(problem: Problem, train: Rows) -> NDArray[np.int64]:
    masked = np.full(len(problem.target), UNLABELED)
    masked[train] = problem.target[train]
    return masked


def find_smallest_class(labels: NDArray[Any]) -> int:
    return int(np.unique(labels, return_counts=True)[1].min())


Predict = Callable[[Problem, Rows, Rows, int], NDArray[Any]]
RIVALS: dict[str, Predict] = {  # the first of equals is chosen
    "linear": predict_linear,
    "gaussian-process": predict_process,
    "extra-trees": predict_trees,
    "boosted-trees": predict_boosted,
    "histogram-boosting": predict_histograms,
    "neighbours": predict_neighbors,
    "self-training": predict_self_trained,
    "label-spreading": predict_spread,
}
ONLY_CLASSES = ("self-training", "label-spreading")
ONLY_LARGE = ("histogram-boosting",)  # its leaves of 20 rows are too large for a few dozen labels


def list_rivals(task: Task) -> list[str]:
    """Return the rivals on tables with few labels."""
    unsuitable = ONLY_LARGE if task == "classification" else (*ONLY_LARGE, *ONLY_CLASSES)
    return [name for name in RIVALS if name not in unsuitable]


def predict_rival(name: str, problem: Problem, seed: int) -> tuple[NDArray[Any], str]:
    """Return predictions for the unlabelled rows, and the model that made them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        # label spreading divides by zero at rows that no label reaches
        warnings.simplefilter("ignore", RuntimeWarning)
        # self-training may be certain of no row, or of all
        warnings.simplefilter("ignore", UserWarning)
        chosen = choose_rival(problem, seed) if name == CHOICE else name
        labeled, unlabeled = problem.split.labeled, problem.split.unlabeled
        return RIVALS[chosen](problem, labeled, unlabeled, seed), chosen


def choose_rival(problem: Problem, seed: int) -> str:
    """Return the rival with the lowest error of cross-validation over the labelled rows."""
    losses = {name: cross_validate(name, problem, seed) for name in list_rivals(problem.task)}
    return min(losses, key=lambda name: losses[name])


def cross_validate(name: str, problem: Problem, seed: int) -> float:
    """Return the error out of fold; the held-out rows take part without their labels."""
    labeled = problem.split.labeled
    losses = []
    for train, held_out in make_folds(problem, seed).split(labeled, problem.target[labeled]):
        rows = labeled[held_out]
        predicted = RIVALS[name](problem, labeled[train], rows, seed)
        losses.append(compute_losses(problem.task, predicted, problem.target[rows]))
    return float(np.concatenate(losses).mean())


def make_folds(problem: Problem, seed: int) -> KFold | StratifiedKFold:
    if problem.task == "regression":
        return KFold(MAX_FOLDS, shuffle=True, random_state=seed)
    smallest = find_smallest_class(problem.target[problem.split.labeled])
    return StratifiedKFold(min(MAX_FOLDS, smallest), shuffle=True, random_state=seed)


def compute_losses(task: Task, predicted: NDArray[Any], target: NDArray[Any]) -> Floats:
    """Return per row whether a class is wrong, or the squared error."""
    losses = predicted != target if task == "classification" else np.square(predicted - target)
    return np.asarray(losses, dtype=np.float64)
