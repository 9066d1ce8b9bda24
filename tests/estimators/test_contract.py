"""scikit-learn's own checks, on labelled rows alone and with as many unlabelled ones added."""

from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from l2i.estimators import L2IClassifier, L2IRegressor
from l2i.estimators.base import L2IEstimator

pytestmark = pytest.mark.slow

UNAVOIDABLE = {
    "check_classifiers_classes": "−1 is a class there, and marks an unlabelled row here, "
    "as in sklearn.semi_supervised"
}
SHORT = {"steps": 30, "learning_rate": 0.01}
LONGER = {"steps": 80, "learning_rate": 0.01}


class Doubled:
    """An estimator given every row again without its label: what it fits is semi-supervised."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        fit = super().fit  # type: ignore[misc]
        if y is None or issparse(X):
            return fit(X, y, sample_weight)
        x, target = np.asarray(X), np.asarray(y)
        if x.ndim != 2 or x.dtype.kind not in "fiu" or len(x) < 2 or len(x) != len(target):
            return fit(X, y, sample_weight)  # wrong input must be found as it is
        weight = None if sample_weight is None else np.tile(np.asarray(sample_weight), 2)
        twice = pd.concat([X, X]) if isinstance(X, pd.DataFrame) else np.concatenate([x, x])
        fit(twice, np.concatenate(self.with_blanks(target)), weight)  # type: ignore[attr-defined]
        assert self.run_.method.name != "supervised"  # type: ignore[attr-defined]
        return self


class DoubledClassifier(Doubled, L2IClassifier):
    @staticmethod
    def with_blanks(target: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        words = target.dtype.kind in "UO"
        blank = np.full(target.shape, None) if words else np.full_like(target, -1)
        return target.astype(object) if words else target, blank


class DoubledRegressor(Doubled, L2IRegressor):
    @staticmethod
    def with_blanks(target: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return target, np.full(target.shape, np.nan)


def expected(estimator: L2IEstimator) -> dict[str, str]:
    return UNAVOIDABLE if isinstance(estimator, L2IClassifier) else {}


@parametrize_with_checks(
    [
        L2IClassifier(**SHORT),
        L2IRegressor(**SHORT),
        DoubledClassifier("pseudo-label", **SHORT),
        DoubledRegressor("mean-teacher", **LONGER),
    ],
    expected_failed_checks=expected,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_checks_pass(estimator: L2IEstimator, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        *(DoubledClassifier(m, **SHORT) for m in ("mean-teacher", "fixmatch", "mixmatch")),
        *(DoubledRegressor(m, **LONGER) for m in ("pi-model", "pseudo-label")),
    ],
    ids=lambda estimator: f"{type(estimator).__name__}, {estimator.method}",
)
def test_sample_weights_pass_scikit_learns_checks_with_every_method(
    estimator: L2IEstimator,
) -> None:
    """The other checks are about what methods share."""
    checks = list(estimator_checks_generator(estimator))
    about_weights = [check for _, check in checks if "sample_weight" in str(check)]
    assert len(about_weights) > 5
    for check in about_weights:
        check(clone(estimator))
