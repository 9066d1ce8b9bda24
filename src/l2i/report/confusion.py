"""Where the chosen network is wrong: classes taken for others, or predicted against true targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import Fitted, Rows
from l2i.report.charts import Chart, scatter
from l2i.report.paired import known
from l2i.report.words import share

WHOLE = 20  # classes up to which the matrix is shown as a whole
PAIRS = 15  # the most confused pairs otherwise
TARGETS, DOTS = 6, 500  # scatter charts, and rows in each


class Cell(NamedTuple):
    """Rows of a true class that were given some class."""

    number: int
    share: float
    right: bool


class Confusion(NamedTuple):
    """The section; a matrix, or pairs as (true, given, rows, share of the true class)."""

    rows: int
    names: list[str]
    matrix: list[list[Cell]]
    pairs: list[tuple[str, str, str, str]]


def counts_of(given: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Rows by true and predicted class, [C, C]."""
    return np.bincount(given * classes + predicted, minlength=classes**2).reshape(classes, classes)


def confusion(fitted: Fitted, rows: Rows) -> Confusion:
    """Of the chosen network on the validation rows."""
    assert fitted.classes is not None
    mask, names = known(fitted, rows, "validation"), list(fitted.classes)
    counts = counts_of(rows.given[mask], rows.outputs[fitted.chosen][mask].argmax(axis=1), len(names))
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    if len(names) > WHOLE:
        return Confusion(int(mask.sum()), names, [], _pairs(counts, shares, names))
    matrix = [
        [Cell(int(counts[i, j]), float(shares[i, j]), i == j) for j in range(len(names))] for i in range(len(names))
    ]
    return Confusion(int(mask.sum()), names, matrix, [])


def _pairs(counts: NDArray[np.int64], shares: NDArray[Any], names: list[str]) -> list[tuple[str, str, str, str]]:
    wrong = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    places = [divmod(int(k), len(names)) for k in order]
    return [(names[i], names[j], f"{wrong[i, j]:,}", share(shares[i, j])) for i, j in places if wrong[i, j]]


def scatters(fitted: Fitted, rows: Rows) -> list[Chart]:
    """Predicted against true on the validation and test rows, a chart a target."""
    mask = np.flatnonzero(known(fitted, rows, "validation", "test"))
    shown = mask[:: -(-len(mask) // DOTS)] if len(mask) else mask
    given, predicted = rows.given[shown], rows.outputs[fitted.chosen][shown]
    return [
        scatter(
            name,
            [(float(a), float(b)) for a, b in zip(given[:, d], predicted[:, d], strict=True)],
            x="true",
            y="predicted",
        )
        for d, name in enumerate(fitted.targets[:TARGETS])
        if len(shown)
    ]
