"""Which targets are blank, and the others as class numbers.

MERGED:
X as scikit-learn hands it over, a table or images, and as the network takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from l2i.errors import InputError
from l2i.fit.preprocess import (
    Column,
    ColumnKind,
    ImagePreprocessor,
    TablePreprocessor,
    compute_scale,
    fit_column,
    to_floats,
)

if TYPE_CHECKING:
    import pandas as pd

UNLABELED = -1


def find_unlabeled(target: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a target is missing: None or NaN anywhere, and −1 among whole numbers.

    A row of several targets is blank where all of them are NaN.
    """
    if target.ndim == 2:
        return np.asarray(np.isnan(target.astype(np.float64)).all(axis=1))
    if target.dtype.kind in "iu":
        return np.asarray(target == UNLABELED)
    if target.dtype.kind == "f":
        missing = np.isnan(target)
        is_integral = bool((target[~missing] == np.rint(target[~missing])).all())  # class numbers, as floats
        return np.asarray(missing | (target == UNLABELED) if is_integral else missing)
    if target.dtype == object:
        return np.array([_is_missing(value) for value in target], dtype=bool)
    return np.zeros(len(target), dtype=bool)


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, int | float | np.number) and value == UNLABELED):
        return True
    try:
        return bool(value != value)  # NaN
    except TypeError:  # pandas' NA, of which nothing is true
        return True


def encode_classes(y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Class numbers [N], −1 where blank, and the classes that they stand for."""
    target = column_or_1d(to_array(y), warn=True)
    is_unlabeled = find_unlabeled(target)
    if target.dtype.kind == "f" and np.isinf(target).any():
        raise InputError("y contains infinity; mark an unlabelled row by -1 or NaN")
    labels = target[~is_unlabeled]
    if not len(labels):
        raise InputError("no row is labelled; give the label of at least one row of each of two classes")
    labels = _unwrap_objects(labels)
    check_classification_targets(labels)
    classes, labeled_ids = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"all labelled rows are of one class, {classes[0]}; a classifier needs two classes at least")
    class_ids = np.full(len(target), UNLABELED, dtype=np.int64)
    class_ids[~is_unlabeled] = labeled_ids
    return class_ids, classes


def to_array(y: Any) -> NDArray[Any]:
    """Strings of pandas, and lists that hold None among strings, as objects."""
    if hasattr(y, "to_numpy"):
        return np.asarray(y.to_numpy())
    needs_object = isinstance(y, list | tuple) and any(v is None or isinstance(v, str) for v in y)
    return np.array(y, dtype=object) if needs_object else np.asarray(y)


def _unwrap_objects(labels: NDArray[Any]) -> NDArray[Any]:
    """Objects as strings or numbers, whichever they all are."""
    if labels.dtype != object:
        return labels
    kinds = {isinstance(value, str) for value in labels}
    if len(kinds) > 1:
        raise InputError("labels are partly strings and partly numbers; give them all as strings")
    converted = np.array(labels.tolist())
    return labels if converted.ndim != 1 else converted


EstimatorInputs = TablePreprocessor | ImagePreprocessor
IMAGE_NDIMS = (3, 4)  # dimensions of X: [N, H, W] and [N, C, H, W]


def validate_features(estimator: BaseEstimator, x: Any, *, reset: bool) -> pd.DataFrame | NDArray[Any]:
    """X as a frame, where it has columns that are no numbers, as an array [N, F], or as images [N, C, H, W]."""
    is_frame = hasattr(x, "columns") and hasattr(x, "iloc")
    if reset:
        estimator.kind_ = "images" if _are_images(x, is_frame) else "frame" if is_frame and is_mixed(x) else "numbers"
    if estimator.kind_ == "images":
        return _validate_images(estimator, np.asarray(x), reset=reset)
    if estimator.kind_ == "frame":
        if not is_frame:
            raise InputError("X must be a DataFrame with the columns that were fitted: some of them are categories")
        return _validate_frame(estimator, x, reset=reset)
    return np.asarray(validate_data(estimator, x, dtype=np.float64, reset=reset))


def is_mixed(x: pd.DataFrame) -> bool:
    """Whether a frame has columns of words, categories or truth values."""
    return any(not _is_number(t) for t in x.dtypes)


def _is_number(dtype: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(dtype)) and not is_bool_dtype(dtype)


def _are_images(x: Any, is_frame: bool) -> bool:
    return not is_frame and not issparse(x) and np.asarray(x).ndim in IMAGE_NDIMS


def _validate_frame(estimator: BaseEstimator, x: pd.DataFrame, *, reset: bool) -> pd.DataFrame:
    """Columns named by strings; a number column must hold numbers in every row."""
    if not len(x):
        raise InputError("Found array with 0 sample(s); give at least one row")
    if not x.columns.is_unique:
        raise InputError("X has several columns of one name; rename them")
    validate_data(estimator, x, skip_check_array=True, reset=reset)
    table = x.set_axis([str(name) for name in x.columns], axis=1)
    for name in table.columns:
        if _is_number(table[name].dtype) and np.isnan(to_floats(table[name])).any():
            raise InputError(
                f"column '{name}' contains NaN; fill it first, with scikit-learn's SimpleImputer for instance"
            )
    return table


def _validate_images(estimator: BaseEstimator, raw: NDArray[Any], *, reset: bool) -> NDArray[Any]:
    if raw.ndim not in IMAGE_NDIMS:
        raise InputError(f"X has {raw.ndim} dimensions, and {type(estimator).__name__} was fitted on images; give such")
    is_uint8 = raw.dtype == np.uint8
    images = check_array(raw, allow_nd=True, dtype=None if is_uint8 else np.float64)
    images = images[:, None] if images.ndim == 3 else images
    if reset:
        estimator.n_features_in_, estimator.image_shape_, estimator.eight_bits_ = raw.shape[1], images.shape[1:], is_uint8
    elif images.shape[1:] != estimator.image_shape_:
        raise InputError(
            f"X has images of shape {images.shape[1:]}, but {type(estimator).__name__} was fitted on "
            f"{estimator.image_shape_}; give the same"
        )
    elif is_uint8 != estimator.eight_bits_:
        input_dtype, fitted_dtype = ("8 bits", "floats") if is_uint8 else ("floats", "8 bits")
        raise InputError(
            f"X has images of {input_dtype}, but {type(estimator).__name__} was fitted on {fitted_dtype}; give the same"
        )
    return np.asarray(images)


def fit_inputs(x: pd.DataFrame | NDArray[Any], weight: NDArray[np.float64]) -> EstimatorInputs:
    """How to prepare such rows, from those there are."""
    if not isinstance(x, np.ndarray):
        return TablePreprocessor(columns=tuple(_fit_column(x[name], weight) for name in x.columns))
    if x.ndim == 4:
        return ImagePreprocessor.fit(x)
    mean, std = compute_scale(x, weight, "X")
    columns = (
        Column(name=f"x{i}", kind="number", mean=m, std=s)
        for i, (m, s) in enumerate(zip(mean.tolist(), std.tolist(), strict=True))
    )
    return TablePreprocessor(columns=tuple(columns))


def _fit_column(values: pd.Series, weight: NDArray[np.float64]) -> Column:
    kind: ColumnKind = "number" if _is_number(values.dtype) else "category"
    return fit_column(values, kind, weight)


def encode_features(inputs: EstimatorInputs, x: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
    """Rows as the loader takes them: float32 [N, E], or grey levels [N, C, H, W]."""
    if isinstance(inputs, ImagePreprocessor):
        assert isinstance(x, np.ndarray)
        return inputs.to_grey_levels(x)
    if not isinstance(x, np.ndarray):
        return inputs(x)
    mean, std = (np.array([getattr(column, name) for column in inputs.columns]) for name in ("mean", "std"))
    return np.asarray((x - mean) / std, dtype=np.float32)
