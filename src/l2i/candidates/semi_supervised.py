"""Learn from unlabelled rows around any model: self-training, label spreading, imputing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import softmax
from sklearn.semi_supervised import LabelSpreading
from torch import nn

from l2i.candidates.base import Candidate, Floats, Level, Score, TableRows, predict
from l2i.candidates.models import SECONDS_PER_PAIR, Model, ignore_warnings
from l2i.candidates.predictors import NeighborPredictor

CONFIDENCE = 0.75  # at which self-training takes a label
MAX_ROUNDS = 10
MAX_TAUGHT_ROWS = 10_000  # unlabelled rows that self-training looks at
NO_UNLABELED = "no row is unlabelled"
SPREADING_NEIGHBORS = 7
MAX_SPREADING_ROWS = 10_000
MAX_IMPUTED_ROWS = 2000  # that a base is fitted to besides the labelled ones
IMPUTED_WEIGHT = 0.5  # total weight of imputed rows, relative to the labelled ones


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Candidate):
    """Fit again with its own confident labels, until there are no more."""

    base: Candidate
    name: str = "self-training"

    @property
    def level(self) -> Level:
        return Level.SEMI_SUPERVISED

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"self-trained {self.base.title}"

    def find_obstacle(self, rows: TableRows) -> str | None:
        return find_obstacle_of_labels(rows) or self.base.find_obstacle(rows)

    def expect_seconds(self, rows: TableRows, num_fits: int, scores: Mapping[str, Score]) -> float:
        """Count one more fit to the labels, and one to half of the unlabelled rows too."""
        if self.base.name not in scores:
            return 0.0
        more = min(len(rows.unlabeled), MAX_TAUGHT_ROWS) / (2 * len(rows.x))
        return scores[self.base.name].seconds * (2 + more)

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        if len(rows.unlabeled) > MAX_TAUGHT_ROWS:
            draw = np.random.default_rng(seed)
            chosen = draw.choice(len(rows.unlabeled), MAX_TAUGHT_ROWS, replace=False)
            rows = rows.take_unlabeled(np.sort(chosen))
        model = self.base.fit(rows, seed)
        is_taken = np.zeros(len(rows.unlabeled), dtype=bool)
        labels = np.zeros(len(rows.unlabeled), dtype=np.int64)
        for _ in range(MAX_ROUNDS):
            probability = softmax(predict(model, rows.unlabeled), axis=1)
            is_new = ~is_taken & (probability.max(axis=1) >= CONFIDENCE)
            if not is_new.any():
                break
            labels[is_new] = probability.argmax(axis=1)[is_new]
            is_taken |= is_new
            weight = rows.unlabeled_weight[is_taken]
            model = self.base.fit(
                _append(rows, rows.unlabeled[is_taken], labels[is_taken], weight), seed
            )
        return model


@dataclass(frozen=True, kw_only=True)
class Spreading(Candidate):
    """Spread labels over the graph of nearest neighbours; new rows take their neighbours' mean."""

    name: str = "label-spreading"
    title: str = "label spreading"

    @property
    def level(self) -> Level:
        return Level.SEMI_SUPERVISED

    def find_obstacle(self, rows: TableRows) -> str | None:
        if len(rows.x) + len(rows.unlabeled) > MAX_SPREADING_ROWS:
            return f"it takes at most {MAX_SPREADING_ROWS:,} rows"
        if rows.is_weighted:
            return "it takes no weights of rows"
        return find_obstacle_of_labels(rows)

    def expect_seconds(self, rows: TableRows, num_fits: int, scores: Mapping[str, Score]) -> float:
        num_rows, num_columns = len(rows.x) + len(rows.unlabeled), int(rows.x.shape[1])
        return num_fits * SECONDS_PER_PAIR * num_rows**2 * num_columns

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        assert rows.num_classes is not None
        x = np.concatenate([rows.x, rows.unlabeled])
        y = np.concatenate([rows.y, np.full(len(rows.unlabeled), -1)])
        num_neighbors = min(SPREADING_NEIGHBORS, len(x))
        with ignore_warnings():
            model = LabelSpreading(kernel="knn", n_neighbors=num_neighbors).fit(x, y)
        found = np.nan_to_num(model.label_distributions_)
        value = np.zeros((len(x), rows.num_classes))
        value[:, model.classes_] = found
        value[~value.any(axis=1)] = 1 / rows.num_classes  # rows that no label reaches
        return NeighborPredictor(
            rows=torch.from_numpy(x),
            value=torch.from_numpy(value),
            num_neighbors=torch.tensor(num_neighbors),
            is_probability=torch.tensor(1),
        )


@dataclass(frozen=True, kw_only=True)
class Imputing(Candidate):
    """Fit the base to labels, impute the unlabelled rows by it, and fit it to them as well."""

    base: Candidate | None = None
    """None for the best one of the labels alone."""
    name: str = "imputing"

    @property
    def level(self) -> Level:
        return Level.IMPUTING

    @property
    def title(self) -> str:  # type: ignore[override]
        return "imputing" if self.base is None else f"{self.base.title} + imputing"

    def adapt(self, scores: Mapping[str, Score]) -> Imputing:
        """Impute around the best model of the labels alone that takes weights."""
        plain = [
            score
            for score in scores.values()
            if isinstance(score.candidate, Model)
            and score.candidate.takes_weights
            and not score.candidate.is_constant
        ]
        if self.base is not None or not plain:
            return self
        return dataclasses.replace(self, base=min(plain, key=lambda s: s.loss).candidate)

    def find_obstacle(self, rows: TableRows) -> str | None:
        if self.base is None:
            return "it imputes around another candidate, but none that takes weights was tried"
        return None if len(rows.unlabeled) else NO_UNLABELED

    def expect_seconds(self, rows: TableRows, num_fits: int, scores: Mapping[str, Score]) -> float:
        """Add the fits to imputed labels to those of the base."""
        if self.base is None or self.base.name not in scores:
            return 0.0
        imputed = min(len(rows.unlabeled), MAX_IMPUTED_ROWS)
        # a row has several imputed classes
        more = 1 + 2 * imputed / len(rows.x) if rows.num_classes else 1 + imputed / len(rows.x)
        return scores[self.base.name].seconds * (1 + more)

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        assert self.base is not None
        x, weight = rows.unlabeled, rows.unlabeled_weight
        if len(x) > MAX_IMPUTED_ROWS:
            chosen = np.random.default_rng(seed).choice(len(x), MAX_IMPUTED_ROWS, replace=False)
            x, weight = x[chosen], weight[chosen]
        outputs = predict(self.base.fit(rows, seed), x)
        weight = weight * (IMPUTED_WEIGHT * rows.weight.sum() / weight.sum())
        return self.base.fit(_append_imputed(rows, x, outputs, weight), seed)


def find_obstacle_of_labels(rows: TableRows) -> str | None:
    """Return why labels of classes cannot be spread to other rows, if they cannot."""
    if rows.num_classes is None:
        return "it is for classification"
    return None if len(rows.unlabeled) else NO_UNLABELED


def _append_imputed(rows: TableRows, x: np.ndarray, outputs: Floats, weight: Floats) -> TableRows:
    """Add rows with imputed labels; a class for each share of a soft label."""
    if rows.num_classes is None:
        return _append(rows, x, outputs, weight)
    probability = softmax(outputs, axis=1)
    row, label = np.nonzero(probability > 1 / (2 * rows.num_classes))
    return _append(rows, x[row], label, weight[row] * probability[row, label])


def _append(rows: TableRows, x: np.ndarray, y: np.ndarray, weight: Floats) -> TableRows:
    return dataclasses.replace(
        rows,
        x=np.concatenate([rows.x, x]),
        y=np.concatenate([rows.y, y]),
        weight=np.concatenate([rows.weight, weight]),
        groups=None,
    )
