"""Cross-validation over labelled rows; unlabelled rows are trained on in every fold.

It also decides whether the unlabelled rows help on the data at hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator, KFold, StratifiedKFold
from sklearn.utils.multiclass import type_of_target

from l2i.config import Run, replace
from l2i.data.samples import Splits
from l2i.errors import InputError
from l2i.estimators.validation import find_unlabeled, to_array
from l2i.fit.candidates import select_by_errors
from l2i.fit.defaults import with_steps
from l2i.training.loop import iter_steps
from l2i.training.trainer import Trainer

CV_FOLDS = 3
MIN_LABELED_ROWS = 20  # below which folds are too small to decide
MAX_FOLD_STEPS = 500

Fold = tuple[NDArray[np.intp], NDArray[np.intp]]  # training and test indices


class LabeledKFold(BaseCrossValidator):  # type: ignore[misc]
    """Split the labelled rows into K folds, stratified if the targets are classes.

    A test fold holds labelled rows only. Its training rows are all other labelled rows and every
    unlabelled row (−1, None or NaN). If the rarest class has fewer labels than `n_splits`, some
    folds lack that class, as in scikit-learn.

    Args:
        n_splits: Number of folds.
        shuffle: Shuffle the labelled rows before splitting.
        random_state: Seed of the shuffling.

    """

    def __init__(
        self, n_splits: int = 5, *, shuffle: bool = True, random_state: Any = None
    ) -> None:
        self.n_splits, self.shuffle, self.random_state = n_splits, shuffle, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: N803
        """Return the number of folds; the arguments are ignored."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[Fold]:  # noqa: N803
        """Yield the training and test indices of each fold."""
        if y is None:
            raise InputError("LabeledKFold needs y to find the labelled rows; pass it to split")
        target = to_array(y)
        is_unlabeled = find_unlabeled(target)
        labeled, unlabeled = np.flatnonzero(~is_unlabeled), np.flatnonzero(is_unlabeled)
        if len(labeled) < self.n_splits:
            problem = f"{len(labeled)} labelled rows are too few for {self.n_splits} folds"
            raise InputError(f"{problem}; use fewer folds, or label more rows")
        seed = self.random_state if self.shuffle else None
        kfold = _make_kfold(target[labeled], self.n_splits, shuffle=self.shuffle, random_state=seed)
        for train, test in kfold.split(np.zeros(len(labeled)), target[labeled]):
            yield np.sort(np.concatenate([labeled[train], unlabeled])), labeled[test]


def _make_kfold(
    target: NDArray[Any], count: int, *, shuffle: bool, random_state: Any
) -> BaseCrossValidator:
    """Return a splitter of labelled rows, stratified if the targets are classes."""
    labels = target.astype(str) if target.dtype == object and target.ndim == 1 else target
    is_discrete = type_of_target(labels) in ("binary", "multiclass")
    # integers with few repetitions are measurements
    is_classification = is_discrete and 2 * len(np.unique(labels)) <= len(labels)
    kfold = StratifiedKFold if is_classification else KFold
    return kfold(count, shuffle=shuffle, random_state=random_state)


def compare_with_supervised(run: Run, splits: Splits) -> tuple[bool, dict[str, float]]:
    """Return whether unlabelled rows help, and the mean errors that decide it.

    Errors are wrong classes, or squared errors of standardised targets. Training on the labels
    alone is chosen if it is better by more than a standard error.
    """
    short_run = with_steps(run, min(run.steps, MAX_FOLD_STEPS))
    supervised_run = replace(short_run, method="supervised", l2i={"update": "off"})
    candidates = {"supervised": supervised_run, "l2i": short_run}
    errors = {name: _cross_validate(candidate, splits) for name, candidate in candidates.items()}
    labels = {"supervised": "labels alone", "l2i": "with unlabelled rows"}
    means = {labels[name]: float(values.mean()) for name, values in errors.items()}
    return select_by_errors(errors) == "l2i", means


def _cross_validate(run: Run, splits: Splits) -> NDArray[np.float64]:
    """Return each labelled row's error by a network that has not seen its label."""
    y = splits.labeled.y.numpy()
    errors = np.zeros(len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer labels than folds
        folds = list(_make_kfold(y, CV_FOLDS, shuffle=True, random_state=run.seed).split(y, y))
    for train, test in folds:
        errors[test] = _evaluate_fold(run, splits, torch.as_tensor(train), torch.as_tensor(test))
    return errors


def _evaluate_fold(
    run: Run, splits: Splits, train: torch.Tensor, test: torch.Tensor
) -> NDArray[np.float64]:
    labeled = splits.labeled
    fold_splits = splits.with_labels(labeled.take(train), validation=labeled.take(test))
    with closing(Trainer(run, splits=fold_splits)) as trainer:
        for _ in iter_steps(trainer):
            pass
        task, samples = trainer.task, trainer.splits.validation
        outputs = trainer.predict(samples)
        if splits.classes is not None:
            return (outputs.argmax(dim=1) != samples.y).double().cpu().numpy()
        return task.sample_losses(outputs, task.encode(samples.y)).double().cpu().numpy()
