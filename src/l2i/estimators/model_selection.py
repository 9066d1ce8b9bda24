"""Cross-validation over labelled rows; unlabelled rows are trained on in every fold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator, KFold, StratifiedKFold
from sklearn.utils.multiclass import type_of_target

from l2i.errors import InputError
from l2i.estimators.validation import find_unlabeled, to_array

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
        if target.dtype.kind == "f" and not _is_discrete(target[~is_unlabeled]):
            is_unlabeled = np.isnan(target.reshape(len(target), -1)).all(axis=1)  # −1 is a number
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
    kfold = StratifiedKFold if _is_discrete(target) else KFold
    return kfold(count, shuffle=shuffle, random_state=random_state)


def _is_discrete(target: NDArray[Any]) -> bool:
    """Return whether targets are classes; integers with few repetitions are measurements."""
    if not len(target):
        return True
    labels = target.astype(str) if target.dtype == object and target.ndim == 1 else target
    is_discrete = type_of_target(labels) in ("binary", "multiclass")
    return is_discrete and 2 * len(np.unique(labels)) <= len(labels)
