"""X and y as scikit-learn passes them, checked, and encoded for the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from l2i.errors import InputError
from l2i.fit import preprocess
from l2i.fit.preprocess import ImagePreprocessor, TableEncoder, TablePreprocessor
from l2i.fit.readers.columns import ColumnKind, to_floats
from l2i.fit.readers.dates import SECONDS_PER_DAY, infer_date_format, read_dates

if TYPE_CHECKING:
    import pandas as pd

EstimatorInputs = TablePreprocessor | ImagePreprocessor
IMAGE_NDIMS = (3, 4)  # dimensions of X: [N, H, W] and [N, C, H, W]
UNLABELED = -1


def find_unlabeled(target: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of missing targets: None or NaN anywhere, and −1 among whole numbers.

    A row of several targets is unlabelled if all of them are NaN.
    """
    if target.ndim == 2:
        return np.asarray(np.isnan(target.astype(np.float64)).all(axis=1))
    if target.dtype.kind in "iu":
        return np.asarray(target == UNLABELED)
    if target.dtype.kind == "f":
        missing = np.isnan(target)
        holds_classes = bool((target[~missing] == np.rint(target[~missing])).all())
        return np.asarray(missing | (target == UNLABELED) if holds_classes else missing)
    if target.dtype == object:
        return np.array([_is_missing(value) for value in target], dtype=bool)
    return np.zeros(len(target), dtype=bool)


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, int | float | np.number) and value == UNLABELED):
        return True
    try:
        return bool(value != value)  # NaN
    except TypeError:  # pandas' NA has no truth value
        return True


def encode_classes(y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return class numbers [N], −1 if unlabelled, and the classes that they stand for."""
    target = column_or_1d(to_array(y), warn=True)
    is_unlabeled = find_unlabeled(target)
    if target.dtype.kind == "f" and np.isinf(target).any():
        raise InputError("y contains infinity; mark unlabelled rows with -1 or NaN")
    labels = target[~is_unlabeled]
    if not len(labels):
        raise InputError("no row is labelled; label at least one row of each of two classes")
    labels = _unwrap_objects(labels)
    check_classification_targets(labels)
    classes, labeled_ids = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        problem = f"all labelled rows are of one class, {classes[0]}"
        raise InputError(f"{problem}; a classifier needs at least two classes")
    class_ids = np.full(len(target), UNLABELED, dtype=np.int64)
    class_ids[~is_unlabeled] = labeled_ids
    return class_ids, classes


def to_array(y: Any) -> NDArray[Any]:
    """Convert y to an array, of objects if it is a list with None among strings."""
    if hasattr(y, "to_numpy"):
        return np.asarray(y.to_numpy())
    needs_object = isinstance(y, list | tuple) and any(v is None or isinstance(v, str) for v in y)
    return np.array(y, dtype=object) if needs_object else np.asarray(y)


def _unwrap_objects(labels: NDArray[Any]) -> NDArray[Any]:
    """Convert objects to strings or numbers, whichever they all are."""
    if labels.dtype != object:
        return labels
    kinds = {isinstance(value, str) for value in labels}
    if len(kinds) > 1:
        raise InputError("y mixes strings and numbers; convert all labels to strings")
    converted = np.array(labels.tolist())
    return labels if converted.ndim != 1 else converted


def validate_features(
    estimator: BaseEstimator, x: Any, *, reset: bool
) -> pd.DataFrame | NDArray[Any]:
    """Return X as a frame if not all columns are numbers, else as [N, F] or images [N, C, H, W]."""
    is_frame = hasattr(x, "columns") and hasattr(x, "iloc")
    if reset:
        estimator.kind_ = "numbers"
        if is_frame and not all(map(_is_number, x.dtypes)):
            estimator.kind_ = "frame"
        elif not is_frame and not issparse(x) and np.asarray(x).ndim in IMAGE_NDIMS:
            estimator.kind_ = "images"
    if estimator.kind_ == "images":
        return _validate_images(estimator, np.asarray(x), reset=reset)
    if estimator.kind_ == "frame":
        if not is_frame:
            problem = "X must be a DataFrame with the fitted columns"
            raise InputError(f"{problem}, as some of them are categories")
        return _validate_frame(estimator, x, reset=reset)
    finite = {"ensure_all_finite": "allow-nan"}
    return np.asarray(validate_data(estimator, x, dtype=np.float64, reset=reset, **finite))


def _is_number(dtype: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(dtype)) and not is_bool_dtype(dtype)


def _validate_frame(estimator: BaseEstimator, x: pd.DataFrame, *, reset: bool) -> pd.DataFrame:
    """Return a frame with strings as column names; numbers must not be infinite."""
    if not len(x):
        raise InputError("Found array with 0 sample(s); X needs at least one row")
    if not x.columns.is_unique:
        raise InputError("X has duplicate column names; rename them")
    validate_data(estimator, x, skip_check_array=True, reset=reset)
    table = x.set_axis([str(name) for name in x.columns], axis=1)
    for name in table.columns:
        if _is_number(table[name].dtype):
            to_floats(table[name])  # raises for infinities
    return table


def _validate_images(estimator: BaseEstimator, raw: NDArray[Any], *, reset: bool) -> NDArray[Any]:
    fitted = f"{type(estimator).__name__} was fitted on"
    if raw.ndim not in IMAGE_NDIMS:
        raise InputError(f"X has {raw.ndim} dimensions, but {fitted} images; pass images")
    is_uint8 = raw.dtype == np.uint8
    images = check_array(raw, allow_nd=True, dtype=None if is_uint8 else np.float64)
    images = images[:, None] if images.ndim == 3 else images
    if reset:
        estimator.n_features_in_, estimator.image_shape_ = raw.shape[1], images.shape[1:]
        estimator.eight_bits_ = is_uint8
    elif images.shape[1:] != estimator.image_shape_:
        problem = f"X has images of shape {images.shape[1:]}, but {fitted} {estimator.image_shape_}"
        raise InputError(f"{problem}; resize them")
    elif is_uint8 != estimator.eight_bits_:
        dtype, fitted_dtype = ("uint8", "float") if is_uint8 else ("float", "uint8")
        raise InputError(f"X has {dtype} images, but {fitted} {fitted_dtype} images; convert them")
    return np.asarray(images)


def fit_inputs(x: pd.DataFrame | NDArray[Any], weight: NDArray[np.float64]) -> EstimatorInputs:
    """Fit the preprocessing of such rows."""
    if isinstance(x, np.ndarray) and x.ndim == 4:
        return ImagePreprocessor.fit(x)
    if isinstance(x, np.ndarray):
        return TablePreprocessor(columns=preprocess.fit_numbers(x, weight))
    columns: list[preprocess.Column] = []
    for name in x.columns:
        date_format = _find_date_format(x[name])
        if date_format is not None:
            days = _to_days(x[name], date_format)
            columns += preprocess.fit_date_columns(days, date_format, weight)
        else:
            kind: ColumnKind = "number" if _is_number(x[name].dtype) else "category"
            columns.append(preprocess.fit_column(x[name], kind, weight))
    return TablePreprocessor(columns=tuple(columns))


def _find_date_format(values: pd.Series) -> str | None:
    """Return how the dates of a column are written, as `l2i fit` reads them; None without dates."""
    from pandas.api.types import is_datetime64_any_dtype

    if is_datetime64_any_dtype(values.dtype):
        return "%Y-%m-%d" if values.notna().any() else None
    if _is_number(values.dtype):
        return None
    found = infer_date_format(values.astype(object))
    return None if found is None else found.format


def _to_days(values: pd.Series, date_format: str) -> pd.Series:
    """Return days since 1970 of dates, NaN where blank; raise InputError for other values."""
    import pandas as pd
    from pandas.api.types import is_datetime64_any_dtype

    if is_datetime64_any_dtype(values.dtype):
        moments = pd.to_datetime(values, utc=True).dt.tz_localize(None).to_numpy("datetime64[s]")
        days = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / SECONDS_PER_DAY)
    else:
        days = read_dates(values.astype(object), date_format)
    return pd.Series(days, index=values.index, name=values.name)


def encode_features(inputs: EstimatorInputs, x: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
    """Encode rows for the network: float32 [N, E], or grey levels [N, C, H, W]."""
    if isinstance(inputs, ImagePreprocessor):
        assert isinstance(x, np.ndarray)
        return inputs.to_grey_levels(x)
    if not isinstance(x, np.ndarray):
        dates = {c.name: c.date_format for c in inputs.columns if c.part}
        return inputs(x.assign(**{name: _to_days(x[name], f) for name, f in dates.items()}))
    encoder = TableEncoder(inputs, torch.float64)
    # copied where it is read-only, such as a memory map, of which torch warns
    rows = x if x.flags.writeable else x.copy()
    return np.asarray(encoder(numbers=torch.from_numpy(rows)).numpy())
