"""Arrays of a user's own in an .npz file: x as a table or images, y as classes or numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from l2i.data.arrays import read_arrays
from l2i.data.limits import check_columns, check_memory
from l2i.errors import InputError
from l2i.own.pictures import Frame, checked_memory
from l2i.own.read_targets import Task
from l2i.own.reading import cut

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (1, 3)  # channels, by which the axis of an image array is told
TRANSPARENT = (2, 4)  # the same and how opaque each pixel is


class Arrays(NamedTuple):
    """What an .npz file holds."""

    x: NDArray[Any]
    y: NDArray[Any] | None


def read_npz(path: Path, *, labelled: bool) -> Arrays:
    """x, checked, and y where it is asked for."""
    try:
        arrays, names = read_arrays(path, ("x", "y") if labelled else ("x",))
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(
            f"{path} is damaged, or no .npz of plain arrays ({type(error).__name__}); write it with numpy.savez, x and "
            "y without Python objects"
        ) from None
    for name in ("x", "y") if labelled else ("x",):
        if name not in arrays:
            raise InputError(f"{path} has no array {name}, only {cut(names) or 'nothing'}; write it as {name}=")
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
    return Arrays(x, y)


def _values(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Numbers of another type; those too large for it become infinities, which are refused later on."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype, copy=False)


def as_table(x: NDArray[Any]) -> pd.DataFrame:
    """Columns x0, x1, … of numbers."""
    import pandas as pd

    return pd.DataFrame(_values(x, "float64"), columns=[f"x{i}" for i in range(x.shape[1])])


def npz_targets(y: NDArray[Any], task: Task, path: Path) -> tuple[pd.DataFrame, Task]:
    """Columns of targets and their task: whole numbers (blank: −1) and strings (blank: '') are classes, floats not."""
    import pandas as pd

    if y.dtype.kind == "f" and y.ndim <= 3:  # [N, P, 2] are points
        flat = _values(y.reshape(len(y), -1), "float64")
        names = ["y"] if flat.shape[1] == 1 else [f"y{i}" for i in range(flat.shape[1])]
        return pd.DataFrame(flat, columns=names), "regression" if task == "auto" else task
    if y.dtype.kind not in "iubUS" or y.size != len(y):
        raise InputError(
            f"{path}: y is {y.dtype} {list(y.shape)}; write whole numbers or strings [N], or floats [N, D]"
        )
    if task == "regression":
        raise InputError(f"{path}: y is {y.dtype}, but --task regression needs floats, with NaN for unlabelled rows")
    words = pd.Series(_class_words(y.reshape(-1), path), dtype=object)
    return pd.DataFrame({"y": words}), "classification"


def _class_words(y: NDArray[Any], path: Path) -> list[str | None]:
    if y.dtype.kind == "i" and y.min() < -1:
        raise InputError(f"{path}: y holds {y.min()}; number classes from 0, with -1 for unlabelled rows")
    if y.dtype.kind == "U" and not _is_text(y):
        raise InputError(f"{path}: y holds what are no characters; write it again, or number the classes")
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    blank = "" if y.dtype.kind == "U" else "-1"
    return [None if str(label) == blank else str(label) for label in y.tolist()]


def _is_text(words: NDArray[Any]) -> bool:
    """Whether all that a file gives as characters are some, and none is half of one."""
    codes = np.ascontiguousarray(words).view(f"{words.dtype.byteorder}u4")
    return not ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def channels_first(x: NDArray[Any], path: Path) -> NDArray[Any]:  # [N, C, H, W]
    """Images with the channels where networks have them."""
    if x.ndim == 3:
        return x[:, None]
    if x.shape[1] in COLOURS:
        return x
    if x.shape[3] in TRANSPARENT:
        raise InputError(
            f"{path}: x is {list(x.shape)}, images with transparency as it seems; leave that out, and write x as "
            "[N, H, W, 3] or [N, C, H, W]"
        )
    return np.moveaxis(x, 3, 1) if x.shape[3] in COLOURS else x


def as_images(x: NDArray[Any], path: Path, dtype: str | None = None) -> NDArray[Any]:  # [N, C, H, W]
    """Grey levels 0 to 255 as uint8 and all other numbers as float32, or whichever of them `dtype` asks for."""
    levels = x.dtype == np.uint8 or (x.dtype.kind in "iu" and x.min() >= 0 and x.max() <= 255)
    found = "uint8" if levels else "float32"
    if dtype is not None and dtype != found and (dtype == "uint8" or x.dtype == np.uint8):
        other = "grey levels 0 to 255" if dtype == "uint8" else "numbers other than 8-bit grey levels"
        raise InputError(f"{path}: x is {x.dtype}, but the model was trained on {other}; write x alike")
    images = _values(channels_first(x, path), dtype or found)
    wrong = ~np.isfinite(images).all(axis=(1, 2, 3))
    if wrong.any():
        raise InputError(f"{path}: the image in row {int(wrong.argmax()) + 1} of x holds NaN or infinity; mend it")
    return images


def resized(x: NDArray[Any], frame: Frame) -> NDArray[Any]:  # [N, C, H, W] to [N, C, S, S]
    """Images brought to the frame; those that fit are left as they are."""
    checked_memory(len(x), frame, item=x.dtype.itemsize)
    height, width = x.shape[2:]
    if height == width == frame.side:
        return np.ascontiguousarray(x)
    short = min(height, width)
    left, top = (width - short) // 2, (height - short) // 2
    box = (0, 0, width, height) if frame.whole else (left, top, left + short, top + short)
    made = np.empty((*x.shape[:2], frame.side, frame.side), dtype=x.dtype)
    for place in np.ndindex(*x.shape[:2]):
        plane = Image.fromarray(np.ascontiguousarray(x[place]))
        made[place] = np.asarray(plane.resize((frame.side, frame.side), Image.Resampling.BICUBIC, box=box))
    return made
