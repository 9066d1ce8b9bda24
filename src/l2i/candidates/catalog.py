"""The candidates of a table by name, cheap ones first."""

from __future__ import annotations

from collections.abc import Sequence

from l2i.candidates.base import Candidate
from l2i.candidates.models import (
    Model,
    fit_boosted_trees,
    fit_constant,
    fit_extra_trees,
    fit_gaussian_process,
    fit_neighbors,
    fit_ridge,
    make_logistic,
)
from l2i.candidates.network import Network
from l2i.candidates.semi_supervised import Imputing, SelfTraining, Spreading
from l2i.config import Run, replace
from l2i.data.transforms.image import Augment, ColumnLayout
from l2i.errors import InputError
from l2i.registry import make_unknown_error

CLASSES, TARGETS = ("classification",), ("regression",)
MAX_PROCESS_CLASS_ROWS, MAX_PROCESS_ROWS, MAX_NEIGHBOR_ROWS = 300, 1000, 10_000
PROCESS_SECONDS = 10.0  # of a Gaussian process of 1,000 rows, roughly
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
        title="logistic regression, strong penalty",
        fit_rows=make_logistic(10.0),
        tasks=CLASSES,
    ),
    Model(
        name="logistic-regression-weak",
        title="logistic regression, weak penalty",
        fit_rows=make_logistic(0.1),
        tasks=CLASSES,
    ),
    Model(name="ridge", title="ridge regression", fit_rows=fit_ridge, tasks=TARGETS),
    Model(
        name="nearest-neighbors",
        title="nearest neighbours",
        fit_rows=fit_neighbors,
        max_rows=MAX_NEIGHBOR_ROWS,
        takes_weights=False,
    ),
    Model(name="boosted-trees", title="boosted trees", fit_rows=fit_boosted_trees),
    Model(name="extra-trees", title="extra trees", fit_rows=fit_extra_trees),
    Model(
        name="gaussian-process",
        title="Gaussian process",
        fit_rows=fit_gaussian_process,
        max_rows=MAX_PROCESS_CLASS_ROWS,
        tasks=CLASSES,
        takes_weights=False,
        seconds_for_many_rows=PROCESS_SECONDS,
    ),
    Model(
        name="gaussian-process",
        title="Gaussian process",
        fit_rows=fit_gaussian_process,
        max_rows=MAX_PROCESS_ROWS,
        tasks=TARGETS,
        takes_weights=False,
        seconds_for_many_rows=PROCESS_SECONDS,
    ),
    SelfTraining(base=LOGISTIC),
    Spreading(),
    Imputing(),
)
CANDIDATE_NAMES = tuple(dict.fromkeys([*(c.name for c in MODELS), *NETWORK_NAMES, SWAPS]))


def list_candidates(
    run: Run | None, columns: ColumnLayout, task: str, names: Sequence[str] = ()
) -> list[Candidate]:
    """Return the candidates of a task, or the named ones; `run` trains the networks, if any."""
    check_names(names, task)
    of_task = _list_models(task)
    networks = [] if run is None else _list_networks(run, columns)
    return [c for c in (*of_task, *networks) if not names or c.name in names]


def check_names(names: Sequence[str], task: str) -> None:
    """Check that candidates exist, and that some of them are for the task."""
    for name in names:
        if name not in CANDIDATE_NAMES:
            raise make_unknown_error("candidate", name, list(CANDIDATE_NAMES))
    suitable = {*(candidate.name for candidate in _list_models(task)), *NETWORK_NAMES, SWAPS}
    if names and not suitable & set(names):
        fix = "leave out candidates to try all that do"
        raise InputError(f"none of these candidates suits the data: {', '.join(names)}; {fix}")


def _list_models(task: str) -> list[Candidate]:
    return [c for c in MODELS if not isinstance(c, Model) or task in c.tasks]


def _list_networks(run: Run, columns: ColumnLayout) -> list[Candidate]:
    """Return networks of the labels alone, with and without swapped columns, and of the method."""
    off = {"update": "off"}
    alone = replace(run, method="supervised", l2i=off)
    has_own_views = bool(run.data.weak.corrupt or run.data.strong.corrupt)
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
