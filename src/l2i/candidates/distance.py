"""How far rows are from the labelled ones: where errors are larger, and which rows are foreign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from l2i.candidates.base import Floats, predict

MAX_REFERENCE_ROWS = 1000  # labelled rows that others are compared with
NUM_NEAREST = 3  # rows that a distance is the mean of
MIN_ROWS = 10  # labelled rows, below which no row is called foreign
FOREIGN_QUANTILE, FOREIGN_FACTOR = 0.99, 2.0  # of the distances among labelled rows
MIN_RELATIVE, MAX_RELATIVE = 0.5, 3.0  # relative distances that stds are scaled by


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


def fit_distance(x: NDArray[np.float32], seed: int) -> tuple[LabeledDistance, Floats]:
    """Return the distance to labelled rows `x`, and that of each of them to the others."""
    chosen = np.arange(len(x))
    if len(x) > MAX_REFERENCE_ROWS:
        draw = np.random.default_rng(seed)
        chosen = np.sort(draw.choice(len(x), MAX_REFERENCE_ROWS, replace=False))
    rows = torch.from_numpy(x[chosen])
    plain = LabeledDistance(rows, torch.ones(()))
    among = plain.measure(x)
    nearest = min(NUM_NEAREST + 1, len(chosen))
    own = torch.cdist(rows, rows).topk(nearest, dim=1, largest=False).values.double()
    among[chosen] = own[:, 1:].mean(dim=1).nan_to_num().numpy()  # a row is nearest to itself
    usual = float(np.median(among)) or 1.0
    return LabeledDistance(rows, torch.tensor(usual)), among / usual


def find_foreign_limit(among: Floats) -> float:
    """Return the relative distance beyond which a row is like none of the labelled ones."""
    if len(among) < MIN_ROWS:
        return float("inf")
    return FOREIGN_FACTOR * float(np.quantile(among, FOREIGN_QUANTILE))


def scale_by_distance(errors: Floats, among: Floats) -> Floats:
    """Return factors [N, 1] of the errors' std by distance, or ones if that explains them less.

    The more likely of two Gaussian scales is taken: a constant one, or one that grows with the
    distance to labelled rows.
    """
    relative = clip_distance(among)
    constant = np.square(errors).mean(axis=0)
    scaled = np.square(errors / relative[:, None]).mean(axis=0)
    tiny = np.finfo(float).tiny
    gain = np.log(np.maximum(constant, tiny)) - np.log(np.maximum(scaled, tiny))
    is_better = float(gain.mean()) > 2 * float(np.log(relative).mean())
    return relative[:, None] if is_better else np.ones((len(among), 1))


def compute_stds(std: Sequence[float], relative: Floats, *, by_distance: bool) -> Floats:
    """Return the std of each row's targets, [N, D], from its relative distance."""
    scale = clip_distance(relative) if by_distance else np.ones(len(relative))
    return np.asarray(scale[:, None] * np.asarray(std))


def clip_distance(relative: Floats) -> Floats:
    """Return half of one plus the relative distance, within bounds: by which stds are scaled."""
    return np.asarray(np.clip(0.5 + 0.5 * relative, MIN_RELATIVE, MAX_RELATIVE))
