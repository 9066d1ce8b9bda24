"""Models that learn from the labels alone: fitted by scikit-learn, kept as predictors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from torch import nn

from l2i.candidates.base import Candidate, Score, TableRows
from l2i.candidates.predictors import (
    BoostedPredictor,
    KernelPredictor,
    LaplacePredictor,
    LinearPredictor,
    NeighborPredictor,
)
from l2i.candidates.trees import (
    ABSENT_LOGIT,
    convert_boosting,
    convert_forest,
    convert_histogram_boosting,
)

RIDGE_PENALTIES = np.logspace(-3, 3, 13)
MAX_LOGISTIC_STEPS = 1000
MAX_NEIGHBORS = 5
MIN_HISTOGRAM_ROWS, MIN_HISTOGRAM_SECONDS = 2000, 2.0  # from here on boosted trees bin inputs
MANY_ROWS = 2000  # from here on a forest has fewer trees
VERY_MANY_ROWS, MIN_LEAF_OF_VERY_MANY = 10_000, 5  # from here on its leaves are larger
SECONDS_OF_PROCESS = 10.0  # of a Gaussian process of 1,000 rows and one output
SECONDS_OF_CLASS_PROCESS = 40.0  # likewise, of one class
SECONDS_PER_PAIR = 2e-10  # of two rows that are compared, by one column
NUM_STAGES = 100  # of boosted trees
SECONDS_PER_SPLIT = 1.6e-8  # of one row, by one column, at one depth of one tree
SECONDS_PER_BIN, ROWS_OF_BINS = 7e-9, 5000  # likewise with binned inputs, which cost rows too
Fit = Callable[[TableRows, int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Model(Candidate):
    """A model of the labels alone."""

    name: str
    title: str
    fit_rows: Fit
    max_rows: int | None = None
    """Labelled rows that it can be fitted to in reasonable time."""
    tasks: tuple[str, ...] = ("classification", "regression")
    takes_weights: bool = True
    expect: Callable[[TableRows], float] = lambda rows: 0.0
    """Seconds of a fit, roughly."""
    sibling: str | None = None
    """A candidate that takes about as long."""

    @property
    def is_constant(self) -> bool:
        """Return whether it ignores the inputs."""
        return self.fit_rows is fit_constant

    def find_obstacle(self, rows: TableRows) -> str | None:
        if ("regression" if rows.num_classes is None else "classification") not in self.tasks:
            return f"it is for {self.tasks[0]}"
        if self.max_rows is not None and len(rows.x) > self.max_rows:
            return f"it takes at most {self.max_rows:,} labelled rows"
        return None if self.takes_weights or not rows.is_weighted else "it takes no weights of rows"

    def expect_seconds(self, rows: TableRows, num_fits: int, scores: Mapping[str, Score]) -> float:
        if self.sibling is not None and self.sibling in scores:
            return scores[self.sibling].seconds
        return num_fits * self.expect(rows)

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        if rows.num_classes is not None and len(np.unique(rows.y)) < 2:
            return fit_constant(rows, seed)  # scikit-learn refuses a single class
        with ignore_warnings():
            return self.fit_rows(rows, seed)


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Silence what scikit-learn warns about, such as convergence: cross-validation judges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fit_constant(rows: TableRows, seed: int) -> nn.Module:
    """Predict the classes' shares, or the mean target."""
    if rows.num_classes is None:
        bias = np.average(rows.y, axis=0, weights=rows.weight)
    else:
        counts = np.bincount(rows.y, weights=rows.weight, minlength=rows.num_classes)
        with np.errstate(divide="ignore"):
            bias = np.maximum(np.log(counts / counts.sum()), ABSENT_LOGIT)
    return _make_linear(np.zeros((rows.x.shape[1], len(bias))), bias)


def make_logistic(penalty: float) -> Fit:
    """Return a fit of logistic regression; a larger `penalty` shrinks its weights."""

    def fit(rows: TableRows, seed: int) -> nn.Module:
        model = LogisticRegression(C=1 / penalty, max_iter=MAX_LOGISTIC_STEPS)
        model.fit(rows.x, rows.y, sample_weight=rows.weight)
        weight, bias = model.coef_.T, model.intercept_
        if len(model.classes_) == 2:
            weight = np.concatenate([np.zeros_like(weight), weight], axis=1)
            bias = np.concatenate([np.zeros_like(bias), bias])
        return _make_linear(*spread_classes(rows, model.classes_, weight, bias))

    return fit


def spread_classes(
    rows: TableRows, present: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Put what was learned of the present classes [K, P] and [P] among all classes."""
    assert rows.num_classes is not None
    all_weights = np.zeros((len(weight), rows.num_classes))
    all_biases = np.full(rows.num_classes, bias.min() + ABSENT_LOGIT)
    all_weights[:, present], all_biases[present] = weight, bias
    return all_weights, all_biases


def fit_ridge(rows: TableRows, seed: int) -> nn.Module:
    """Fit ridge regression, its penalty chosen by leaving out one row at a time."""
    model = RidgeCV(alphas=RIDGE_PENALTIES).fit(rows.x, rows.y, sample_weight=rows.weight)
    weight = np.reshape(model.coef_, (rows.y.shape[1], -1)).T
    return _make_linear(weight, np.reshape(model.intercept_, -1))


def _make_linear(weight: NDArray[Any], bias: NDArray[Any]) -> nn.Module:
    return LinearPredictor(weight=_to_tensor(weight), bias=_to_tensor(bias))


def fit_neighbors(rows: TableRows, seed: int) -> nn.Module:
    """Average the nearest labelled rows; for classes, and one more row of all their shares."""
    is_classifier, value = rows.num_classes is not None, rows.y
    if rows.num_classes is not None:
        one_hot = np.eye(rows.num_classes)[rows.y]
        share = 1 / (1 + min(MAX_NEIGHBORS, len(rows.x)))
        value = (1 - share) * one_hot + share * one_hot.mean(axis=0)
    return NeighborPredictor(
        rows=_to_tensor(rows.x),
        value=_to_tensor(value),
        num_neighbors=torch.tensor(min(MAX_NEIGHBORS, len(rows.x))),
        is_probability=torch.tensor(int(is_classifier)),
    )


def fit_extra_trees(rows: TableRows, seed: int) -> nn.Module:
    """Fit extremely randomised trees."""
    make = ExtraTreesRegressor if rows.num_classes is None else ExtraTreesClassifier
    min_leaf = 1 if len(rows.x) <= VERY_MANY_ROWS else MIN_LEAF_OF_VERY_MANY
    model = make(_count_trees(rows), min_samples_leaf=min_leaf, random_state=seed)
    model.fit(rows.x, _get_targets(rows), sample_weight=rows.weight)
    return convert_forest(model, rows.num_outputs)


def _count_trees(rows: TableRows) -> int:
    return 300 if len(rows.x) <= MANY_ROWS else 100


def expect_neighbors(rows: TableRows) -> float:
    """Return about how many seconds it takes to compare all rows with each other."""
    return SECONDS_PER_PAIR * len(rows.x) ** 2 * int(rows.x.shape[1])


def expect_extra_trees(rows: TableRows) -> float:
    """Return about how many seconds a forest takes."""
    num_rows, num_columns = len(rows.x), int(rows.x.shape[1])
    num_tried = num_columns if rows.num_classes is None else math.sqrt(num_columns)
    depth: float = math.log2(num_rows + 1)
    return SECONDS_PER_SPLIT * num_rows * depth * num_tried * _count_trees(rows)


def expect_boosted_trees(rows: TableRows) -> float:
    """Return about how many seconds gradient boosting takes."""
    if not _bins_inputs(rows):
        return _expect_exact_boosting(rows)
    num_rows, num_columns = len(rows.x), int(rows.x.shape[1])
    return SECONDS_PER_BIN * (num_rows + ROWS_OF_BINS) * num_columns * _count_boosted(rows)


def _expect_exact_boosting(rows: TableRows) -> float:
    num_rows, num_columns = len(rows.x), int(rows.x.shape[1])
    depth: float = math.log2(num_rows + 1)
    return SECONDS_PER_SPLIT * num_rows * depth * num_columns * _count_boosted(rows)


def _count_boosted(rows: TableRows) -> int:
    """Return the number of boosted trees: one per stage and class or target, one for two."""
    return NUM_STAGES * (1 if rows.num_classes == 2 else rows.num_outputs)


def _bins_inputs(rows: TableRows) -> bool:
    is_slow = _expect_exact_boosting(rows) > MIN_HISTOGRAM_SECONDS
    return is_slow or len(rows.x) >= MIN_HISTOGRAM_ROWS


def fit_boosted_trees(rows: TableRows, seed: int) -> nn.Module:
    """Fit gradient boosting; on many rows with binned inputs."""
    is_binned = _bins_inputs(rows)
    options: dict[str, Any] = {"random_state": seed}
    if is_binned:
        options["early_stopping"] = False  # which would set rows aside
    if rows.num_classes is not None:
        make = HistGradientBoostingClassifier if is_binned else GradientBoostingClassifier
        models = [make(**options).fit(rows.x, rows.y, sample_weight=rows.weight)]
    else:
        make = HistGradientBoostingRegressor if is_binned else GradientBoostingRegressor
        models = [
            make(**options).fit(rows.x, target, sample_weight=rows.weight) for target in rows.y.T
        ]
    convert = convert_histogram_boosting if is_binned else convert_boosting
    trees: BoostedPredictor = convert(models, rows.num_outputs)
    return trees


def expect_gaussian_process(rows: TableRows) -> float:
    """Return about how many seconds a Gaussian process takes: its time grows with rows cubed.

    With classes it takes many more steps, which are slow for few rows too.
    """
    size = len(rows.x) / 1000
    if rows.num_classes is None:
        return SECONDS_OF_PROCESS * size**3
    return SECONDS_OF_CLASS_PROCESS * rows.num_classes * size**2


def expect_scaled_process(rows: TableRows) -> float:
    """Return about how many seconds it takes with a length per column."""
    return expect_gaussian_process(rows) * (1 + 0.5 * int(rows.x.shape[1]))


def fit_gaussian_process(rows: TableRows, seed: int) -> nn.Module:
    """Fit a Gaussian process, its kernel chosen by the marginal likelihood."""
    length = float(np.sqrt(rows.x.shape[1]))
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(length, (1e-2, 1e4))
    if rows.num_classes is not None:
        return _fit_laplace(kernel, rows, seed)
    return _fit_process(kernel, rows, seed)


def fit_scaled_process(rows: TableRows, seed: int) -> nn.Module:
    """Fit a Gaussian process to targets whose kernel has a length per column."""
    lengths = np.full(rows.x.shape[1], np.sqrt(rows.x.shape[1]))
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(lengths, (1e-1, 1e3))
    return _fit_process(kernel, rows, seed)


def _fit_process(kernel: Any, rows: TableRows, seed: int) -> nn.Module:
    noise = WhiteKernel(1.0, (1e-6, 10.0))  # with less at first, it may find noise to be signal
    model = GaussianProcessRegressor(kernel + noise, random_state=seed)
    mean = rows.y.mean(axis=0)
    model.fit(rows.x.astype(np.float64), rows.y - mean)
    product = model.kernel_.k1
    return KernelPredictor(
        rows=_to_tensor(rows.x),
        length=_to_tensor(product.k2.length_scale),
        weight=_to_tensor(product.k1.constant_value * model.alpha_.reshape(len(rows.x), -1)),
        bias=_to_tensor(mean),
    )


def _fit_laplace(kernel: Any, rows: TableRows, seed: int) -> nn.Module:
    assert rows.num_classes is not None
    x, count = rows.x.astype(np.float64), len(rows.x)
    parts: list[tuple[float, float, NDArray[Any], NDArray[Any]]] = []
    for k in range(rows.num_classes):
        if not (rows.y == k).any():
            parts.append((1.0, 1e-12, np.full(count, ABSENT_LOGIT), np.zeros((count, count))))
            continue
        binary = GaussianProcessClassifier(kernel, random_state=seed).fit(x, rows.y == k)
        model = binary.base_estimator_
        root = np.linalg.solve(model.L_, np.diag(model.W_sr_))
        amplitude, length = model.kernel_.k1.constant_value, model.kernel_.k2.length_scale
        parts.append((length, amplitude, model.y_train_ - model.pi_, root))
    lengths, amplitudes, weights, roots = zip(*parts, strict=True)
    return LaplacePredictor(
        rows=_to_tensor(x),
        length=_to_tensor(lengths),
        amplitude=_to_tensor(amplitudes),
        weight=_to_tensor(np.stack(weights)),
        root=_to_tensor(np.stack(roots)),
    )


def _get_targets(rows: TableRows) -> NDArray[Any]:
    """Return targets as scikit-learn likes them: [N] if there is one."""
    return rows.y[:, 0] if rows.y.ndim == 2 and rows.y.shape[1] == 1 else rows.y


def _to_tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))
