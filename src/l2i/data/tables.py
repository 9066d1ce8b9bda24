"""Small tables that scikit-learn embeds or computes: measurements of tumours, diabetes, and Friedman's function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from l2i.data.split import DataSet, Samples

FRIEDMAN = 3000  # rows


def breast_cancer(root: str | None) -> DataSet:
    """380 training and 189 test tumours, 30 measurements each, malignant (0) or benign (1); `root` is not needed."""
    from sklearn.datasets import load_breast_cancer  # takes a second to import

    bunch = load_breast_cancer()
    return shared_out(bunch.data, torch.from_numpy(bunch.target).long(), classes=2)


def diabetes(root: str | None) -> DataSet:
    """295 training and 147 test patients, 10 numbers each, and how far their illness went; `root` is not needed."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return shared_out(bunch.data, standardized(bunch.target[:, None]), classes=None)


def friedman(root: str | None) -> DataSet:
    """2,000 training and 1,000 test points of Friedman's first function, of 10 numbers under noise of spread 1.

    Five of the numbers have no say in it. `root` is not needed.
    """
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n_samples=FRIEDMAN, noise=1.0, random_state=0)
    return shared_out(x, standardized(y[:, None]), classes=None)


def shared_out(x: Any, y: Tensor, *, classes: int | None) -> DataSet:
    """A third of the rows for tests, the same for every seed; columns are standardised over all rows.

    So are targets of regression: an error of 1 is that of guessing their mean.
    """
    every = Samples(standardized(x), y)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    test = len(y) // 3
    return DataSet(train=every.take(order[test:]), test=every.take(order[:test]), classes=classes)


def standardized(values: Any) -> Tensor:
    """The columns of an array [N, D] with mean 0 and spread 1."""
    return torch.from_numpy((values - values.mean(0)) / values.std(0)).float()
