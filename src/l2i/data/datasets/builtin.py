"""The 1,797 handwritten digits of 8×8 pixels that scikit-learn embeds.

MERGED:
Small tables that scikit-learn embeds or computes: measurements of tumours, diabetes, and Friedman's function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from l2i.data.samples import DataSet, Samples

NUM_TEST = 597  # samples, the same for every seed
NUM_CLASSES = 10


def load_sklearn_digits(root: str | None) -> DataSet:
    """1,200 training and 597 test digits, grey values in [0, 1]; `root` is not needed."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    samples = Samples(x, torch.from_numpy(bunch.target).long())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return DataSet(train=samples.take(order[NUM_TEST:]), test=samples.take(order[:NUM_TEST]), classes=NUM_CLASSES)


FRIEDMAN_ROWS = 3000  # rows


def load_sklearn_breast_cancer(root: str | None) -> DataSet:
    """380 training and 189 test tumours, 30 measurements each, malignant (0) or benign (1); `root` is not needed."""
    from sklearn.datasets import load_breast_cancer  # takes a second to import

    bunch = load_breast_cancer()
    return split_table(bunch.data, torch.from_numpy(bunch.target).long(), classes=2)


def load_sklearn_diabetes(root: str | None) -> DataSet:
    """295 training and 147 test patients, 10 numbers each, and how far their illness went; `root` is not needed."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return split_table(bunch.data, standardize(bunch.target[:, None]), classes=None)


def load_friedman(root: str | None) -> DataSet:
    """2,000 training and 1,000 test points of Friedman's first function, of 10 numbers under noise of spread 1.

    Five of the numbers have no say in it. `root` is not needed.
    """
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n_samples=FRIEDMAN_ROWS, noise=1.0, random_state=0)
    return split_table(x, standardize(y[:, None]), classes=None)


def split_table(x: Any, y: Tensor, *, classes: int | None) -> DataSet:
    """A third of the rows for tests, the same for every seed; columns are standardised over all rows.

    So are targets of regression: an error of 1 is that of guessing their mean.
    """
    samples = Samples(standardize(x), y)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    num_test = len(y) // 3
    return DataSet(train=samples.take(order[num_test:]), test=samples.take(order[:num_test]), classes=classes)


def standardize(values: Any) -> Tensor:
    """The columns of an array [N, D] with mean 0 and spread 1."""
    return torch.from_numpy((values - values.mean(0)) / values.std(0)).float()
