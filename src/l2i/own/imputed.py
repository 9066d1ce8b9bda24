"""The label of every row, given or imputed, how sure it is, and where it is better to abstain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from l2i.errors import InputError
from l2i.own.fitted import Fitted, Rows

SURE = 0.9  # the calibrated probability of a class under which to abstain
VAGUE = 1.0  # the calibrated spread above which to abstain, in spreads of the labelled targets: the mean does as well
NARROW, WIDE = 0.05, 20.0  # between which a temperature is looked for
SHARPER, SOFTER = 0.25, 1.0  # spreads of the prior of a temperature's logarithm, below and above 0: networks trained on
# their own labels are too sure of them, and few rows that are all right are no sign of the contrary
DIGITS = 6  # of a target's spread, to which imputed targets are written: a network's outputs have no more


class Imputations(NamedTuple):
    """One entry a row of the input."""

    labels: NDArray[Any]  # [N] class numbers, or [N, D] targets; as given, where they were
    imputed: NDArray[np.bool_]  # [N], whether the label is imputed
    confidence: NDArray[np.float64]  # [N], classes: calibrated probability; regression: −spread in target spreads
    spread: NDArray[np.float64] | None  # [N, D], regression: calibrated, in the targets' units
    abstain: NDArray[np.bool_]  # [N]


def impute(fitted: Fitted, rows: Rows, threshold: float | None = None) -> Imputations:
    """Labels for all rows, at the threshold given or the usual one."""
    outputs = rows.outputs[fitted.chosen].astype(np.float64)
    if fitted.classes is not None:
        return _classes(outputs, rows, fitted.temperature, SURE if threshold is None else threshold)
    assert rows.spread is not None
    return _targets(outputs, rows, fitted, VAGUE if threshold is None else threshold)


def _classes(logits: NDArray[np.float64], rows: Rows, temperature: float, threshold: float) -> Imputations:
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold={threshold} must be a probability, at least 0 and at most 1")
    probability = softmax(logits / temperature, axis=1)
    blank = rows.given < 0
    confidence = np.where(blank, probability.max(axis=1), 1.0)
    labels = np.where(blank, probability.argmax(axis=1), rows.given)
    return Imputations(labels, blank, confidence, None, blank & (confidence < threshold))


def _targets(values: NDArray[np.float64], rows: Rows, fitted: Fitted, threshold: float) -> Imputations:
    if not threshold >= 0:  # not a number, too
        raise InputError(f"threshold={threshold} must be a spread, at least 0")
    assert rows.spread is not None
    gone = np.isnan(rows.given)
    blank = gone.any(axis=1)
    spread = np.where(gone, rows.spread.astype(np.float64) * fitted.spread_scale, 0.0)
    vague = (spread / np.asarray(fitted.target_std)).max(axis=1)
    labels = np.where(gone, rounded(values, fitted.target_std), rows.given)
    return Imputations(labels, blank, -vague, spread, blank & (vague > threshold))


def rounded(values: NDArray[np.float64], std: Sequence[float]) -> NDArray[np.float64]:  # [N, D]
    """Targets to as many digits as count, seen from the spread of each."""
    decimals = [DIGITS - 1 - math.floor(math.log10(size)) for size in std]
    columns = zip(values.T.tolist(), decimals, strict=True)
    return np.array([[round(value, places) for value in column] for column, places in columns]).T


def temperature_of(logits: NDArray[Any], y: NDArray[np.int64]) -> float:
    """What to divide logits by such that probabilities are right on the validation rows; 1 where there are none.

    A prior around 1 keeps it from the extremes where few rows are all right or all wrong.
    """
    if not len(y):
        return 1.0

    def cost(log_t: float) -> float:
        logs = log_softmax(logits.astype(np.float64) / np.exp(log_t), axis=1)
        return float(-logs[np.arange(len(y)), y].sum() + 0.5 * (log_t / (SHARPER if log_t < 0 else SOFTER)) ** 2)

    found = minimize_scalar(cost, bounds=(np.log(NARROW), np.log(WIDE)), method="bounded")
    return float(np.exp(found.x))


def spread_scale_of(errors: NDArray[Any], spread: NDArray[Any]) -> float:
    """What to multiply spreads by such that they are as large as errors on the validation rows; 1 without any.

    The root of the mean squared ratio, which is the most likely scale of Gaussian errors.
    """
    if not errors.size:
        return 1.0
    ratio = errors.astype(np.float64) / np.maximum(spread.astype(np.float64), 1e-12 + 1e-3 * spread.mean(axis=0))
    return float(max(np.sqrt(np.square(ratio).mean()), 1e-6))
