"""The classifier and the regressor, by scikit-learn's contract."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length

from l2i.data.samples import check_target_range
from l2i.errors import InputError
from l2i.estimators.base import L2IEstimator
from l2i.estimators.validation import encode_classes, validate_features


class L2IClassifier(ClassifierMixin, L2IEstimator):  # type: ignore[misc]
    """Classify with few labels: learn from unlabelled rows too, and impute their labels.

    In `y`, −1, None or NaN marks an unlabelled row. If no row is unlabelled, it learns from the
    labels alone.

    Args:
        method: Name of a semi-supervised method ('l2i list' prints them) to train a network with,
            or 'auto'. On a table, 'auto' cross-validates plain models, semi-supervised ones and
            networks, and fits the best one to all labels; where they are about equal, one that
            needs no unlabelled rows.
        model: Name of a network, 'auto', or a function (shape, outputs) -> nn.Module. The shape is
            that of one sample as the network sees it: [E] for an encoded table, [C, H, W] for
            images.
        impute: Take L2I's outer step; False trains the method without it.
        steps: Number of training steps; None to choose by the data.
        batch_size: Samples per mini-batch, labelled and unlabelled; None to choose by the data.
        learning_rate: Initial learning rate; None to choose by the data.
        settings: Other fields of a run, as for `l2i.replace`: {"l2i": {"rho": 0.5}}. If this or
            one of the three above is set, 'auto' chooses among networks alone.
        candidates: Names of the candidates that 'auto' chooses from on a table, such as
            ['ridge', 'boosted-trees']; empty for all that suit the table.
        minutes: Time after which no further candidate is begun, on a table; None for no limit,
            which is repeatable on any machine.
        device: 'cpu', 'cuda' or 'auto'.
        random_state: Seed of the initial weights and of all random draws.
        verbose: Print the costs during training.

    Attributes:
        classes_: Class labels.
        n_features_in_: Number of features seen in `fit`.
        feature_names_in_: Names of the features, if X has string column names.
        transduction_: Label of each training row, given or imputed.
        label_distributions_: Class probabilities of each training row; one-hot for given labels.
        candidate_: Title of the chosen candidate, if 'auto' cross-validated.
        helped_: Whether it learns from the unlabelled rows; None if 'auto' did not test that.
        validation_: Cross-validation error of each candidate, if 'auto' tested.
        skipped_: Why other candidates were not tested, likewise.
        temperature_: Divides the logits; fitted to the predictions of cross-validation.
        model_: The fitted model, an nn.Module; for a network, the averaged one.
        run_: The configuration that was trained; None unless a network was chosen.
        history_: Costs C^T, C^U and C^H and gradient norms of a network, one dict for each of
            about 20 intervals.

    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on the labelled and unlabelled rows of X.

        Args:
            X: A table [N, F] of numbers, a DataFrame of numbers and categories, or images [N, H, W]
                or [N, C, H, W], which are quantised to 256 grey levels. NaN among the numbers of a
                table becomes the column's mean, marked by an additional input. Dates in a DataFrame
                become elapsed days and parts of the calendar.
            y: Class labels [N]; −1 (among strings: None or NaN) for an unlabelled row.
            sample_weight: How often each row counts, [N]: one of weight 2 is as two equal rows.
                Weights that sum to 1 make the labels count as one row.

        """
        x = validate_features(self, X, reset=True)
        class_ids, self.classes_ = encode_classes(y)
        check_consistent_length(x, class_ids)
        is_unlabeled = class_ids < 0
        outputs = self._fit(x, class_ids, is_unlabeled, len(self.classes_), sample_weight)
        one_hot = np.eye(len(self.classes_))[class_ids.clip(0)]
        imputed = (outputs / self.temperature_).softmax(dim=1).numpy()
        self.label_distributions_ = np.where(is_unlabeled[:, None], imputed, one_hot)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class, in the order of `classes_`."""
        logits = self._compute_outputs(X) / self.temperature_
        return np.asarray(logits.softmax(dim=1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class of each row."""
        best = self._compute_outputs(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[best])


class L2IRegressor(RegressorMixin, L2IEstimator):  # type: ignore[misc]
    """Regress with few labels: learn from unlabelled rows too, and impute their targets.

    In `y`, NaN marks an unlabelled row. If no row is unlabelled, it learns from the labels alone.
    The parameters are those of `L2IClassifier`.

    Attributes:
        n_features_in_: Number of features seen in `fit`.
        feature_names_in_: Names of the features, if X has string column names.
        transduction_: Target of each training row, given or imputed.
        candidate_, helped_, validation_, skipped_: As for `L2IClassifier`; errors are mean
            squares of standardised targets.
        model_, run_, history_: As for `L2IClassifier`.

    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on the labelled and unlabelled rows of X.

        Args:
            X: As for `L2IClassifier.fit`.
            y: Targets [N] or, for several targets, [N, D]; NaN for an unlabelled row, in all of its
                targets.
            sample_weight: How often each row counts, [N]: one of weight 2 is as two equal rows.
                Weights that sum to 1 make the labels count as one row.

        """
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
        names = [f"y{i}" for i in range(target.shape[1])] if target.shape[1] > 1 else ["y"]
        check_target_range(target[~is_unlabeled], names)
        filled = np.where(missing, 0.0, target)
        outputs = self._fit(x, filled, is_unlabeled, None, sample_weight)
        values = np.where(missing, self._rescale_outputs(outputs), target)
        self.transduction_ = values[:, 0] if self._single_target else values
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the targets of each row, [N] or [N, D] as in y."""
        values = self._rescale_outputs(self._compute_outputs(X))
        return values[:, 0] if self._single_target else values

    def _rescale_outputs(self, outputs: Any) -> NDArray[np.float64]:
        return np.asarray(outputs.numpy() * self.target_std_ + self.target_mean_)
