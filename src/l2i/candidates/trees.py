"""Convert scikit-learn's trees to arrays that one module evaluates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.candidates.predictors import BoostedPredictor, TreePredictor

ABSENT_LOGIT = -20.0  # of a class without a label


class _Forest:
    """Collect trees, whose nodes are numbered together."""

    def __init__(self) -> None:
        self.count, self.depth = 0, 0
        self.parts: dict[str, list[NDArray[Any]]] = {
            name: [] for name in ("feature", "threshold", "left", "right", "value")
        }
        self.roots: list[int] = []
        self.outputs: list[int] = []

    def add(
        self,
        feature: NDArray[Any],
        threshold: NDArray[Any],
        left: NDArray[Any],
        right: NDArray[Any],
        is_leaf: NDArray[np.bool_],
        value: NDArray[Any],
        depth: int,
        output: int = 0,
    ) -> None:
        """Add a tree of nodes [M], with values [M, C] or [M] for one output; its root is node 0."""
        own = np.arange(len(feature))
        self.parts["feature"].append(np.where(is_leaf, 0, feature))
        self.parts["threshold"].append(_round_down(np.where(is_leaf, 0.0, threshold)))
        self.parts["left"].append(np.where(is_leaf, own, left) + self.count)
        self.parts["right"].append(np.where(is_leaf, own, right) + self.count)
        self.parts["value"].append(value)
        self.roots.append(self.count)
        self.outputs.append(output)
        self.count, self.depth = self.count + len(feature), max(self.depth, depth)

    def build(self, bias: NDArray[Any], *, is_probability: bool) -> TreePredictor:
        """Return trees of which each adds to all outputs."""
        return TreePredictor(**self._join(bias, is_probability=is_probability))

    def build_boosted(self, bias: NDArray[Any]) -> BoostedPredictor:
        """Return trees of which each adds to one output."""
        joined = self._join(bias, is_probability=False)
        return BoostedPredictor(**joined, output=torch.tensor(self.outputs))

    def _join(self, bias: NDArray[Any], *, is_probability: bool) -> dict[str, torch.Tensor]:
        joined = {name: torch.from_numpy(np.concatenate(p)) for name, p in self.parts.items()}
        return {
            **joined,
            "roots": torch.tensor(self.roots),
            "bias": torch.from_numpy(np.asarray(bias, dtype=np.float64)),
            "depth": torch.tensor(self.depth),
            "is_probability": torch.tensor(int(is_probability)),
        }


def _round_down(threshold: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest float32 that is at most each threshold: inputs are float32."""
    rounded = threshold.astype(np.float32)
    lower = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded > threshold, lower, rounded).astype(np.float64)


def _add_tree(forest: _Forest, tree: Any, value: NDArray[Any], output: int = 0) -> None:
    left, right = tree.children_left, tree.children_right
    forest.add(tree.feature, tree.threshold, left, right, left < 0, value, tree.max_depth, output)


def convert_forest(model: Any, num_outputs: int) -> TreePredictor:
    """Convert a forest: the mean of its trees' probabilities, or of their targets."""
    forest, count = _Forest(), len(model.estimators_)
    is_classifier = hasattr(model, "classes_")
    for estimator in model.estimators_:
        tree = estimator.tree_  # its values are [M, D, 1], or [M, 1, P] shares of classes
        found = tree.value[:, 0, :] if is_classifier else tree.value[:, :, 0]
        value = np.zeros((len(found), num_outputs))
        value[:, model.classes_ if is_classifier else slice(None)] = found / count
        _add_tree(forest, tree, value)
    return forest.build(np.zeros(num_outputs), is_probability=is_classifier)


def convert_boosting(models: list[Any], num_outputs: int) -> BoostedPredictor:
    """Convert gradient boosting: one model for classes, or one per target."""
    forest, columns = _Forest(), _list_columns(models)
    biases = []
    for model, used in zip(models, columns, strict=True):
        for stage in model.estimators_:
            for column, estimator in zip(used, stage, strict=True):
                value = model.learning_rate * estimator.tree_.value[:, 0, 0]
                _add_tree(forest, estimator.tree_, value, column)
        biases.append(_get_boosting_bias(model))
    return forest.build_boosted(_spread_bias(models, columns, biases, num_outputs))


def _get_boosting_bias(model: Any) -> NDArray[Any]:
    zeros = np.zeros((1, model.n_features_in_), dtype=np.float32)
    return np.asarray(model._raw_predict_init(zeros)[0], dtype=np.float64)


def convert_histogram_boosting(models: list[Any], num_outputs: int) -> BoostedPredictor:
    """Convert gradient boosting with binned inputs: one model for classes, or one per target."""
    forest, columns = _Forest(), _list_columns(models)
    biases = []
    for model, used in zip(models, columns, strict=True):
        for stage in model._predictors:
            for column, predictor in zip(used, stage, strict=True):
                nodes = predictor.nodes
                forest.add(
                    nodes["feature_idx"],
                    nodes["num_threshold"],
                    nodes["left"].astype(np.int64),
                    nodes["right"].astype(np.int64),
                    nodes["is_leaf"].astype(bool),
                    nodes["value"].astype(np.float64),
                    int(nodes["depth"].max()),
                    column,
                )
        biases.append(np.ravel(model._baseline_prediction))
    return forest.build_boosted(_spread_bias(models, columns, biases, num_outputs))


def _list_columns(models: list[Any]) -> list[list[int]]:
    """Return the outputs that each model's trees add to; of two classes, the second alone."""
    if not hasattr(models[0], "classes_"):
        return [[d] for d in range(len(models))]
    classes = models[0].classes_.tolist()
    return [classes[1:] if len(classes) == 2 else classes]


def _spread_bias(
    models: list[Any], columns: list[list[int]], biases: list[NDArray[Any]], num_outputs: int
) -> NDArray[np.float64]:
    """Return where the sum of the trees starts, for every output."""
    bias = np.full(num_outputs, ABSENT_LOGIT if hasattr(models[0], "classes_") else 0.0)
    if hasattr(models[0], "classes_"):
        bias[models[0].classes_] = 0.0
    for used, values in zip(columns, biases, strict=True):
        bias[used] = values
    return bias
