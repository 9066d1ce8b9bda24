"""Data that scikit-learn embeds or computes: digits, tumours, diabetes, and Friedman's function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from l2i.data.samples import DataSet, Samples

NUM_TEST_DIGITS = 597
FRIEDMAN_ROWS = 3000


def load_sklearn_digits(root: str | None) -> DataSet:
    """Load 1,200 training and 597 test digits of 8×8 pixels in [0, 1]; `root` is not needed."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    samples = Samples(x, torch.from_numpy(bunch.target).long())
    return _split_test(samples, NUM_TEST_DIGITS, classes=10)


def load_sklearn_breast_cancer(root: str | None) -> DataSet:
    """Load 380 training and 189 test tumours of 30 features, malignant (0) or benign (1)."""
    from sklearn.datasets import load_breast_cancer  # takes a second to import

    bunch = load_breast_cancer()
    return _split_table(bunch.data, torch.from_numpy(bunch.target).long(), classes=2)


def load_sklearn_diabetes(root: str | None) -> DataSet:
    """Load 295 training and 147 test patients of 10 features, and their disease's progression."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return _split_table(bunch.data, _standardize(bunch.target[:, None]), classes=None)


def load_friedman(root: str | None) -> DataSet:
    """Sample 2,000 training and 1,000 test points of Friedman's first function, with unit noise.

    It has 10 features, 5 of them irrelevant.
    """
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n_samples=FRIEDMAN_ROWS, noise=1.0, random_state=0)
    return _split_table(x, _standardize(y[:, None]), classes=None)


def _split_table(x: Any, y: Tensor, *, classes: int | None) -> DataSet:
    """Keep a third of the rows for tests; columns are standardised over all rows.

    So are the targets of regression: an error of 1 is that of predicting their mean.
    """
    return _split_test(Samples(_standardize(x), y), len(y) // 3, classes=classes)


def _split_test(samples: Samples, num_test: int, *, classes: int | None) -> DataSet:
    """Keep random rows for tests, the same for every seed of a run."""
    order = torch.randperm(len(samples.y), generator=torch.Generator().manual_seed(0))
    train, test = samples.take(order[num_test:]), samples.take(order[:num_test])
    return DataSet(train=train, test=test, classes=classes)


def _standardize(values: Any) -> Tensor:
    """Scale the columns of an array [N, D] to mean 0 and standard deviation 1."""
    return torch.from_numpy((values - values.mean(0)) / values.std(0)).float()
