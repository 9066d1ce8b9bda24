"""Whether the unlabelled rows look like the labelled ones."""

from __future__ import annotations

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
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(seed)
    kinds = [generator.permutation(np.flatnonzero(part))[:MOST] for part in (blank, ~blank)]
    if min(map(len, kinds)) < FEWEST:
        return None
    rows = np.concatenate(kinds)
    chosen = x[torch.as_tensor(rows)].float()
    if chosen.ndim == 4:
        chosen = F.adaptive_avg_pool2d(chosen, SIDE)
    judge = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    scores = cross_val_score(judge, chosen.flatten(1).numpy(), blank[rows], cv=folds, scoring="roc_auc")
    return float(scores.mean())
