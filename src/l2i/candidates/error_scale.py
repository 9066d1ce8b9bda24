"""How large errors of targets are: by the distance to labelled rows, and by the prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from l2i.candidates.base import Floats
from l2i.candidates.calibration import MIN_ROWS_OF_INTERVALS, compute_interval_factors

MIN_RELATIVE, MAX_RELATIVE = 0.5, 3.0  # relative distances that stds are scaled by
SLOPES = np.linspace(-0.5, 1.0, 16)  # of the log std, by standardised prediction
MAX_LEVEL = 2.5  # standardised prediction beyond which stds stay as they are
MIN_GAIN = 3.0  # in log likelihood, for which stds grow with the prediction
MIN_SIZE = 1e-6  # of an error, relative to the target's std


@dataclass(frozen=True, kw_only=True)
class ErrorScale:
    """The std of errors: constant, or larger where rows are far or where predictions are large."""

    std: tuple[float, ...]  # [D], in the targets' units, at the usual distance and prediction
    slopes: tuple[float, ...]  # [D], of the log std, by standardised prediction
    by_distance: bool
    factors: tuple[float, ...]  # [D], multiples of a std that cover 90 % of new targets; or none

    def compute_stds(self, relative: Floats, levels: Floats) -> Floats:
        """Return the std of each row's targets, [N, D].

        `relative` [N] are distances to labelled rows, `levels` [N, D] standardised predictions.
        """
        scale = clip_distance(relative) if self.by_distance else np.ones(len(relative))
        return np.asarray(scale[:, None] * _scale_by_level(levels, self.slopes) * self.std)


def fit_error_scale(errors: Floats, levels: Floats, relative: Floats, unit: Floats) -> ErrorScale:
    """Fit stds and intervals to errors [N, D] of rows that the model had not seen.

    Errors are relative to the std `unit` [D] of the targets.
    """
    by_distance = _is_likelier(errors, clip_distance(relative)[:, None])
    scale = clip_distance(relative)[:, None] if by_distance else np.ones((len(errors), 1))
    slopes = [_fit_slope(e, level) for e, level in zip((errors / scale).T, levels.T, strict=True)]
    scale = scale * _scale_by_level(levels, slopes)
    size = np.maximum(np.sqrt(np.square(errors / scale).mean(axis=0)), MIN_SIZE)
    factors: list[float] = []
    if len(errors) >= MIN_ROWS_OF_INTERVALS:
        factors = compute_interval_factors(errors, size * scale).tolist()
    return ErrorScale(
        std=tuple((size * unit).tolist()),
        slopes=tuple(slopes),
        by_distance=by_distance,
        factors=tuple(factors),
    )


def clip_distance(relative: Floats) -> Floats:
    """Return half of one plus the relative distance, within bounds: by which stds are scaled."""
    return np.asarray(np.clip(0.5 + 0.5 * relative, MIN_RELATIVE, MAX_RELATIVE))


def _scale_by_level(levels: Floats, slopes: list[float] | tuple[float, ...]) -> Floats:
    return np.asarray(np.exp(np.clip(levels, -MAX_LEVEL, MAX_LEVEL) * np.asarray(slopes)))


def _is_likelier(errors: Floats, scale: Floats) -> bool:
    """Return whether Gaussian errors of that scale are likelier than those of a constant one."""
    gains = [_compute_gain(column, scale[:, 0]) for column in errors.T]
    return float(np.mean(gains)) > 0


def _fit_slope(errors: Floats, levels: Floats) -> float:
    """Return the likeliest slope, 0 if it gains little."""
    scales = [_scale_by_level(levels, (float(slope),)) for slope in SLOPES]
    gains = [_compute_gain(errors, scale) for scale in scales]
    best = int(np.argmax(gains))
    return float(SLOPES[best]) if gains[best] > MIN_GAIN else 0.0


def _compute_gain(errors: Floats, scale: Floats) -> float:
    """Return by how much the log likelihood of Gaussian errors grows if their std has a scale."""
    tiny = np.finfo(float).tiny
    constant = np.log(max(np.square(errors).mean(), tiny))
    scaled = np.log(max(np.square(errors / scale).mean(), tiny))
    return float(len(errors) * (0.5 * (constant - scaled) - np.log(scale).mean()))
