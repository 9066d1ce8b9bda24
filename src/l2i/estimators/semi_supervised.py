"""The classifier and the regressor, by scikit-learn's contract."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length

from l2i.errors import InputError
from l2i.estimators.base import L2IEstimator
from l2i.estimators.validation import encode_classes, validate_features


class L2IClassifier(ClassifierMixin, L2IEstimator):  # type: ignore[misc]
    """A classifier that also learns from unlabelled rows, and imputes their labels.

    Parameters
    ----------
    method : name of a semi-supervised method ('l2i list' prints them), or 'auto' to choose by the
        data; on a table with 20 labelled rows or more, 'auto' then cross-validates over them, and
        trains on the labels alone if the unlabelled rows hurt
    model : name of a network, 'auto', or a function (shape, outputs) -> nn.Module; the shape is
        that of a sample as the network sees it, [E] for an encoded table and [C, H, W] for images
    impute : whether L2I's outer step learns the labels, or the method is used as it is
    steps, batch_size, learning_rate : chosen by the data if None
    settings : any other fields of a run, as `l2i.replace` takes them: {"l2i": {"rho": 0.5}}
    device : 'cpu', 'cuda' or 'auto'
    random_state : seed of the initial weights and of all draws
    verbose : whether to print costs during training

    X is a table [N, F] of numbers, a DataFrame with numbers and categories, or images [N, H, W] or
    [N, C, H, W], which are quantised to 256 grey levels. In y, −1 (among strings: None or NaN)
    marks an unlabelled row. Without such rows it trains on the labels alone. `sample_weight` is how
    often a row is drawn, relative to others.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn
    transduction_ : the label of each training row, given or imputed
    label_distributions_ : class probabilities of each training row; a given label's is 1
    history_ : costs C^T, C^U, C^H and gradient norms, one dict for each of about 20 intervals
    helped_ : whether 'auto' found that unlabelled rows help; None if it was not tested
    validation_ : if it was tested, the mean cross-validation error of each candidate
    model_ : the averaged network, an nn.Module
    run_ : the exact configuration

    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on the labelled and unlabelled rows of X."""
        x = validate_features(self, X, reset=True)
        class_ids, self.classes_ = encode_classes(y)
        check_consistent_length(x, class_ids)
        is_unlabeled = class_ids < 0
        self._fit(x, class_ids, is_unlabeled, len(self.classes_), sample_weight)
        one_hot = np.eye(len(self.classes_))[class_ids.clip(0)]
        imputed = self._forward(x).softmax(dim=1).numpy()
        self.label_distributions_ = np.where(is_unlabeled[:, None], imputed, one_hot)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class, in the order of `classes_`."""
        return np.asarray(self._compute_outputs(X).softmax(dim=1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class of each row."""
        best = self._compute_outputs(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[best])


class L2IRegressor(RegressorMixin, L2IEstimator):  # type: ignore[misc]
    """A regressor that also learns from unlabelled rows, and imputes their targets.

    Parameters, X and `sample_weight` are those of `L2IClassifier`. y is [N] or, for several targets
    at once, [N, D]; NaN marks an unlabelled row, whose targets must then all be NaN. Without such
    rows it trains on the labels alone.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : as in scikit-learn
    transduction_ : the target of each training row, given or imputed
    helped_, validation_, history_, model_, run_ : as in `L2IClassifier`

    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on the labelled and unlabelled rows of X."""
        if y is None:
            problem = f"This {type(self).__name__} estimator requires y to be passed"
            raise InputError(f"{problem}, but the target y is None.")
        x = validate_features(self, X, reset=True)
        target = check_array(
            y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y"
        )
        check_consistent_length(x, target)
        self._single_target = target.ndim == 1
        target = target.reshape(len(target), -1)
        missing = np.isnan(target)
        is_unlabeled = missing.all(axis=1)
        is_partial = missing.any(axis=1) & ~is_unlabeled
        if is_partial.any():
            problem = f"row {int(is_partial.argmax())} of y has some targets, and NaN for others"
            raise InputError(f"{problem}; fill in all of them, or set all to NaN")
        if is_unlabeled.all():
            raise InputError("no row is labelled: y is NaN everywhere; label some rows")
        self._fit(x, np.where(missing, 0.0, target), is_unlabeled, None, sample_weight)
        values = np.where(missing, self._rescale_outputs(self._forward(x)), target)
        self.transduction_ = values[:, 0] if self._single_target else values
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the targets of each row, [N] or [N, D] as in y."""
        values = self._rescale_outputs(self._compute_outputs(X))
        return values[:, 0] if self._single_target else values

    def _rescale_outputs(self, outputs: Any) -> NDArray[np.float64]:
        return np.asarray(outputs.numpy() * self.target_std_ + self.target_mean_)
