"""Whether the unlabelled rows look like the labelled ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

FEWEST = 10  # rows of each kind, under which nothing can be said
MOST = 1000  # rows of each kind that are looked at
SIDE = 8  # pixels that images are shrunk to


def unlike(x: Tensor, blank: NDArray[np.bool_], seed: int) -> float | None:
    """How well a linear classifier tells labelled from unlabelled rows: the area under its ROC curve, by 5 folds.

    0.5 is not at all. None where there are too few rows of either kind.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    generator = np.random.default_rng(seed)
    kinds = [generator.permutation(np.flatnonzero(part))[:MOST] for part in (blank, ~blank)]
    if min(map(len, kinds)) < FEWEST:
        return None
    rows = np.concatenate(kinds)
    chosen = x[torch.as_tensor(rows)]
    texts = chosen.ndim == 2 and not chosen.is_floating_point()
    judge, seen = of_texts(chosen) if texts else of_numbers(chosen.float())
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    scores = cross_val_score(judge, seen, blank[rows], cv=folds, scoring="roc_auc")
    return float(scores.mean())


def of_numbers(x: Tensor) -> tuple[Any, NDArray[np.float32]]:
    """A classifier of a table's inputs or of small images, and what it is shown."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    small = F.adaptive_avg_pool2d(x, SIDE) if x.ndim == 4 else x
    judge = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000))
    return judge, small.flatten(1).numpy()


def of_texts(ids: Tensor) -> tuple[Any, Any]:
    """A classifier of texts by their tokens, wherever they stand, and how often each text [L] has each of them."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    count, length = ids.shape
    where = (np.repeat(np.arange(count), length), ids.flatten().numpy())
    bags = csr_matrix((np.ones(count * length, dtype=np.float32), where))  # those of one place are added
    return make_pipeline(TfidfTransformer(sublinear_tf=True), LogisticRegression(class_weight="balanced")), bags
