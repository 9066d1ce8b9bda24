"""Classes from few labels and many unlabelled rows, by scikit-learn's contract."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_consistent_length

from l2i.estimators.base import L2IEstimator
from l2i.estimators.validation import encode_classes, validate_features


class L2IClassifier(ClassifierMixin, L2IEstimator):  # type: ignore[misc]
    """A classifier that learns from unlabelled rows as well, and imputes their labels.

    Parameters
    ----------
    method : name of a semi-supervised method ('l2i list' shows them), or 'auto' for what suits the data; for a table
        with 20 labelled rows or more, 'auto' then cross-validates over them, and trains on the labels alone where the
        unlabelled rows do harm
    model : name of a network, 'auto', or a function (shape, outputs) -> nn.Module; the shape is that of a sample as the
        network sees it, [E] for a table after encoding and [C, H, W] for images
    impute : whether labels are learned by L2I's outer step, or the method is used as it is
    steps, batch_size, learning_rate : by default chosen from the data
    settings : any other fields of a run, as `l2i.replace` takes them, such as {"l2i": {"rho": 0.5}}
    device : 'cpu', 'cuda' or 'auto'
    random_state : seed of the initial weights and all draws
    verbose : whether to print costs on the way

    X is a table [N, F] of numbers, a DataFrame with numbers and categories, or images [N, H, W] or [N, C, H, W], which
    are read at 256 grey levels. In y, −1 (among strings: None or NaN) marks an unlabelled row. Without such rows it
    trains on the labels alone. `sample_weight` says how often a row is drawn, compared with others.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn
    transduction_ : the label of each training row, given or imputed
    label_distributions_ : the probability of each class for each training row; that of a given label is 1
    history_ : costs C^T, C^U, C^H and sizes of gradients on the way, a dict for each of some 20 stretches of steps
    helped_ : what 'auto' found: whether unlabelled rows help; None where it was not looked at
    validation_ : where it was, the mean errors of the labelled rows by cross-validation, either way
    model_ : the averaged network, an nn.Module
    run_ : the exact configuration

    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on the labelled and unlabelled rows of X."""
        x = validate_features(self, X, reset=True)
        class_ids, self.classes_ = encode_classes(y)
        check_consistent_length(x, class_ids)
        self._fit(x, class_ids, class_ids < 0, len(self.classes_), sample_weight)
        one_hot = np.eye(len(self.classes_))[class_ids.clip(0)]
        self.label_distributions_ = np.where((class_ids < 0)[:, None], self._compute_probabilities(x), one_hot)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class, in the order of `classes_`."""
        return np.asarray(self._compute_outputs(X).softmax(dim=1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row."""
        best = self._compute_outputs(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[best])

    def _compute_probabilities(self, x: Any) -> NDArray[np.float64]:
        return np.asarray(self._forward(x).softmax(dim=1).numpy())
