"""Which of the networks to keep, by the validation rows alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import PREFERRED

SAME = 1 + 1e-9  # one row's difference is one standard error, but for rounding


def selected(errors: dict[str, NDArray[np.float64]]) -> str:
    """The name of the candidate to keep, from each one's errors on the same rows, [N].

    It is the first of l2i, baseline and supervised that lies within one standard error, paired row by row, of the one
    with the least errors: few rows cannot tell candidates apart, and then what has learned from more does better more
    often (docs/own-data.md).
    """
    best = min(errors, key=lambda name: (errors[name].mean(), PREFERRED.index(name)))
    return next(name for name in PREFERRED if name in errors and _as_good(errors[name] - errors[best]))


def _as_good(gaps: NDArray[np.float64]) -> bool:
    if len(gaps) < 2:
        return True
    return bool(gaps.mean() <= SAME * gaps.std(ddof=1) / np.sqrt(len(gaps)))
