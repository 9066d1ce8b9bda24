"""Labels as a table: a row for each row of the input, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import Fitted, Rows
from l2i.own.imputed import Imputations, rounded
from l2i.own.pictures import from_square
from l2i.own.places import checked_file, writing
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
    elif spread is not None:
        spread = rounded(spread, fitted.target_std)
    found: dict[str, Any] = dict(zip(names, labels.T, strict=True))
    if spread is not None:
        for name, column in zip(names, spread.T, strict=True):
            found[free(f"{name}_spread", found)] = column
    return found


def free(name: str, taken: Iterable[str]) -> str:
    """A column's name; with an underscore more where another column, or a target, has it."""
    while name in taken or name in OTHERS:
        name += "_"
    return name


def named(classes: tuple[str, ...]) -> NDArray[Any]:
    """Names of classes: whole numbers where all of them are."""
    whole = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in classes)
    whole = whole and all(abs(int(name)) < 2**63 for name in classes)
    return np.array([int(name) for name in classes] if whole else classes, dtype=np.int64 if whole else object)


def as_csv(frame: pd.DataFrame) -> str:
    """A header line, and a line a row."""
    return str(frame.to_csv(index=False))


def written(out: str, frame: pd.DataFrame) -> None:
    """Write a table as its name says; a file that is there already is replaced only by a whole one."""
    path = checked_file(out, SUFFIXES)
    content = as_csv(frame).encode() if path.suffix.lower() == ".csv" else frame.to_parquet(index=False)
    with writing(out):
        write_whole(path, content)
