"""Read arrays from an .npz file: x as a table or images, y as classes or numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.npz import read_npz_arrays
from l2i.files.safety import check_columns, check_memory, translate_any_error
from l2i.fit.formatting import join_truncated
from l2i.fit.readers.targets import TaskKind

if TYPE_CHECKING:
    import pandas as pd

COLOR_CHANNELS = (1, 3)  # which axis holds the channels is recognised by its length
ALPHA_CHANNELS = (2, 4)


def read_npz(path: Path, *, labeled: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Read and check x, and y if `labeled`."""
    required = ("x", "y") if labeled else ("x",)
    problem = f"{path} is damaged, or not an .npz of plain arrays"
    fix = "write it with numpy.savez, x and y without Python objects"
    with translate_any_error(problem, fix):
        arrays, names = read_npz_arrays(path, required)
    for name in required:
        if name not in arrays:
            actual = join_truncated(names) or "nothing"
            raise InputError(f"{path} has no array {name}, only {actual}; save it as {name}=…")
    x, y = arrays["x"], arrays.get("y")
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or not x.size:
        fix = "use numbers as [N, columns], [N, H, W] or [N, C, H, W]"
        raise InputError(f"{path}: x is {x.dtype} {list(x.shape)}; {fix}")
    if x.ndim == 2:
        check_columns(path, x.shape[1])
        check_memory(path, 8 * x.size, "use fewer rows or columns")  # tables are float64
    if y is not None and (not y.ndim or len(y) != len(x)):
        fix = "y needs one value per row of x"
        raise InputError(f"{path}: x has {len(x):,} rows but y is {list(y.shape)}; {fix}")
    return x, y


def _cast_values(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Cast numbers; those too large become infinities, which are refused later."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype, copy=False)


def array_to_frame(x: NDArray[Any]) -> pd.DataFrame:
    """Return an array [N, F] as columns x0, x1, … of numbers."""
    import pandas as pd

    return pd.DataFrame(_cast_values(x, "float64"), columns=[f"x{i}" for i in range(x.shape[1])])


def parse_npz_targets(y: NDArray[Any], task: TaskKind, path: Path) -> tuple[pd.DataFrame, TaskKind]:
    """Return target columns and task: integers (−1: blank) and strings ('': blank) are classes."""
    import pandas as pd

    if y.dtype.kind == "f" and y.ndim <= 3:  # [N, P, 2] are points
        flat = _cast_values(y.reshape(len(y), -1), "float64")
        names = ["y"] if flat.shape[1] == 1 else [f"y{i}" for i in range(flat.shape[1])]
        return pd.DataFrame(flat, columns=names), "regression" if task == "auto" else task
    if y.dtype.kind not in "iubUS" or y.size != len(y):
        fix = "use integers or strings [N], or floats [N, D]"
        raise InputError(f"{path}: y is {y.dtype} {list(y.shape)}; {fix}")
    if task == "regression":
        needed = "--task regression needs floats, with NaN for unlabelled rows"
        raise InputError(f"{path}: y is {y.dtype}, but {needed}")
    class_names = pd.Series(_parse_class_names(y.reshape(-1), path), dtype=object)
    return pd.DataFrame({"y": class_names}), "classification"


def _parse_class_names(y: NDArray[Any], path: Path) -> list[str | None]:
    if y.dtype.kind == "i" and y.min() < -1:
        fix = "number classes from 0, with -1 for unlabelled rows"
        raise InputError(f"{path}: y contains {y.min()}; {fix}")
    if y.dtype.kind == "U" and not _is_valid_unicode(y):
        fix = "write it again, or number the classes"
        raise InputError(f"{path}: y contains invalid characters; {fix}")
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    blank_name = "" if y.dtype.kind == "U" else "-1"
    return [None if str(label) == blank_name else str(label) for label in y.tolist()]


def _is_valid_unicode(strings: NDArray[Any]) -> bool:
    """Return whether all code points exist and none is a surrogate."""
    codes = np.ascontiguousarray(strings).view(f"{strings.dtype.byteorder}u4")
    return not ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def to_channels_first(x: NDArray[Any], path: Path) -> NDArray[Any]:  # [N, C, H, W]
    """Return images [N, H, W], [N, C, H, W] or [N, H, W, C] as [N, C, H, W]."""
    if x.ndim == 3:
        return x[:, None]
    if x.shape[1] in COLOR_CHANNELS:
        return x
    if x.shape[3] in ALPHA_CHANNELS:
        fix = "drop it, and write x as [N, H, W, 3] or [N, C, H, W]"
        raise InputError(f"{path}: x is {list(x.shape)}, apparently with an alpha channel; {fix}")
    return np.moveaxis(x, 3, 1) if x.shape[3] in COLOR_CHANNELS else x


def to_image_array(x: NDArray[Any], path: Path, dtype: str | None = None) -> NDArray[Any]:
    """Return images [N, C, H, W], of `dtype` or else grey levels as uint8 and others as float32."""
    is_uint8 = x.dtype == np.uint8
    fits_uint8 = is_uint8 or (x.dtype.kind in "iu" and x.min() >= 0 and x.max() <= 255)
    inferred_dtype = "uint8" if fits_uint8 else "float32"
    if dtype is not None and dtype != inferred_dtype and (dtype == "uint8" or is_uint8):
        expected = "integers from 0 to 255" if dtype == "uint8" else "values other than uint8"
        fix = "convert x"
        raise InputError(f"{path}: x is {x.dtype}, but the model was trained on {expected}; {fix}")
    images = _cast_values(to_channels_first(x, path), dtype or inferred_dtype)
    is_not_finite = ~np.isfinite(images).all(axis=(1, 2, 3))
    if is_not_finite.any():
        row = int(is_not_finite.argmax()) + 1
        raise InputError(f"{path}: the image in row {row} of x contains NaN or infinity; fix it")
    return images
