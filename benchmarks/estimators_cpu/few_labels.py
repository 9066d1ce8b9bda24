"""Compare the estimators with scikit-learn's own on the datasets that scikit-learn embeds.

    python -m benchmarks.estimators_cpu.few_labels [SET …] [--seeds N] [--save-results FILE]
    python -m benchmarks.estimators_cpu.few_labels --from FILE

The first form fits what FILE does not hold yet and appends one line per set, model and seed. The
second prints the table of such a file as Markdown. 30 % of the rows are the test set.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from benchmarks.arguments import make_parser
from sklearn import __version__ as sklearn_version
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
from l2i.experiments.formatting import format_values, render_markdown
from l2i.training.run_dir import collect_versions, describe_hardware

RESULTS = Path(__file__).parent / "results.jsonl"
LABELS_PER_CLASS = {"digits": 4, "wine": 3, "breast_cancer": 5, "iris": 3}
LABELED_ROWS = {"diabetes": 40, "linnerud": 8}
SETS = (*LABELS_PER_CLASS, *LABELED_ROWS)
FIRST_SEED = 5  # the defaults of the estimators were chosen on the seeds below
ESTIMATOR, NETWORK = "L2I estimator", "network with L2I"  # on images the estimator is the network
OTHER_NETWORKS = ("network without L2I", "network, labels only")
OURS = (ESTIMATOR, NETWORK, *OTHER_NETWORKS)
TRANSDUCTIVE = ("LabelSpreading, kNN", "SelfTrainingClassifier, MLP")  # accept unlabelled rows
KNN = {"kernel": "knn", "n_neighbors": 10, "alpha": 0.5, "max_iter": 200}  # best of 16 on digits
MLP = {"hidden_layer_sizes": (128, 128), "max_iter": 1000}
Make = Callable[[int], BaseEstimator]


def candidates(name: str) -> dict[str, Make]:
    """Return the models to compare on a set; scikit-learn's see standardised, flat rows."""
    if name in LABELED_ROWS:
        return {
            ESTIMATOR: lambda seed: L2IRegressor(random_state=seed),
            NETWORK: lambda seed: L2IRegressor("mean-teacher", random_state=seed),
            "network without L2I": lambda seed: L2IRegressor(impute=False, random_state=seed),
            "network, labels only": lambda seed: L2IRegressor("supervised", random_state=seed),
            "MLP": lambda seed: standardized(MLPRegressor(**MLP, random_state=seed)),
            "RidgeCV": lambda seed: standardized(RidgeCV(np.logspace(-2, 4, 20))),
        }
    network: dict[str, Make] = {
        NETWORK: lambda seed: L2IClassifier("pseudo-label", random_state=seed)
    }
    return {
        ESTIMATOR: lambda seed: L2IClassifier(random_state=seed),
        **({} if name == "digits" else network),
        "network without L2I": lambda seed: L2IClassifier(impute=False, random_state=seed),
        "network, labels only": lambda seed: L2IClassifier("supervised", random_state=seed),
        "LabelSpreading, kNN": lambda seed: scaled(name, LabelSpreading(**KNN)),
        "SelfTrainingClassifier, MLP": lambda seed: scaled(
            name, SelfTrainingClassifier(MLPClassifier(**MLP, random_state=seed), threshold=0.9)
        ),
        "MLP": lambda seed: scaled(name, MLPClassifier(**MLP, random_state=seed)),
    }


def standardized(estimator: BaseEstimator) -> BaseEstimator:
    return make_pipeline(StandardScaler(), estimator)


def scaled(name: str, estimator: BaseEstimator) -> BaseEstimator:
    """Standardise rows, but not pixels, which share one scale."""
    return estimator if name == "digits" else standardized(estimator)


def make_problem(name: str, seed: int) -> tuple[Any, ...]:
    """Return training rows, targets that are mostly blank, and test rows with their targets."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    classes = None if name in LABELED_ROWS else y
    x, x_test, y, y_test = train_test_split(
        x, y, test_size=0.3, random_state=seed, stratify=classes
    )
    order = np.random.RandomState(seed).permutation(len(x))
    if classes is None:
        blank = np.full(y.shape, np.nan)
        rows = order[: LABELED_ROWS[name]]
    else:
        blank = np.full(len(y), -1)
        count = LABELS_PER_CLASS[name]
        rows = np.concatenate([order[y[order] == c][:count] for c in np.unique(y)])
    blank[rows] = y[rows]
    return x, blank, x_test, y_test


def measure(name: str, model: str, seed: int) -> tuple[float, float]:
    """Return the error in %, or the RMSE, on the test rows, and the CPU seconds of the fit."""
    x, y, x_test, y_test = make_problem(name, seed)
    if model not in OURS and model not in TRANSDUCTIVE:
        labeled = ~np.isnan(y) if name in LABELED_ROWS else y >= 0
        labeled = labeled if labeled.ndim == 1 else labeled.all(axis=1)
        x, y = x[labeled], y[labeled]
    if model in OURS and name == "digits":
        x, x_test = x.reshape(-1, 8, 8), x_test.reshape(-1, 8, 8)
    start = time.process_time()
    estimator = candidates(name)[model](seed).fit(x, y)
    seconds = time.process_time() - start
    if name in LABELED_ROWS:
        return float(np.sqrt(np.square(estimator.predict(x_test) - y_test).mean())), seconds
    return 100 * (1 - float(estimator.score(x_test, y_test))), seconds


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fit_missing(names: Sequence[str], seeds: int, path: Path) -> None:
    """Fit the models on the sets and seeds that `path` does not hold, and append the results."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    # LabelSpreading divides by zero at rows that no label reaches
    warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
    stored = {(line["set"], line["model"], line["seed"]) for line in read_lines(path)}
    conditions = {
        "hardware": describe_hardware(torch.device("cpu")),
        "versions": {**collect_versions(), "scikit-learn": sklearn_version},
    }
    for name in names:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            for model in candidates(name):
                if (name, model, seed) in stored:
                    continue
                metric, seconds = measure(name, model, seed)
                line = {"set": name, "model": model, "seed": seed, "metric": metric}
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**line, "seconds": seconds, **conditions}) + "\n")
                print(f"{name}, {model}, seed {seed}: {metric:.2f} in {seconds:.1f} s", flush=True)


def render_table(path: Path) -> str:
    """Return the table of a file as Markdown: one row per model, one column per set."""
    lines = read_lines(path)
    names = [name for name in SETS if any(line["set"] == name for line in lines)]
    models = list(dict.fromkeys(model for name in names for model in candidates(name)))

    def values(name: str, model: str, field: str) -> list[float]:
        return [line[field] for line in lines if (line["set"], line["model"]) == (name, model)]

    def format_cell(name: str, model: str) -> str:
        found = values(name, model, "metric")
        decimals = 1 if name in LABELED_ROWS else 2
        return format_values(found, decimals) if found else ""

    def format_difference(name: str, model: str) -> str:
        """Return the network with L2I minus another, paired by seed."""
        metrics = {
            (line["model"], line["seed"]): line["metric"] for line in lines if line["set"] == name
        }
        network = ESTIMATOR if name == "digits" else NETWORK
        paired = [
            metric - metrics[model, seed] for (m, seed), metric in metrics.items() if m == network
        ]
        return format_values(paired, 1 if name in LABELED_ROWS else 2, "+")

    labels = {name: f"{count} per class" for name, count in LABELS_PER_CLASS.items()}
    labels |= {name: str(count) for name, count in LABELED_ROWS.items()}
    seconds = [f"{mean(values(name, ESTIMATOR, 'seconds')):.1f}" for name in names]
    rows = [
        ["", *(name.replace("_", "-") for name in names)],
        ["metric", *("RMSE" if name in LABELED_ROWS else "error (%)" for name in names)],
        ["labels", *(labels[name] for name in names)],
        ["seeds", *(str(len(values(name, ESTIMATOR, "metric"))) for name in names)],
        *([model, *(format_cell(name, model) for name in names)] for model in models),
        *(
            [f"Δ {model}", *(format_difference(name, model) for name in names)]
            for model in OTHER_NETWORKS
        ),
        [f"CPU seconds per fit, {ESTIMATOR}", *seconds],
    ]
    return render_markdown(rows, code=False)


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("estimators_cpu.few_labels", __doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--save-results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--from", dest="from_", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if unknown := set(options.sets) - set(SETS):
        parser.error(f"unknown set '{min(unknown)}'; choose from {', '.join(SETS)}")
    if options.from_ is not None:
        print(render_table(options.from_), end="")
    else:
        fit_missing(options.sets or SETS, options.seeds, options.save_results)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
