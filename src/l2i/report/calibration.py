"""Whether the chosen network is as often right as it says, before and after calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import Fitted, Rows
from l2i.own.reading import counted
from l2i.report.charts import Chart, agreement
from l2i.report.paired import Floats, known
from l2i.report.words import share

BINS = 10
EXPECTED = {1: 0.683, 2: 0.954}  # shares of Gaussian errors within so many spreads


class Bin(NamedTuple):
    """Rows that are about equally sure."""

    said: float
    """Their mean confidence, or the root of their mean squared spread."""
    found: float
    """The share of them that is right, or the root of their mean squared error."""
    rows: int


class Calibration(NamedTuple):
    """The section."""

    sentence: str
    charts: list[Chart]
    head: list[str]
    table: list[list[str]]


def bins_of(confidence: Floats, right: NDArray[np.bool_]) -> list[Bin]:
    """Rows in ten bins of equal width; empty ones are left out."""
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    found = [place == i for i in range(BINS)]
    return [Bin(float(confidence[m].mean()), float(right[m].mean()), int(m.sum())) for m in found if m.any()]


def expected_error(bins: list[Bin]) -> float:
    """The expected calibration error: the mean gap between what was said and found."""
    return sum(b.rows * abs(b.said - b.found) for b in bins) / max(1, sum(b.rows for b in bins))


def spread_bins(spread: Floats, error: Floats) -> list[Bin]:
    """Rows in bins of equal number, by spread."""
    parts = np.array_split(np.argsort(spread, kind="stable"), min(BINS, len(spread)))
    return [Bin(_root(spread[p]), _root(error[p]), len(p)) for p in parts]


def _root(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean()))


def calibration(fitted: Fitted, rows: Rows) -> Calibration | None:
    """Of the validation and test rows; None where there are none."""
    if not known(fitted, rows, "validation", "test").any():
        return None
    return _classes(fitted, rows) if fitted.classes is not None else _targets(fitted, rows)


def _binned(fitted: Fitted, rows: Rows, mask: NDArray[np.bool_], temperature: float) -> list[Bin]:
    from scipy.special import softmax

    probability = softmax(rows.outputs[fitted.chosen][mask].astype(np.float64) / temperature, axis=1)
    return bins_of(probability.max(axis=1), probability.argmax(axis=1) == rows.given[mask])


def _classes(fitted: Fitted, rows: Rows) -> Calibration:
    both = known(fitted, rows, "validation", "test")
    before, after = (_binned(fitted, rows, both, t) for t in (1.0, fitted.temperature))
    table = []
    for name, parts in {"validation and test": ("validation", "test"), "test alone": ("test",)}.items():
        mask = known(fitted, rows, *parts)
        pair = [expected_error(_binned(fitted, rows, mask, t)) for t in (1.0, fitted.temperature)]
        table += [[name, f"{mask.sum():,}", *(f"{100 * e:.1f} %" for e in pair)]] if mask.any() else []
    sentence = (
        f"A label of confidence 0.8 should be right 8 times in 10. Logits are divided by a temperature of "
        f"{fitted.temperature:.2f}, found on the validation rows; the expected calibration error is the mean gap "
        "between confidence and share of right labels."
    )
    charts = [
        agreement("Before", before, 1.0, x="confidence", y="share right"),
        agreement("After", after, 1.0, x="confidence", y="share right"),
    ]
    return Calibration(sentence, charts, ["Rows", "Number", "Before", "After"], table)


def _targets(fitted: Fitted, rows: Rows) -> Calibration:
    assert rows.spread is not None
    mask, unit = known(fitted, rows, "validation", "test"), np.asarray(fitted.target_std)
    error = (np.abs(rows.outputs[fitted.chosen][mask].astype(np.float64) - rows.given[mask]) / unit).ravel()
    raw = (rows.spread[mask].astype(np.float64) / unit).ravel()
    spreads = {"Before": raw, "After": raw * fitted.spread_scale}
    bins = {name: spread_bins(spread, error) for name, spread in spreads.items()}
    limit = 1.05 * max(max(b.said, b.found) for each in bins.values() for b in each)
    charts = [agreement(name, found, limit, x="spread said", y="error found") for name, found in bins.items()]
    table = [
        [
            f"within {counted(k, 'spread')}",
            *(share(float((error <= k * s).mean())) for s in spreads.values()),
            share(e),
        ]
        for k, e in EXPECTED.items()
    ]
    sentence = (
        f"Errors should be about as large as the spread that goes with them. Spreads are multiplied by "
        f"{fitted.spread_scale:.2f}, found on the validation rows. Both are in units of the labelled targets' own "
        "spread."
    )
    return Calibration(sentence, charts, ["Errors", "Before", "After", "Gaussian"], table)
