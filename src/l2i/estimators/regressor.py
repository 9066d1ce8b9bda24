"""Numbers from few labels and many unlabelled rows, by scikit-learn's contract."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length

from l2i.errors import InputError
from l2i.estimators.base import L2IEstimator
from l2i.estimators.validation import validate_features


class L2IRegressor(RegressorMixin, L2IEstimator):  # type: ignore[misc]
    """A regressor that learns from unlabelled rows as well, and imputes their targets.

    Parameters, X and `sample_weight` are those of `L2IClassifier`. y is [N] or, for several targets at once, [N, D];
    NaN marks an unlabelled row, whose targets must then all be NaN. Without such rows it trains on the labels alone.

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
            raise InputError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        x = validate_features(self, X, reset=True)
        target = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
        check_consistent_length(x, target)
        self._single_target = target.ndim == 1
        target = target.reshape(len(target), -1)
        missing = np.isnan(target)
        is_unlabeled = missing.all(axis=1)
        if (missing.any(axis=1) & ~is_unlabeled).any():
            row = int((missing.any(axis=1) & ~is_unlabeled).argmax())
            raise InputError(f"row {row} of y has some targets and lacks others; give all of them, or none")
        if is_unlabeled.all():
            raise InputError("no row has a target; give that of some rows")
        self._fit(x, np.where(missing, 0.0, target), is_unlabeled, None, sample_weight)
        values = np.where(missing, self._rescale_outputs(self._forward(x)), target)
        self.transduction_ = values[:, 0] if self._single_target else values
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The targets of each row, [N] or [N, D] as in y."""
        values = self._rescale_outputs(self._compute_outputs(X))
        return values[:, 0] if self._single_target else values

    def _rescale_outputs(self, outputs: Any) -> NDArray[np.float64]:
        return np.asarray(outputs.numpy() * self.target_std_ + self.target_mean_)
