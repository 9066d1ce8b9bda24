"""Labels as a table: a row for each row of the input, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.own.fitted import Fitted, Rows
from l2i.own.imputed import Imputations
from l2i.own.pictures import from_square
from l2i.training.checkpoint import write_whole

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet")
OTHERS = ("id", "source", "confidence", "abstain", "changes")  # columns beside the labels
DECIMALS = 6  # of points in pixels, beyond which is rounding from one size of an image to another


def imputed_frame(fitted: Fitted, rows: Rows, found: Imputations) -> pd.DataFrame:
    """The id of each row, its label, whether it was given or imputed, how sure it is, and how often it changed."""
    import pandas as pd

    columns: dict[str, Any] = {"id": rows.ids}
    columns |= label_columns(fitted, found.labels, found.spread, rows.sizes)
    columns["source"] = np.where(found.imputed, "imputed", "given")
    if fitted.classes is not None:
        columns["confidence"] = found.confidence.round(6)
    columns["abstain"] = found.abstain
    columns["changes"] = np.where(found.imputed, rows.changes, 0)
    return pd.DataFrame(columns)


def label_columns(
    fitted: Fitted, labels: NDArray[Any], spread: NDArray[Any] | None, sizes: NDArray[np.int64] | None
) -> dict[str, Any]:
    """Names of classes; or targets and their spreads, points in pixels of the images as they were given."""
    names = [f"{name}_label" if name in OTHERS else name for name in fitted.targets]
    if fitted.classes is not None:
        return {names[0]: named(fitted.classes)[labels]}
    if fitted.points and sizes is not None:
        side = fitted.shape[-1]
        labels = from_square(labels, sizes, side).round(DECIMALS)
        spread = None if spread is None else from_square(spread, sizes, side).round(DECIMALS)
    found: dict[str, Any] = dict(zip(names, labels.T, strict=True))
    if spread is not None:
        found |= {f"{name}_spread": column for name, column in zip(names, spread.T, strict=True)}
    return found


def named(classes: tuple[str, ...]) -> NDArray[Any]:
    """Names of classes: whole numbers where all of them are."""
    whole = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in classes)
    whole = whole and all(abs(int(name)) < 2**63 for name in classes)
    return np.array([int(name) for name in classes] if whole else classes, dtype=np.int64 if whole else object)


def as_csv(frame: pd.DataFrame) -> str:
    """A header line, and a line a row."""
    return str(frame.to_csv(index=False))


def checked_place(out: str) -> Path:
    """A file that a table can be written to."""
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"cannot write '{out}': it must end in {' or '.join(SUFFIXES)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"cannot write '{out}': {'it is a folder' if path.is_dir() else 'its folder is not there'}")
    return path


def written(out: str, frame: pd.DataFrame) -> None:
    """Write a table as its name says; a file that is there already is replaced only by a whole one."""
    path = checked_place(out)
    content = as_csv(frame).encode() if path.suffix.lower() == ".csv" else frame.to_parquet(index=False)
    write_whole(path, content)
