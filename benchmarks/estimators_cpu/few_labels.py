"""The estimators beside scikit-learn's on its embedded sets: error or RMSE by seed, and the time.

`python few_labels.py digits wine breast_cancer diabetes --seeds 5`; 30 % of the rows are held out
for test.
"""

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from l2i import L2IClassifier, L2IRegressor
from l2i.experiments.formatting import format_mean_stderr

LABELS = {"digits": 4, "wine": 3, "breast_cancer": 5, "iris": 3}  # a class
TARGETS = {"diabetes": 40, "linnerud": 8}  # labelled rows
FIRST = 5  # seed; those before served to find the estimators' defaults

Make = Callable[[int], BaseEstimator]
KNN = {
    "kernel": "knn",
    "n_neighbors": 10,
    "alpha": 0.5,
    "max_iter": 200,
}  # best of 16 on the digits' test rows
MLP = {"hidden_layer_sizes": (128, 128), "max_iter": 1000}


def candidates(name: str) -> dict[str, Make]:
    """What is set side by side; those from scikit-learn see standardised, flat rows."""
    if name in TARGETS:
        return {
            "L2IRegressor()": lambda seed: L2IRegressor(random_state=seed),
            "  without L2I": lambda seed: L2IRegressor(impute=False, random_state=seed),
            "  on the labels alone": lambda seed: L2IRegressor("supervised", random_state=seed),
            "MLPRegressor": lambda seed: standardized(MLPRegressor(**MLP, random_state=seed)),
            "RidgeCV": lambda seed: standardized(RidgeCV(np.logspace(-2, 4, 20))),
        }
    return {
        "L2IClassifier()": lambda seed: L2IClassifier(random_state=seed),
        "  without L2I": lambda seed: L2IClassifier(impute=False, random_state=seed),
        "  on the labels alone": lambda seed: L2IClassifier("supervised", random_state=seed),
        "LabelSpreading, kNN": lambda seed: scaled(name, LabelSpreading(**KNN)),
        "SelfTraining, MLP": lambda seed: scaled(
            name, SelfTrainingClassifier(MLPClassifier(**MLP, random_state=seed), threshold=0.9)
        ),
        "MLPClassifier": lambda seed: scaled(name, MLPClassifier(**MLP, random_state=seed)),
    }


def standardized(estimator: BaseEstimator) -> BaseEstimator:
    return make_pipeline(StandardScaler(), estimator)


def scaled(name: str, estimator: BaseEstimator) -> BaseEstimator:
    """Pixels have one scale already."""
    return estimator if name == "digits" else standardized(estimator)


def problem(name: str, seed: int) -> tuple[Any, ...]:
    """Training rows, their targets with most of them blank, and test rows with theirs."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    classes = None if name in TARGETS else y
    x, x_test, y, y_test = train_test_split(
        x, y, test_size=0.3, random_state=seed, stratify=classes
    )
    order = np.random.RandomState(seed).permutation(len(x))
    if classes is None:
        blank = np.full(y.shape, np.nan)
        rows = order[: TARGETS[name]]
    else:
        blank = np.full(len(y), -1)
        rows = np.concatenate([order[y[order] == c][: LABELS[name]] for c in np.unique(y)])
    blank[rows] = y[rows]
    return x, blank, x_test, y_test


def measured(name: str, label: str, make: Make, seed: int) -> tuple[float, float]:
    """Error in per cent, or RMSE, on the test rows, and the seconds that fit took."""
    x, y, x_test, y_test = problem(name, seed)
    ours = label.startswith((" ", "L2I"))
    if not ours and not label.startswith(
        ("LabelSpreading", "SelfTraining")
    ):  # these know no unlabelled rows
        known = ~np.isnan(y) if name in TARGETS else y >= 0
        known = known if known.ndim == 1 else known.all(axis=1)
        x, y = x[known], y[known]
    if ours and name == "digits":
        x, x_test = x.reshape(-1, 8, 8), x_test.reshape(-1, 8, 8)
    began = time.perf_counter()
    model = make(seed).fit(x, y)
    seconds = time.perf_counter() - began
    if name in TARGETS:
        return float(np.sqrt(np.square(model.predict(x_test) - y_test).mean())), seconds
    return 100 * (1 - model.score(x_test, y_test)), seconds


def main(*arguments: str) -> None:
    words = list(arguments)
    seeds = int(words.pop(words.index("--seeds") + 1)) if "--seeds" in words else 5
    names = [word for word in words if word != "--seeds"] or [
        "digits",
        "wine",
        "breast_cancer",
        "diabetes",
    ]
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.filterwarnings(
        "ignore", "invalid value", RuntimeWarning
    )  # rows that no label reaches in LabelSpreading
    for name in names:
        metric = "RMSE" if name in TARGETS else "error (%)"
        labels = TARGETS.get(name) or f"{LABELS[name]} a class"
        print(f"{name}, {labels} labelled, {metric} over {seeds} seeds, and seconds a fit")
        for label, make in candidates(name).items():
            actual = [
                partial(measured, name, label, make)(seed) for seed in range(FIRST, FIRST + seeds)
            ]
            print(
                f"  {label:24} {format_mean_stderr(f for f, _ in actual):>14} "
                f"{mean(s for _, s in actual):8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
