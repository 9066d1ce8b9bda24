"""The candidates of a table, and of features of images, by name, cheap ones first."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

from l2i.candidates.base import Candidate
from l2i.candidates.features import Clusters, SoftSelfTraining, fit_least_squares
from l2i.candidates.models import (
    Model,
    expect_boosted_trees,
    expect_extra_trees,
    expect_gaussian_process,
    expect_neighbors,
    expect_scaled_process,
    fit_boosted_trees,
    fit_constant,
    fit_extra_trees,
    fit_gaussian_process,
    fit_neighbors,
    fit_ridge,
    fit_scaled_process,
    make_logistic,
)
from l2i.candidates.network import Network
from l2i.candidates.selection import CONSTANTS
from l2i.candidates.semi_supervised import Imputing, SelfTraining, Spreading
from l2i.config import Run, replace
from l2i.data.transforms.image import Augment, ColumnLayout
from l2i.errors import InputError

CLASSES, TARGETS = ("classification",), ("regression",)
MAX_PROCESS_CLASS_ROWS, MAX_PROCESS_ROWS, MAX_SCALED_PROCESS_ROWS = 300, 1000, 500
MAX_NEIGHBOR_ROWS = 10_000
SWAPPED_VIEWS = {"weak": Augment(noise=0.1, corrupt=0.1), "strong": Augment(noise=0.2, corrupt=0.3)}
LOGISTIC = Model(
    name="logistic-regression",
    title="logistic regression",
    fit_rows=make_logistic(1.0),
    tasks=CLASSES,
)
NETWORK_NAMES = ("network", "semi-supervised", "l2i")
SWAPS = "network-swaps"
MODELS: tuple[Candidate, ...] = (
    Model(name="majority", title="majority class", fit_rows=fit_constant, tasks=CLASSES),
    Model(name="mean", title="mean", fit_rows=fit_constant, tasks=TARGETS),
    LOGISTIC,
    Model(
        name="logistic-regression-strong",
        title="logistic regression (strong penalty)",
        fit_rows=make_logistic(10.0),
        tasks=CLASSES,
        sibling="logistic-regression",
    ),
    Model(
        name="logistic-regression-weak",
        title="logistic regression (weak penalty)",
        fit_rows=make_logistic(0.1),
        tasks=CLASSES,
        sibling="logistic-regression",
    ),
    Model(name="ridge", title="ridge regression", fit_rows=fit_ridge, tasks=TARGETS),
    Model(
        name="nearest-neighbors",
        title="nearest neighbours",
        fit_rows=fit_neighbors,
        max_rows=MAX_NEIGHBOR_ROWS,
        takes_weights=False,
        expect=expect_neighbors,
    ),
    Model(
        name="extra-trees", title="extra trees", fit_rows=fit_extra_trees, expect=expect_extra_trees
    ),
    Model(
        name="boosted-trees",
        title="boosted trees",
        fit_rows=fit_boosted_trees,
        expect=expect_boosted_trees,
    ),
    Model(
        name="gaussian-process",
        title="Gaussian process",
        fit_rows=fit_gaussian_process,
        max_rows=MAX_PROCESS_CLASS_ROWS,
        tasks=CLASSES,
        takes_weights=False,
        expect=expect_gaussian_process,
    ),
    Model(
        name="gaussian-process",
        title="Gaussian process",
        fit_rows=fit_gaussian_process,
        max_rows=MAX_PROCESS_ROWS,
        tasks=TARGETS,
        takes_weights=False,
        expect=expect_gaussian_process,
    ),
    Model(
        name="gaussian-process-per-column",
        title="Gaussian process (a length per column)",
        fit_rows=fit_scaled_process,
        max_rows=MAX_SCALED_PROCESS_ROWS,
        tasks=TARGETS,
        takes_weights=False,
        expect=expect_scaled_process,
    ),
    SelfTraining(base=LOGISTIC),
    Spreading(),
    Imputing(),
)
FEATURE_MODELS: tuple[Candidate, ...] = (  # besides some of those of a table
    Model(name="least-squares", title="least squares", fit_rows=fit_least_squares, tasks=CLASSES),
    Clusters(),
    SoftSelfTraining(name="soft-self-training", title="self-trained least squares", penalty=30.0),
    SoftSelfTraining(
        name="soft-self-training-strong",
        title="self-trained least squares (strong penalty)",
        penalty=300.0,
    ),
)
NAMES_FOR_FEATURES = {
    "classification": (
        *("majority", "logistic-regression", "logistic-regression-strong"),
        *("logistic-regression-weak", "least-squares", "nearest-neighbors", "clusters"),
        *("soft-self-training", "soft-self-training-strong", "label-spreading", "imputing"),
    ),
    "regression": ("mean", "ridge", "nearest-neighbors", "gaussian-process", "imputing"),
}
Inputs = Literal["columns", "features"]
DEFAULTS: dict[Inputs, tuple[str, ...]] = {  # averaged unless another candidate is clearly better
    "columns": (),
    "features": ("logistic-regression", "soft-self-training"),
}
CANDIDATE_NAMES = tuple(
    dict.fromkeys([c.name for c in (*MODELS, *FEATURE_MODELS)] + [*NETWORK_NAMES, SWAPS])
)


def list_candidates(
    run: Run | None,
    columns: ColumnLayout,
    task: str,
    names: Sequence[str] = (),
    inputs: Inputs = "columns",
) -> list[Candidate]:
    """Return the candidates of a task, or the named ones; `run` trains the networks, if any.

    Models that ignore the inputs are always among them: others are judged beside them.
    """
    check_names(names, task, inputs)
    networks = [] if run is None else _list_networks(run, columns, inputs)
    listed = [*_list_models(task, inputs), *networks]
    if not names:
        return listed
    if {*names} <= {*NETWORK_NAMES, SWAPS}:
        return [c for c in listed if c.name in names]
    return [c for c in listed if c.name in (*names, *CONSTANTS)]


def check_names(names: Sequence[str], task: str, inputs: Inputs = "columns") -> None:
    """Check that candidates exist, and that some of them are for the task."""
    for name in names:
        if name not in CANDIDATE_NAMES:
            close = get_close_matches(name, CANDIDATE_NAMES, 1)
            fix = f"perhaps you meant '{close[0]}'" if close else "choose from"
            choices = "" if close else f" {', '.join(CANDIDATE_NAMES)}"
            raise InputError(f"unknown candidate '{name}'; {fix}{choices}")
    networks = (*NETWORK_NAMES, SWAPS) if inputs == "columns" else NETWORK_NAMES
    suitable = {*(candidate.name for candidate in _list_models(task, inputs)), *networks}
    if names and not suitable & set(names):
        fix = "leave out candidates to try all that do"
        raise InputError(f"none of these candidates suits the data: {', '.join(names)}; {fix}")


def _list_models(task: str, inputs: Inputs) -> list[Candidate]:
    if inputs == "columns":
        return [c for c in MODELS if _suits(c, task)]
    by_name = {c.name: c for c in (*MODELS, *FEATURE_MODELS) if _suits(c, task)}
    return [by_name[name] for name in NAMES_FOR_FEATURES[task]]


def _suits(candidate: Candidate, task: str) -> bool:
    return not isinstance(candidate, Model) or task in candidate.tasks


def _list_networks(run: Run, columns: ColumnLayout, inputs: Inputs) -> list[Candidate]:
    """Return networks of the labels alone, with and without swapped columns, and of the method."""
    off = {"update": "off"}
    alone = replace(run, method="supervised", l2i=off)
    has_own_views = bool(run.data.weak.corrupt or run.data.strong.corrupt)
    has_own_views |= inputs == "features"  # of which none is like a column of a table
    views = None if has_own_views else ("network", SWAPS)
    networks = [Network(name="network", run=alone, columns=columns)]
    if not has_own_views:
        swapped = replace(alone, data=SWAPPED_VIEWS)
        networks.append(Network(name=SWAPS, run=swapped, columns=columns))
    if run.method.name != "supervised":
        method = replace(run, l2i=off)
        networks.append(
            Network(name="semi-supervised", run=method, columns=columns, views_of=views)
        )
    if run.l2i.update != "off":
        networks.append(Network(name="l2i", run=run, columns=columns, views_of=views))
    return list(networks)
