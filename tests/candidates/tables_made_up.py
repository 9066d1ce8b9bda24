"""Small encoded tables, and every candidate that can be fitted to them."""

import numpy as np

from l2i.candidates.base import TableRows


def class_rows(
    labeled: int = 60, unlabeled: int = 40, classes: int = 3, seed: int = 0
) -> TableRows:
    """Overlapping blobs in four dimensions."""
    draw = np.random.default_rng(seed)
    truth = np.arange(labeled + unlabeled) % classes
    centres = draw.normal(size=(classes, 4)) * 1.5
    x = (centres[truth] + draw.normal(size=(len(truth), 4))).astype(np.float32)
    return TableRows(
        x=x[:labeled],
        y=truth[:labeled],
        weight=np.ones(labeled),
        unlabeled=x[labeled:],
        unlabeled_weight=np.ones(unlabeled),
        num_classes=classes,
    )


def target_rows(
    labeled: int = 60, unlabeled: int = 40, targets: int = 1, seed: int = 0
) -> TableRows:
    """A smooth function of four columns, standardised."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(labeled + unlabeled, 4)).astype(np.float32)
    y = np.column_stack([np.sin(x[:, d]) + x[:, d + 1] for d in range(targets)])
    y = y[:labeled] + 0.1 * draw.normal(size=(labeled, targets))
    return TableRows(
        x=x[:labeled],
        y=(y - y.mean(axis=0)) / y.std(axis=0),
        weight=np.ones(labeled),
        unlabeled=x[labeled:],
        unlabeled_weight=np.ones(unlabeled),
        num_classes=None,
    )
