from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, make_friedman1

from l2i.data import BUILTIN_DATASETS, DATASETS
from l2i.data.samples import DataSet
from l2i.registry import load_registered


def published(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A set as scikit-learn gives it."""
    if name == "friedman":
        x, y = make_friedman1(n_samples=3000, noise=1.0, random_state=0)
        return np.asarray(x), np.asarray(y)
    return (
        load_breast_cancer(return_X_y=True)
        if name == "breast-cancer"
        else load_diabetes(return_X_y=True)
    )


def read(name: str) -> DataSet:
    actual: DataSet = load_registered("dataset", DATASETS, name)(None)
    return actual


SIZES = [
    ("breast-cancer", 380, 189, 30, 2),
    ("diabetes", 295, 147, 10, None),
    ("friedman", 2000, 1000, 10, None),
]
NAMES = [name for name, *_ in SIZES]


@pytest.mark.parametrize(("name", "train", "test", "columns", "classes"), SIZES)
def test_tables_need_no_folder_and_have_their_sizes(
    name: str, train: int, test: int, columns: int, classes: int | None
) -> None:
    data = read(name)
    assert name in BUILTIN_DATASETS
    assert data.classes == classes
    for samples, rows in ((data.train, train), (data.test, test)):
        assert (samples.x.shape, samples.x.dtype) == ((rows, columns), torch.float32)
        assert samples.y.shape == ((rows,) if classes else (rows, 1))
        assert samples.y.dtype == (torch.int64 if classes else torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_there_once_with_its_own_label(name: str) -> None:
    data, (x, y) = read(name), published(name)
    table, labels = (x - x.mean(0)) / x.std(0), y if data.classes else (y - y.mean()) / y.std()
    actual: Any = torch.cat([data.train.x, data.test.x]).double()
    distance, row = torch.cdist(actual, torch.from_numpy(table)).min(1)
    assert distance.max() < 1e-4
    assert sorted(row.tolist()) == list(range(len(x)))
    assert np.allclose(torch.cat([data.train.y, data.test.y]).flatten(), labels[row], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_columns_and_targets_have_mean_0_and_spread_1(name: str) -> None:
    data = read(name)
    values = [torch.cat([data.train.x, data.test.x])]
    if data.classes is None:
        values.append(torch.cat([data.train.y, data.test.y]))
    for columns in values:
        assert columns.mean(0).abs().max() < 1e-5
        assert (columns.std(0, unbiased=False) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_the_test_rows_are_always_the_same_and_of_all_kinds(name: str) -> None:
    torch.manual_seed(1)
    first = read(name)
    torch.manual_seed(2)
    again = read(name)
    assert torch.equal(first.test.x, again.test.x)
    assert torch.equal(first.train.y, again.train.y)
    assert abs(first.test.y.float().mean() - first.train.y.float().mean()) < 0.2
