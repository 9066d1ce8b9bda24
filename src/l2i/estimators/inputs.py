"""X as scikit-learn hands it over, a table or images, and as the network takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from l2i.errors import InputError
from l2i.own.prepare import Column, ImageInputs, Kind, TableInputs, learned, numbers, scale_of

if TYPE_CHECKING:
    import pandas as pd

Inputs = TableInputs | ImageInputs
IMAGES = (3, 4)  # dimensions of X: [N, H, W] and [N, C, H, W]


def checked(estimator: BaseEstimator, x: Any, *, reset: bool) -> pd.DataFrame | NDArray[Any]:
    """X as a frame, where it has columns that are no numbers, as an array [N, F], or as images [N, C, H, W]."""
    framed = hasattr(x, "columns") and hasattr(x, "iloc")
    if reset:
        estimator.kind_ = "images" if _are_images(x, framed) else "frame" if framed and is_mixed(x) else "numbers"
    if estimator.kind_ == "images":
        return _images(estimator, np.asarray(x), reset=reset)
    if estimator.kind_ == "frame":
        if not framed:
            raise InputError("X must be a DataFrame with the columns that were fitted: some of them are categories")
        return _frame(estimator, x, reset=reset)
    return np.asarray(validate_data(estimator, x, dtype=np.float64, reset=reset))


def is_mixed(x: pd.DataFrame) -> bool:
    """Whether a frame has columns of words, categories or truth values."""
    return any(not _is_number(t) for t in x.dtypes)


def _is_number(dtype: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(dtype)) and not is_bool_dtype(dtype)


def _are_images(x: Any, framed: bool) -> bool:
    return not framed and not issparse(x) and np.asarray(x).ndim in IMAGES


def _frame(estimator: BaseEstimator, x: pd.DataFrame, *, reset: bool) -> pd.DataFrame:
    """Columns named by strings; a number column must hold numbers in every row."""
    if not len(x):
        raise InputError("Found array with 0 sample(s); give at least one row")
    if not x.columns.is_unique:
        raise InputError("X has several columns of one name; rename them")
    validate_data(estimator, x, skip_check_array=True, reset=reset)
    named = x.set_axis([str(name) for name in x.columns], axis=1)
    for name in named.columns:
        if _is_number(named[name].dtype) and np.isnan(numbers(named[name])).any():
            raise InputError(
                f"column '{name}' contains NaN; fill it first, with scikit-learn's SimpleImputer for instance"
            )
    return named


def _images(estimator: BaseEstimator, raw: NDArray[Any], *, reset: bool) -> NDArray[Any]:
    if raw.ndim not in IMAGES:
        raise InputError(f"X has {raw.ndim} dimensions, and {type(estimator).__name__} was fitted on images; give such")
    eight = raw.dtype == np.uint8
    images = check_array(raw, allow_nd=True, dtype=None if eight else np.float64)
    images = images[:, None] if images.ndim == 3 else images
    if reset:
        estimator.n_features_in_, estimator.image_shape_, estimator.eight_bits_ = raw.shape[1], images.shape[1:], eight
    elif images.shape[1:] != estimator.image_shape_:
        raise InputError(
            f"X has images of shape {images.shape[1:]}, but {type(estimator).__name__} was fitted on "
            f"{estimator.image_shape_}; give the same"
        )
    elif eight != estimator.eight_bits_:
        ours, theirs = ("8 bits", "floats") if eight else ("floats", "8 bits")
        raise InputError(
            f"X has images of {ours}, but {type(estimator).__name__} was fitted on {theirs}; give the same"
        )
    return np.asarray(images)


def learned_inputs(x: pd.DataFrame | NDArray[Any], weight: NDArray[np.float64]) -> Inputs:
    """How to prepare such rows, from those there are."""
    if not isinstance(x, np.ndarray):
        return TableInputs(columns=tuple(_column(x[name], weight) for name in x.columns))
    if x.ndim == 4:
        return ImageInputs.learned(x)
    mean, std = scale_of(x, weight, "X")
    columns = (
        Column(name=f"x{i}", kind="number", mean=m, std=s)
        for i, (m, s) in enumerate(zip(mean.tolist(), std.tolist(), strict=True))
    )
    return TableInputs(columns=tuple(columns))


def _column(values: pd.Series, weight: NDArray[np.float64]) -> Column:
    kind: Kind = "number" if _is_number(values.dtype) else "category"
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
