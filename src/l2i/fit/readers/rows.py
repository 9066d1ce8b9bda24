"""What reading the data of a fit and reading new data share: rows, their ids, and paths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.safety import check_regular_file
from l2i.files.terminal import to_one_line
from l2i.fit.readers.delimited import TABLE_SUFFIXES

if TYPE_CHECKING:
    import pandas as pd

PathKind = Literal["folder", "npz", "table", "other"]
SavedOptions = dict[str, Any]
"""How data was read, as JSON: the layout, some of ReadOptions, and the spec of images."""

SUFFIX_LIST = ", ".join((*TABLE_SUFFIXES, ".npz"))


@dataclass(frozen=True, kw_only=True)
class InputRows:
    """Rows with their inputs."""

    ids: list[str]
    inputs: pd.DataFrame | NDArray[Any]
    """Input columns of a table; images [N, C, S, S], uint8 or float32; or their features [N, F]."""
    notes: tuple[str, ...]
    """What was inferred from the data, one line each."""
    sizes: NDArray[np.int64] | None = None
    """[N, 2]: original widths and heights of images, for `points_from_square`."""


@contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Turn file errors into InputErrors, and put messages on one line, whatever they quote."""
    try:
        yield
    except OSError as error:
        problem = f"{error.filename or path} cannot be read ({error.strerror})"
        raise InputError(f"{problem}; check its permissions") from None
    except InputError as error:
        raise InputError(to_one_line(str(error))) from None


def resolve_data_path(path: str) -> tuple[Path, PathKind]:
    """Return an existing path and what it holds."""
    data_path = Path(path).expanduser()
    if not data_path.exists():
        raise InputError(f"{path} was not found; check the path")
    if data_path.is_dir():
        return data_path, "folder"
    suffix = check_regular_file(data_path).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return data_path, "table"
    return data_path, "npz" if suffix == ".npz" else "other"


def flatten_notes(*notes: str) -> tuple[str, ...]:
    """Return notes of one line each, whatever they quote."""
    return tuple(map(to_one_line, notes))


def get_row_ids(frame: pd.DataFrame, column: str | None) -> list[str]:
    """Return the unique ids of all rows: those of a column, or numbers from 1."""
    if column is None:
        return number_rows(len(frame))
    cells = frame[column]
    is_blank, is_duplicate = cells.isna().to_numpy(), cells.duplicated().to_numpy()
    if is_blank.any():
        row = int(is_blank.argmax()) + 1
        raise InputError(f"id column '{column}' is blank in row {row}; fill it in")
    if is_duplicate.any():
        row = int(is_duplicate.argmax())
        fix = "make every id unique"
        raise InputError(f"id '{cells.iloc[row]}' in row {row + 1} is a duplicate; {fix}")
    return [str(cell) for cell in cells.tolist()]


def find_image_id(paths: pd.Series) -> str | None:
    """Return the column of image paths if they name the rows of a table, else None."""
    is_unique = bool(paths.notna().all()) and not paths.duplicated().any()
    return str(paths.name) if is_unique else None


def number_rows(count: int) -> list[str]:
    """Return the ids of rows that have none: numbers from 1."""
    return [str(row) for row in range(1, count + 1)]
