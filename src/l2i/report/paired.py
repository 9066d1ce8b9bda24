"""Errors row by row, their figure, and the difference between two candidates on the same rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import Fitted, Rows

Floats = NDArray[np.float64]
FEW, FEW_TARGETS = 10, 30  # rows under which no difference counts as established: one large error decides an RMSE
SURELY = 2.0  # standard errors that a difference must have
CHANCE = 0.05  # of rows that differ to fall as unevenly as they do


class Estimate(NamedTuple):
    """A figure or a difference, with its standard error."""

    value: float
    error: float
    rows: int
    established: bool = False
    """Differences: whether it is hardly chance."""


def known(fitted: Fitted, rows: Rows, *parts: str) -> NDArray[np.bool_]:
    """Which rows of these parts have a label that is known, [N]."""
    there = rows.given >= 0 if fitted.classes is not None else ~np.isnan(rows.given).any(axis=1)
    return np.asarray(there & np.isin(rows.parts, parts))


def errors_of(fitted: Fitted, rows: Rows, name: str, mask: NDArray[np.bool_]) -> Floats:
    """Each row's error: whether the class is wrong, or the mean squared error of its targets."""
    outputs, given = rows.outputs[name][mask], rows.given[mask]
    if fitted.classes is not None:
        return np.asarray(outputs.argmax(axis=1) != given, dtype=np.float64)
    unit = np.asarray(fitted.target_std) if in_spreads(fitted) else 1.0
    return np.asarray(np.square((outputs.astype(np.float64) - given) / unit).mean(axis=1))


def in_spreads(fitted: Fitted) -> bool:
    """Whether errors are measured in the targets' spreads: several targets need not have one unit."""
    return fitted.classes is None and not fitted.points and len(fitted.targets) > 1


def figure(errors: Floats, *, classes: bool) -> Estimate:
    """Per cent wrong, or the root of the mean squared error."""
    centred = _influence(errors, classes=classes)
    value = 100 * errors.mean() if classes else np.sqrt(errors.mean())
    return Estimate(float(value), _standard_error(centred), len(errors))


def difference(ours: Floats, theirs: Floats, *, classes: bool) -> Estimate:
    """Our figure minus theirs, by the delta method where it is a root; below 0, ours is better."""
    value = figure(ours, classes=classes).value - figure(theirs, classes=classes).value
    error = _standard_error(_influence(ours, classes=classes) - _influence(theirs, classes=classes))
    large = value != 0 and abs(value) >= SURELY * error and len(ours) >= (FEW if classes else FEW_TARGETS)
    return Estimate(value, error, len(ours), bool(large and (not classes or _uneven(ours, theirs))))


def _influence(errors: Floats, *, classes: bool) -> Floats:
    """How much each row moves the figure, around 0."""
    slope = 100.0 if classes else 0.5 / max(float(np.sqrt(errors.mean())), 1e-300)
    return np.asarray(slope * (errors - errors.mean()))


def _standard_error(influence: Floats) -> float:
    return float(influence.std(ddof=1) / np.sqrt(len(influence))) if len(influence) > 1 else float("inf")


def _uneven(ours: Floats, theirs: Floats) -> bool:
    """The exact sign test: two standard errors say too much where only a handful of rows differ."""
    from scipy.stats import binomtest

    better, worse = int((ours < theirs).sum()), int((ours > theirs).sum())
    return better + worse > 0 and bool(binomtest(better, better + worse).pvalue < CHANCE)


def comparable(fitted: Fitted) -> bool:
    """Whether the stored figures are of the kind that `figure` finds from rows; those of landmarks may not be."""
    return fitted.classes is not None or fitted.figure_name == "RMSE"


def figures(fitted: Fitted, rows: Rows, part: str) -> dict[str, Estimate]:
    """The figure of each candidate on the rows of a part, none where there are no such rows."""
    mask: NDArray[Any] = known(fitted, rows, part)
    names = [c.name for c in fitted.candidates if c.name in rows.outputs] if mask.any() else []
    classes = fitted.classes is not None
    return {name: figure(errors_of(fitted, rows, name, mask), classes=classes) for name in names}
