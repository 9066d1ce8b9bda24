"""Training rows as a set: those that are alike are one row with the sum of their weights, in an order of their own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class Distinct(NamedTuple):
    """Which rows stand for all: a fit depends on what rows there are and how often, never on their order."""

    rows: NDArray[np.intp]  # [M], places in the input
    weight: NDArray[np.float64]  # [M]


def distinct(inputs: pd.DataFrame | NDArray[Any], target: NDArray[Any], weight: NDArray[np.float64]) -> Distinct:
    """Rows of positive weight, merged where inputs and target are the same, sorted by a digest of them."""
    digests = np.array([a + b for a, b in zip(_digests(inputs), _digests(target), strict=True)])
    kept = np.flatnonzero(weight > 0)
    _, first, place = np.unique(digests[kept], return_index=True, return_inverse=True)
    return Distinct(kept[first], np.asarray(np.bincount(place, weights=weight[kept]), dtype=np.float64))


def _digests(values: pd.DataFrame | NDArray[Any]) -> list[bytes]:
    if not isinstance(values, np.ndarray):
        import pandas as pd

        try:
            return [int(code).to_bytes(8, "big") for code in pd.util.hash_pandas_object(values, index=False)]
        except TypeError:
            raise InputError(
                "a column of X holds lists or other objects; give numbers, words or truth values"
            ) from None
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat]
