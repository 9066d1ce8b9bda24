"""The 1,797 handwritten digits of 8×8 pixels that scikit-learn embeds."""

import torch

from l2i.data.split import DataSet, Samples

TEST = 597  # samples, the same for every seed
CLASSES = 10


def digits(root: str | None) -> DataSet:
    """1,200 training and 597 test digits, grey values in [0, 1]; `root` is not needed."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    every = Samples(x, torch.from_numpy(bunch.target).long())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return DataSet(train=every.take(order[TEST:]), test=every.take(order[:TEST]), classes=CLASSES)
