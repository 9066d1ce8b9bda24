"""scikit-learn estimators, and a splitter whose test folds hold labelled rows alone."""

from l2i.estimators.classifier import L2IClassifier
from l2i.estimators.model_selection import LabeledKFold
from l2i.estimators.regressor import L2IRegressor

__all__ = ["L2IClassifier", "L2IRegressor", "LabeledKFold"]
