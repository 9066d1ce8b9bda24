"""Folds over the labelled rows, and predictions of rows by models that have not seen them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from torch import nn

from l2i.candidates.base import Candidate, Floats, TableRows, predict
from l2i.candidates.predictors import AveragePredictor

NUM_FOLDS, NUM_FOLDS_MANY_ROWS = 5, 3
MANY_ROWS = 20_000  # labelled rows, from which fewer folds are enough
REPEATS = ((60, 3), (150, 2))  # labelled rows, and how often to repeat the folds up to so many
MAX_SEED = 2**32  # exclusive, of scikit-learn
MIN_ROWS = 6  # labelled rows, below which nothing can be compared

Fold = tuple[NDArray[np.intp], NDArray[np.intp]]  # training and test rows


def draw_folds(rows: TableRows, seed: int) -> list[list[Fold]]:
    """Return folds of the labelled rows, repeated where they are few; none if they are too few."""
    count = _count_folds(rows)
    if count < 2:
        return []
    repeats = next((times for limit, times in REPEATS if len(rows.x) <= limit), 1)
    return [_draw_repeat(rows, count, (seed + i) % MAX_SEED) for i in range(repeats)]


def _count_folds(rows: TableRows) -> int:
    if len(rows.x) < MIN_ROWS:
        return 0
    count = NUM_FOLDS if len(rows.x) < MANY_ROWS else NUM_FOLDS_MANY_ROWS
    if rows.groups is not None:
        count = min(count, len(np.unique(rows.groups)))
    if rows.num_classes is not None:
        count = min(count, int(np.bincount(rows.y).max()))
    return count


def _draw_repeat(rows: TableRows, count: int, seed: int) -> list[Fold]:
    options = {"n_splits": count, "shuffle": True, "random_state": seed}
    is_classifier = rows.num_classes is not None
    if rows.groups is not None:
        kfold = StratifiedGroupKFold(**options) if is_classifier else GroupKFold(**options)
    else:
        kfold = StratifiedKFold(**options) if is_classifier else KFold(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer labels than folds
        folds = kfold.split(rows.x, rows.y if is_classifier else None, rows.groups)
        return [fold for fold in folds if len(fold[0]) and len(fold[1])]


def predict_out_of_fold(
    candidate: Candidate, rows: TableRows, folds: list[Fold], seed: int
) -> Floats:
    """Return the outputs of every labelled row by a model that has not seen its label."""
    outputs = np.zeros((len(rows.x), rows.num_outputs))
    for train, test in folds:
        outputs[test] = predict(candidate.fit(rows.take(train), seed), rows.x[test])
    return outputs


def fit_average(candidates: Sequence[Candidate], rows: TableRows, seed: int) -> nn.Module:
    """Fit candidates to all labels, and average them if there are several."""
    models = [candidate.fit(rows, seed) for candidate in candidates]
    if len(models) == 1:
        return models[0]
    return AveragePredictor(models, is_classifier=rows.num_classes is not None)


def predict_unlabeled(
    candidates: Sequence[Candidate], rows: TableRows, seed: int, num_folds: int
) -> Floats:
    """Return the outputs of every unlabelled row by a model that has not seen that row."""
    outputs = np.zeros((len(rows.unlabeled), rows.num_outputs))
    for test in _split_unlabeled(rows, seed, num_folds):
        others = np.setdiff1d(np.arange(len(outputs)), test)
        model = fit_average(candidates, rows.take_unlabeled(others), seed)
        outputs[test] = predict(model, rows.unlabeled[test])
    return outputs


def _split_unlabeled(rows: TableRows, seed: int, num_folds: int) -> list[NDArray[np.intp]]:
    """Divide the unlabelled rows; those of a group stay together."""
    groups = np.arange(len(rows.unlabeled))
    if rows.unlabeled_groups is not None:
        groups = np.unique(rows.unlabeled_groups, return_inverse=True)[1]
    if groups.max() == 0:  # a single group has to be divided
        groups = np.arange(len(groups))
    order = np.random.default_rng(seed).permutation(groups.max() + 1)
    parts = [part for part in np.array_split(order, num_folds) if len(part)]
    return [np.flatnonzero(np.isin(groups, part)) for part in parts]
