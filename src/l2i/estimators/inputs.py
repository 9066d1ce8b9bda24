"""X as scikit-learn hands it over, a table or images, and as the network takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from l2i.errors import InputError
from l2i.own.prepare import Column, ImageInputs, Kind, TableInputs, learned

if TYPE_CHECKING:
    import pandas as pd

Inputs = TableInputs | ImageInputs
IMAGES = (3, 4)  # dimensions of X: [N, H, W] and [N, C, H, W]


def checked(estimator: BaseEstimator, x: Any, *, reset: bool) -> pd.DataFrame | NDArray[Any]:
    """X as a frame, where it has columns that are no numbers, as an array [N, F], or as images [N, C, H, W]."""
    if is_mixed(x):
        validate_data(estimator, x, skip_check_array=True, reset=reset)
        if not len(x):
            raise InputError("Found array with 0 sample(s); give at least one row")
        return x
    if not hasattr(x, "columns") and not issparse(x) and np.asarray(x).ndim in IMAGES:
        return _images(estimator, np.asarray(x), reset=reset)
    return validate_data(estimator, x, dtype=np.float64, reset=reset)


def is_mixed(x: Any) -> bool:
    """Whether X is a frame with columns of words, categories or truth values."""
    if not hasattr(x, "columns") or not hasattr(x, "iloc"):
        return False
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return any(is_bool_dtype(t) or not is_numeric_dtype(t) for t in x.dtypes)


def _images(estimator: BaseEstimator, raw: NDArray[Any], *, reset: bool) -> NDArray[Any]:
    images = check_array(raw, allow_nd=True, dtype=None if raw.dtype == np.uint8 else np.float64)
    images = images[:, None] if images.ndim == 3 else images
    if reset:
        estimator.n_features_in_, estimator.image_shape_ = raw.shape[1], images.shape[1:]
    elif images.shape[1:] != getattr(estimator, "image_shape_", None):
        raise InputError(
            f"X has images of shape {images.shape[1:]}, but {type(estimator).__name__} was fitted on "
            f"{getattr(estimator, 'image_shape_', 'a table')}; give the same"
        )
    return np.asarray(images)


def learned_inputs(x: pd.DataFrame | NDArray[Any], weight: NDArray[np.float64]) -> Inputs:
    """How to prepare such rows, from those there are."""
    if not isinstance(x, np.ndarray):
        return TableInputs(columns=tuple(_column(x[name], weight) for name in x.columns))
    if x.ndim == 4:
        return ImageInputs.learned(x)
    mean = np.average(x, axis=0, weights=weight)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    std = np.where(std <= 1e-12 * np.maximum(1.0, np.abs(mean)), 1.0, std)
    columns = (
        Column(name=f"x{i}", kind="number", mean=m, std=s)
        for i, (m, s) in enumerate(zip(mean.tolist(), std.tolist(), strict=True))
    )
    return TableInputs(columns=tuple(columns))


def _column(values: pd.Series, weight: NDArray[np.float64]) -> Column:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    kind: Kind = "number" if is_numeric_dtype(values.dtype) and not is_bool_dtype(values.dtype) else "category"
    if kind == "number" and bool(values.isna().any()):
        raise InputError(
            f"column '{values.name}' contains NaN; fill it first, with scikit-learn's SimpleImputer for instance"
        )
    return learned(values, kind, weight)


def encoded(inputs: Inputs, x: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
    """Rows as the loader takes them: float32 [N, E], or grey levels [N, C, H, W]."""
    if isinstance(inputs, ImageInputs):
        assert isinstance(x, np.ndarray)
        return inputs.grey(x)
    if not isinstance(x, np.ndarray):
        return inputs(x)
    mean, std = (np.array([getattr(column, name) for column in inputs.columns]) for name in ("mean", "std"))
    return np.asarray((x - mean) / std, dtype=np.float32)
