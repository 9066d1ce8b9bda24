"""Cross-validation in which an unlabelled row is trained on in every fold and scored in none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator, KFold, StratifiedKFold
from sklearn.utils.multiclass import type_of_target

from l2i.errors import InputError
from l2i.estimators.targets import as_array, is_blank


class LabeledKFold(BaseCrossValidator):  # type: ignore[misc]
    """K folds of the labelled rows, stratified by class where targets are classes.

    Each test fold holds labelled rows only; its training rows are the other labelled rows and all unlabelled ones
    (−1, None or NaN). With n_splits more than the rarest class has labels, some folds lack that class, as in
    scikit-learn.
    """

    def __init__(self, n_splits: int = 5, *, shuffle: bool = True, random_state: Any = None) -> None:
        self.n_splits, self.shuffle, self.random_state = n_splits, shuffle, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: N803
        return self.n_splits

    def split(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        groups: Any = None,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Pairs of training and test rows."""
        if y is None:
            raise InputError("LabeledKFold needs y, to tell labelled rows from unlabelled ones; pass it to split")
        target = as_array(y)
        blank = is_blank(target)
        labeled, unlabeled = np.flatnonzero(~blank), np.flatnonzero(blank)
        if len(labeled) < self.n_splits:
            raise InputError(
                f"{len(labeled)} labelled rows cannot make {self.n_splits} folds; use fewer, or label more"
            )
        seed = self.random_state if self.shuffle else None
        folds = folds_of(target[labeled], self.n_splits, shuffle=self.shuffle, random_state=seed)
        for train, test in folds.split(np.zeros(len(labeled)), target[labeled]):
            yield np.sort(np.concatenate([labeled[train], unlabeled])), labeled[test]


def folds_of(target: NDArray[Any], count: int, *, shuffle: bool, random_state: Any) -> BaseCrossValidator:
    """Folds of labelled rows, stratified where targets are classes."""
    known = target.astype(str) if target.dtype == object and target.ndim == 1 else target
    discrete = type_of_target(known) in ("binary", "multiclass")
    classes = discrete and 2 * len(np.unique(known)) <= len(known)  # else whole numbers that are measurements
    return (StratifiedKFold if classes else KFold)(count, shuffle=shuffle, random_state=random_state)
