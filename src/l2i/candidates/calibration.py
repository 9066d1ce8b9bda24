"""Confidence that holds: a temperature for classes, stds and intervals for targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
# Std of the prior on the log temperature, below and above 0: networks trained on their own
# labels are overconfident, and a few rows that are all correct are no evidence to the contrary.
LOG_PRIOR_STDS = (0.25, 1.0)
COVERAGE = 0.9  # of the intervals around targets
MIN_ROWS_OF_INTERVALS = 9  # below which no finite interval has that coverage


def fit_temperature(
    logits: NDArray[Any],
    y: NDArray[np.int64],
    weight: NDArray[np.float64] | None = None,
    prior_stds: tuple[float, float] = LOG_PRIOR_STDS,
) -> float:
    """Fit the divisor of the logits that calibrates them on validation rows; 1 without any.

    A prior around 1 avoids extremes if there are few rows, all of them correct or all wrong.
    `prior_stds` are those of the log temperature, below and above 0; `weight` says how often each
    row counts.
    """
    if not len(y):
        return 1.0
    counts = np.ones(len(y)) if weight is None else weight

    def penalized_nll(log_t: float) -> float:
        log_probs = log_softmax(logits.astype(np.float64) / np.exp(log_t), axis=1)
        prior_std = prior_stds[int(log_t >= 0)]
        nll = -(counts * log_probs[np.arange(len(y)), y]).sum()
        return float(nll + 0.5 * (log_t / prior_std) ** 2)

    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    return float(np.exp(minimize_scalar(penalized_nll, bounds=bounds, method="bounded").x))


def fit_std_scale(errors: NDArray[Any], predictive_std: NDArray[Any]) -> float:
    """Fit the factor that makes stds as large as errors on validation rows; 1 without any.

    The root mean squared ratio is the most likely scale of Gaussian errors.
    """
    if not errors.size:
        return 1.0
    errors, predictive_std = errors.astype(np.float64), predictive_std.astype(np.float64)
    floor = 1e-3 * predictive_std.mean(axis=0) + 1e-12 * np.abs(errors).max(axis=0)
    bounded_std = np.maximum(predictive_std, floor)
    ratio = errors / np.where(bounded_std > 0, bounded_std, 1.0)
    return float(max(np.sqrt(np.square(ratio).mean()), 1e-6))


def compute_interval_factors(
    errors: NDArray[np.float64], stds: NDArray[np.float64], coverage: float = COVERAGE
) -> NDArray[np.float64]:
    """Return the multiple of each target's std that covers the share of new errors, [D].

    Both are [N, D], of at least `MIN_ROWS_OF_INTERVALS` rows that the model had not seen (split
    conformal prediction).
    """
    ratios = np.sort(np.abs(errors) / stds, axis=0)
    rank = math.ceil((len(ratios) + 1) * coverage)
    return np.asarray(ratios[min(rank, len(ratios)) - 1])
