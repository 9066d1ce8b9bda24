"""Candidates for features of images, in which rows of a class lie in a common direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax
from sklearn.linear_model import RidgeCV
from torch import nn

from l2i.candidates.base import Candidate, Floats, Level, TableRows, predict
from l2i.candidates.models import RIDGE_PENALTIES
from l2i.candidates.predictors import DirectionPredictor, LinearPredictor
from l2i.candidates.semi_supervised import find_obstacle_of_labels
from l2i.candidates.trees import ABSENT_LOGIT

CONCENTRATION = 20.0  # of the clusters: their log density per unit of cosine
LABELED_WEIGHT = 5.0  # of a labelled row in its cluster, relative to unlabelled ones
CLUSTER_ROUNDS, TEACHING_ROUNDS = 20, 5
SCORE_SCALE = 0.1  # scores of least squares, which lie around 0 and 1, per logit
TEACHING_SCALE = 0.05  # likewise for soft labels to learn from, which are sharper


def fit_least_squares(rows: TableRows, seed: int) -> nn.Module:
    """Regress on one-hot labels; the penalty is chosen by leaving out one row at a time."""
    model = RidgeCV(alphas=RIDGE_PENALTIES).fit(rows.x, _one_hot(rows), sample_weight=rows.weight)
    return _make_classifier(rows, np.asarray(model.coef_).T, np.asarray(model.intercept_))


def _make_classifier(rows: TableRows, weight: Floats, bias: Floats) -> nn.Module:
    """Return scores of classes as logits; a class without labels never wins."""
    bias = bias / SCORE_SCALE + np.where(_one_hot(rows).any(axis=0), 0.0, ABSENT_LOGIT)
    weight = np.asarray(weight / SCORE_SCALE, dtype=np.float64)
    return LinearPredictor(weight=torch.from_numpy(weight), bias=torch.from_numpy(bias))


def _one_hot(rows: TableRows) -> Floats:
    return np.asarray(np.eye(rows.num_classes or 0)[rows.y])


@dataclass(frozen=True, kw_only=True)
class Clusters(Candidate):
    """Cluster the directions of all rows, softly, one cluster per class, seeded by its labels."""

    name: str = "clusters"
    title: str = "clusters around labels"

    @property
    def level(self) -> Level:
        return Level.SEMI_SUPERVISED

    def find_obstacle(self, rows: TableRows) -> str | None:
        return find_obstacle_of_labels(rows)

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        labeled, unlabeled = _normalize(rows.x), _normalize(rows.unlabeled).astype(np.float32)
        seeds = (_one_hot(rows) * rows.weight[:, None]).T @ labeled  # [C, E]
        centers, is_known = _normalize(seeds), seeds.any(axis=1)
        for _ in range(CLUSTER_ROUNDS):
            logits = unlabeled @ (CONCENTRATION * centers.T).astype(np.float32)
            logits[:, ~is_known] = -np.inf
            share = softmax(logits, axis=1) * rows.unlabeled_weight[:, None].astype(np.float32)
            centers = _normalize(LABELED_WEIGHT * seeds + share.T @ unlabeled)
        centers[~is_known] = 0.0
        bias = np.where(is_known, 0.0, ABSENT_LOGIT)
        return DirectionPredictor(
            weight=torch.from_numpy(CONCENTRATION * centers.T.astype(np.float64)),
            bias=torch.from_numpy(bias),
        )


@dataclass(frozen=True, kw_only=True)
class SoftSelfTraining(Candidate):
    """Regress on given and soft imputed labels; impute by clusters first, then by itself.

    All rows stay the same from round to round, so that their Gram matrix is factored once.
    """

    name: str
    title: str
    penalty: float

    @property
    def level(self) -> Level:
        return Level.SEMI_SUPERVISED

    def find_obstacle(self, rows: TableRows) -> str | None:
        return find_obstacle_of_labels(rows)

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        x = np.concatenate([rows.x, rows.unlabeled]).astype(np.float64)
        share = rows.unlabeled_weight * (rows.weight.sum() / rows.unlabeled_weight.sum())
        weight = np.concatenate([rows.weight, share])
        mean = np.average(x, axis=0, weights=weight)
        weighted = (x - mean) * weight[:, None]
        gram = weighted.T @ (x - mean)
        gram[np.diag_indices_from(gram)] += self.penalty
        factor, given = cho_factor(gram, overwrite_a=True), _one_hot(rows)
        imputed = softmax(predict(Clusters().fit(rows, seed), rows.unlabeled), axis=1)
        for _ in range(TEACHING_ROUNDS):
            targets = np.concatenate([given, imputed])
            target_mean = np.average(targets, axis=0, weights=weight)
            coefficients = cho_solve(factor, weighted.T @ (targets - target_mean))
            bias = target_mean - mean @ coefficients
            scores = x[len(rows.x) :] @ coefficients + bias
            imputed = softmax(scores / TEACHING_SCALE, axis=1)
        return _make_classifier(rows, coefficients, bias)


def _normalize(rows: np.ndarray) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, np.finfo(np.float32).tiny), dtype=np.float64)
