"""scikit-learn estimators, and a splitter whose test folds hold labelled rows only."""

from l2i.estimators.model_selection import LabeledKFold
from l2i.estimators.semi_supervised import L2IClassifier, L2IRegressor

__all__ = ["L2IClassifier", "L2IRegressor", "LabeledKFold"]
