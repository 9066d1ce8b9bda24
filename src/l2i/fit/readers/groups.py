"""Groups of rows that belong together, such as patients: those named, and those forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from l2i.fit.formatting import format_names
from l2i.fit.readers.columns import ColumnKind, to_strings

if TYPE_CHECKING:
    import pandas as pd

MIN_HIDDEN_GROUPS = 3  # that are labelled, and that are blank, from which they are pointed out
MAX_SAMPLED_VALUES = 1000  # of a column that tell whether its values repeat


def read_groups(cells: pd.Series) -> NDArray[np.str_]:
    """Return the group of each row; a blank one is a group of its own."""
    names = [name or f"row {row}" for row, name in enumerate(to_strings(cells), 1)]
    return np.array(names, dtype=np.str_)


def describe_hidden_groups(
    inputs: pd.DataFrame, kinds: Mapping[str, ColumnKind], is_labeled: NDArray[np.bool_]
) -> list[str]:
    """Warn of columns whose rows of one value are all labelled or all blank, such as patients."""
    values = [name for name, kind in kinds.items() if kind in ("number", "category")]
    names = [name for name in values if _is_labeled_by_value(inputs[name], is_labeled)]
    if not names:
        return []
    fix = f"if they belong together, use --group {names[0]}"
    rows = f"rows with the same value of {format_names(names)} are all labelled or all blank"
    return [f"warning: {rows}; {fix}"]


def _is_labeled_by_value(values: pd.Series, is_labeled: NDArray[np.bool_]) -> bool:
    if 2 * values.head(MAX_SAMPLED_VALUES).nunique() > min(len(values), MAX_SAMPLED_VALUES):
        return False
    codes = np.unique(values.astype(str).to_numpy(dtype=str), return_inverse=True)[1]
    sizes = np.bincount(codes)
    counts = np.bincount(codes, weights=is_labeled, minlength=len(sizes))
    is_repeated, is_whole, is_blank = sizes > 1, counts == sizes, counts == 0
    if not (is_whole | is_blank)[is_repeated].all():
        return False
    both = [int((is_repeated & kind).sum()) for kind in (is_whole, is_blank)]
    return min(both) >= MIN_HIDDEN_GROUPS
