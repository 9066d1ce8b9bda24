"""Which targets are blank, and the others as class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from l2i.errors import InputError

UNLABELED = -1


def is_blank(target: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a target is missing: None or NaN anywhere, and −1 among whole numbers.

    A row of several targets is blank where all of them are NaN.
    """
    if target.ndim == 2:
        return np.asarray(np.isnan(target.astype(np.float64)).all(axis=1))
    if target.dtype.kind in "iu":
        return np.asarray(target == UNLABELED)
    if target.dtype.kind == "f":
        missing = np.isnan(target)
        whole = bool((target[~missing] == np.rint(target[~missing])).all())  # class numbers, as floats
        return np.asarray(missing | (target == UNLABELED) if whole else missing)
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


def class_numbers(y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Class numbers [N], −1 where blank, and the classes that they stand for."""
    target = column_or_1d(as_array(y), warn=True)
    blank = is_blank(target)
    if target.dtype.kind == "f" and np.isinf(target).any():
        raise InputError("y contains infinity; mark an unlabelled row by -1 or NaN")
    known = target[~blank]
    if not len(known):
        raise InputError("no row is labelled; give the label of at least one row of each of two classes")
    known = _plain(known)
    check_classification_targets(known)
    classes, numbers = np.unique(known, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"all labelled rows are of one class, {classes[0]}; a classifier needs two classes at least")
    found = np.full(len(target), UNLABELED, dtype=np.int64)
    found[~blank] = numbers
    return found, classes


def as_array(y: Any) -> NDArray[Any]:
    """Strings of pandas, and lists that hold None among strings, as objects."""
    if hasattr(y, "to_numpy"):
        return np.asarray(y.to_numpy())
    holds_none = isinstance(y, list | tuple) and any(v is None or isinstance(v, str) for v in y)
    return np.array(y, dtype=object) if holds_none else np.asarray(y)


def _plain(known: NDArray[Any]) -> NDArray[Any]:
    """Objects as strings or numbers, whichever they all are."""
    if known.dtype != object:
        return known
    kinds = {isinstance(value, str) for value in known}
    if len(kinds) > 1:
        raise InputError("labels are partly strings and partly numbers; give them all as strings")
    plain = np.array(known.tolist())
    return known if plain.ndim != 1 else plain
