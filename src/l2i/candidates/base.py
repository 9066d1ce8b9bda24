"""What every candidate has: a name, a level, and a fit that returns a module."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.float64]
MIN_EFFECTIVE_SHARE = 0.9  # of the labelled rows, below which weights are not ignored
MAX_BATCH_VALUES = 2**22  # of the inputs, and of what a predictor computes from them


class Level(IntEnum):
    """How much a candidate takes from the unlabelled rows; the plainer level is preferred."""

    LABELS_ONLY = 0
    SEMI_SUPERVISED = 1
    IMPUTING = 2


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """Encoded rows of a table, with and without labels."""

    x: NDArray[np.float32]
    """[N, E], the labelled rows."""
    y: NDArray[Any]
    """[N] class numbers; or [N, D] targets, standardised."""
    weight: Floats
    """[N], positive: how often each row counts."""
    unlabeled: NDArray[np.float32]
    """[U, E]."""
    unlabeled_weight: Floats
    """[U], positive."""
    num_classes: int | None
    """None for regression."""
    groups: NDArray[Any] | None = None
    """[N]: rows of one group are never on both sides of a split."""
    unlabeled_groups: NDArray[Any] | None = None
    """[U], if there are groups."""

    @property
    def num_outputs(self) -> int:
        return self.num_classes or self.y.shape[1]

    @property
    def is_weighted(self) -> bool:
        """Return whether labelled rows differ in weight such that it matters.

        A few repeated rows do not: the weights are worth nearly as many rows as there are.
        """
        num_effective = self.weight.sum() ** 2 / np.square(self.weight).sum()
        return bool(num_effective < MIN_EFFECTIVE_SHARE * len(self.weight))

    def take(self, indices: NDArray[np.intp]) -> TableRows:
        """Return these labelled rows, with all unlabelled ones."""
        groups = None if self.groups is None else self.groups[indices]
        x, y, weight = self.x[indices], self.y[indices], self.weight[indices]
        return dataclasses.replace(self, x=x, y=y, weight=weight, groups=groups)

    def take_unlabeled(self, indices: NDArray[np.intp]) -> TableRows:
        """Return all labelled rows, with these unlabelled ones."""
        groups = None if self.unlabeled_groups is None else self.unlabeled_groups[indices]
        x, weight = self.unlabeled[indices], self.unlabeled_weight[indices]
        return dataclasses.replace(
            self, unlabeled=x, unlabeled_weight=weight, unlabeled_groups=groups
        )


class Candidate(ABC):
    """A way to turn rows into a model."""

    name: str
    """As in `--candidates`."""
    title: str
    """As in a report."""

    @property
    def level(self) -> Level:
        return Level.LABELS_ONLY

    def find_obstacle(self, rows: TableRows) -> str | None:
        """Return why it cannot be fitted to such rows, or None if it can."""
        return None

    def expect_seconds(self, rows: TableRows, num_fits: int, scores: Mapping[str, Score]) -> float:
        """Return roughly how long that many fits take; 0 if they are quick."""
        return 0.0

    @abstractmethod
    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        """Return a module from encoded rows [B, E] to logits [B, C] or standardised targets."""


class Score(NamedTuple):
    """How a candidate did on rows that it had not seen."""

    candidate: Candidate
    outputs: Floats
    """[R, N, C] of each repeat of the folds."""
    losses: Floats
    """[N], by which candidates are compared: the mean over repeats."""
    seconds: float
    loss: float
    """Their mean, weighted by the rows."""


class Skipped(NamedTuple):
    """A candidate that was not scored, and why."""

    name: str
    reason: str
    seconds: float = 0.0
    """That were spent on it."""


class Progress(NamedTuple):
    """A candidate that has just been scored or skipped."""

    event: Score | Skipped
    title: str
    number: int
    """Of this candidate, from 1."""
    total: int
    seconds: float
    """That all candidates have taken so far."""


@torch.no_grad()
def predict(model: nn.Module, x: NDArray[np.float32]) -> Floats:
    """Return the logits or targets of encoded rows, in double precision."""
    width = getattr(model, "values_per_row", x.shape[1])
    chunks = torch.from_numpy(x).split(max(1, MAX_BATCH_VALUES // max(width, x.shape[1])))
    return np.asarray(torch.cat([_forward(model, chunk) for chunk in chunks]).numpy())


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    outputs: Tensor = model(x)
    return outputs.double()


def standardize(targets: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return targets [N, D] of mean 0 and std 1, and their mean and std; a constant has std 1."""
    mean = np.average(targets, axis=0, weights=weight)
    std = np.sqrt(np.average(np.square(targets - mean), axis=0, weights=weight))
    std = np.where(std > 1e-12 * np.abs(mean), std, 1.0)
    return (targets - mean) / std, mean, std
