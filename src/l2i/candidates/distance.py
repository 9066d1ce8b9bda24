"""How far rows are from the labelled ones: where errors are larger, and which rows are foreign."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from l2i.candidates.base import Floats, predict

MAX_REFERENCE_ROWS = 1000  # labelled rows that others are compared with
NUM_NEAREST = 3  # rows that a distance is the mean of
MIN_ROWS = 10  # labelled rows, below which no row is called foreign
FOREIGN_QUANTILE, FOREIGN_FACTOR = 0.99, 1.5  # of the distances among labelled rows
APART_FACTOR, APART_QUANTILE = 1.2, 0.95  # of rows that are near each other, but not to those
CHUNK_ROWS = 4096  # that are compared at once
MIN_DISTANCE = 0.05  # relative, added so that equal rows are not infinitely apart


class LabeledDistance(nn.Module):
    """The mean distance to the nearest labelled rows, relative to the usual one."""

    rows: Tensor  # [N, E]
    usual: Tensor  # median distance among labelled rows

    def __init__(self, rows: Tensor, usual: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows.float())
        self.register_buffer("usual", usual.double())

    @property
    def values_per_row(self) -> int:
        return len(self.rows)

    def forward(self, x: Tensor) -> Tensor:
        nearest = min(NUM_NEAREST, len(self.rows))
        found = torch.cdist(x.float(), self.rows).topk(nearest, dim=1, largest=False).values
        return (found.double().mean(dim=1) / self.usual)[:, None]

    def measure(self, x: NDArray[np.float32]) -> Floats:
        """Return the relative distance of each row, [N]."""
        return predict(self, x)[:, 0]


def fit_distance(
    x: NDArray[np.float32], seed: int, groups: NDArray[Any] | None = None
) -> tuple[LabeledDistance, Floats]:
    """Return the distance to labelled rows `x`, and that of each of them to the others.

    The others are those of other `groups` [N]: new rows are of other groups too.
    """
    chosen = np.arange(len(x))
    if len(x) > MAX_REFERENCE_ROWS:
        draw = np.random.default_rng(seed)
        chosen = np.sort(draw.choice(len(x), MAX_REFERENCE_ROWS, replace=False))
    own = np.arange(len(x))
    if groups is not None and len(np.unique(groups)) > 1:
        own = np.unique(groups, return_inverse=True)[1]
    among = _measure_others(x, own, chosen)
    usual = float(np.median(among)) or 1.0
    return LabeledDistance(torch.from_numpy(x[chosen]), torch.tensor(usual)), among / usual


def _measure_others(
    x: NDArray[np.float32], groups: NDArray[np.intp], chosen: NDArray[np.intp]
) -> Floats:
    """Return each row's mean distance to the nearest chosen rows of other groups, [N]."""
    rows, own = torch.from_numpy(x), torch.from_numpy(groups)
    others, their_groups = rows[chosen], own[chosen]
    means = []
    for part, part_groups in zip(rows.split(CHUNK_ROWS), own.split(CHUNK_ROWS), strict=True):
        distance = torch.cdist(part, others).double()
        distance[part_groups[:, None] == their_groups] = torch.inf
        found = distance.topk(min(NUM_NEAREST, len(others)), dim=1, largest=False).values
        is_known = found.isfinite()
        total = torch.where(is_known, found, 0.0).sum(dim=1)
        means.append(total / is_known.sum(dim=1).clamp_min(1))
    return np.asarray(torch.cat(means).numpy())


def find_foreign_limit(among: Floats) -> float:
    """Return the relative distance beyond which a row is like none of the labelled ones."""
    if len(among) < MIN_ROWS:
        return float("inf")
    return FOREIGN_FACTOR * float(np.quantile(among, FOREIGN_QUANTILE))


def find_foreign(
    distance: LabeledDistance,
    among: Floats,
    labeled: NDArray[np.float32],
    unlabeled: NDArray[np.float32],
    seed: int,
    unlabeled_groups: NDArray[Any] | None = None,
) -> NDArray[np.bool_]:
    """Return which unlabelled rows are like none of the labelled ones, [U].

    They are far from all of those; or near each other but not to those, such as rows of a class
    without labels.
    """
    limit = find_foreign_limit(among)
    if not len(unlabeled) or not np.isfinite(limit):
        return np.zeros(len(unlabeled), dtype=bool)
    relative = distance.measure(unlabeled)
    others, within = fit_distance(unlabeled, seed, unlabeled_groups)
    ratio = (relative + MIN_DISTANCE) / (within + MIN_DISTANCE)
    usual_ratio = (among + MIN_DISTANCE) / (others.measure(labeled) + MIN_DISTANCE)
    is_apart = ratio > APART_FACTOR * np.quantile(usual_ratio, FOREIGN_QUANTILE)
    is_apart &= relative > np.quantile(among, APART_QUANTILE)
    return np.asarray(is_apart | (relative > limit))
