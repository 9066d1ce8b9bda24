"""Arrays of a user's own in an .npz file: x as a table or images, y as classes or numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.npz import read_npz_arrays
from l2i.files.safety import check_columns, check_memory
from l2i.fit.options import join_truncated
from l2i.fit.readers.targets import TaskKind

if TYPE_CHECKING:
    import pandas as pd

COLOR_CHANNELS = (1, 3)  # channels, by which the axis of an image array is told
ALPHA_CHANNELS = (2, 4)  # the same and how opaque each pixel is


class NpzArrays(NamedTuple):
    """What an .npz file holds."""

    x: NDArray[Any]
    y: NDArray[Any] | None


def read_npz(path: Path, *, labelled: bool) -> NpzArrays:
    """x, checked, and y where it is asked for."""
    try:
        arrays, names = read_npz_arrays(path, ("x", "y") if labelled else ("x",))
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(
            f"{path} is damaged, or no .npz of plain arrays ({type(error).__name__}); write it with numpy.savez, x and "
            "y without Python objects"
        ) from None
    for name in ("x", "y") if labelled else ("x",):
        if name not in arrays:
            raise InputError(f"{path} has no array {name}, only {join_truncated(names) or 'nothing'}; write it as {name}=")
    x, y = arrays["x"], arrays.get("y")
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or not x.size:
        raise InputError(
            f"{path}: x is {x.dtype} {list(x.shape)}; write numbers as [N, columns], [N, H, W] or [N, C, H, W]"
        )
    if x.ndim == 2:
        check_columns(path, x.shape[1])
        check_memory(path, 8 * x.size, "give fewer rows or columns")  # a table's numbers have 8 bytes
    if y is not None and (not y.ndim or len(y) != len(x)):
        raise InputError(f"{path}: x has {len(x):,} rows but y is {list(y.shape)}; give y a value for each row of x")
    return NpzArrays(x, y)


def _cast_values(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Numbers of another type; those too large for it become infinities, which are refused later on."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype, copy=False)


def array_to_frame(x: NDArray[Any]) -> pd.DataFrame:
    """Columns x0, x1, … of numbers."""
    import pandas as pd

    return pd.DataFrame(_cast_values(x, "float64"), columns=[f"x{i}" for i in range(x.shape[1])])


def parse_npz_targets(y: NDArray[Any], task: TaskKind, path: Path) -> tuple[pd.DataFrame, TaskKind]:
    """Columns of targets and their task: whole numbers (blank: −1) and strings (blank: '') are classes, floats not."""
    import pandas as pd

    if y.dtype.kind == "f" and y.ndim <= 3:  # [N, P, 2] are points
        flat = _cast_values(y.reshape(len(y), -1), "float64")
        names = ["y"] if flat.shape[1] == 1 else [f"y{i}" for i in range(flat.shape[1])]
        return pd.DataFrame(flat, columns=names), "regression" if task == "auto" else task
    if y.dtype.kind not in "iubUS" or y.size != len(y):
        raise InputError(
            f"{path}: y is {y.dtype} {list(y.shape)}; write whole numbers or strings [N], or floats [N, D]"
        )
    if task == "regression":
        raise InputError(f"{path}: y is {y.dtype}, but --task regression needs floats, with NaN for unlabelled rows")
    class_names = pd.Series(_parse_class_names(y.reshape(-1), path), dtype=object)
    return pd.DataFrame({"y": class_names}), "classification"


def _parse_class_names(y: NDArray[Any], path: Path) -> list[str | None]:
    if y.dtype.kind == "i" and y.min() < -1:
        raise InputError(f"{path}: y holds {y.min()}; number classes from 0, with -1 for unlabelled rows")
    if y.dtype.kind == "U" and not _is_valid_text(y):
        raise InputError(f"{path}: y holds what are no characters; write it again, or number the classes")
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    blank_name = "" if y.dtype.kind == "U" else "-1"
    return [None if str(label) == blank_name else str(label) for label in y.tolist()]


def _is_valid_text(strings: NDArray[Any]) -> bool:
    """Whether all that a file gives as characters are some, and none is half of one."""
    codes = np.ascontiguousarray(strings).view(f"{strings.dtype.byteorder}u4")
    return not ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def to_channels_first(x: NDArray[Any], path: Path) -> NDArray[Any]:  # [N, C, H, W]
    """Images with the channels where networks have them."""
    if x.ndim == 3:
        return x[:, None]
    if x.shape[1] in COLOR_CHANNELS:
        return x
    if x.shape[3] in ALPHA_CHANNELS:
        raise InputError(
            f"{path}: x is {list(x.shape)}, images with transparency as it seems; leave that out, and write x as "
            "[N, H, W, 3] or [N, C, H, W]"
        )
    return np.moveaxis(x, 3, 1) if x.shape[3] in COLOR_CHANNELS else x


def to_image_array(x: NDArray[Any], path: Path, dtype: str | None = None) -> NDArray[Any]:  # [N, C, H, W]
    """Grey levels 0 to 255 as uint8 and all other numbers as float32, or whichever of them `dtype` asks for."""
    is_grey_levels = x.dtype == np.uint8 or (x.dtype.kind in "iu" and x.min() >= 0 and x.max() <= 255)
    inferred_dtype = "uint8" if is_grey_levels else "float32"
    if dtype is not None and dtype != inferred_dtype and (dtype == "uint8" or x.dtype == np.uint8):
        expected = "grey levels 0 to 255" if dtype == "uint8" else "numbers other than 8-bit grey levels"
        raise InputError(f"{path}: x is {x.dtype}, but the model was trained on {expected}; write x alike")
    images = _cast_values(to_channels_first(x, path), dtype or inferred_dtype)
    is_not_finite = ~np.isfinite(images).all(axis=(1, 2, 3))
    if is_not_finite.any():
        raise InputError(f"{path}: the image in row {int(is_not_finite.argmax()) + 1} of x holds NaN or infinity; mend it")
    return images
