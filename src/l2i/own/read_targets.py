"""What a user's own data are labelled with: classes or numbers, and where they are blank."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.own.kinds import not_numbers, whole
from l2i.own.prepare import numbers, words
from l2i.own.reading import counted, cut, few

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["auto", "classification", "regression"]
MOST_CLASSES = 10_000
MANY_VALUES = 20  # different numbers, above which they are no classes
INTEGER = re.compile(r"[+-]?\d{1,300}")  # of more digits Python makes no number
NO_BLANKS = "no unlabelled rows: only the supervised model will be trained"


class Targets(NamedTuple):
    """Labels as numbers, and the names of the classes where they are classes."""

    given: NDArray[Any]  # [N] class numbers, −1 where blank; or [N, D] numbers, NaN where blank
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]


def read_targets(frame: pd.DataFrame, task: Task) -> Targets:
    """The labels of all rows, of one column of classes or of columns of numbers; `frame` holds the target columns."""
    if frame.isna().to_numpy().all():
        raise InputError(f"no row has a label: {few(list(frame.columns))} is blank everywhere; label some rows")
    if task == "classification" and frame.shape[1] > 1:
        raise InputError(
            f"classification has one target, not {frame.shape[1]}; give one --target, or --task regression"
        )
    if task == "auto":
        return _guessed(frame)
    return _numbers(frame) if task == "regression" else class_labels(frame.iloc[:, 0])


def _guessed(frame: pd.DataFrame) -> Targets:
    if frame.shape[1] > 1:
        return _numbers(frame)
    values = frame.iloc[:, 0]
    wrong, there = not_numbers(values), values.dropna()
    if 2 * len(wrong) > len(there) or not _measured(values.drop(values.index[wrong]).dropna()):
        return class_labels(values)
    if len(wrong):
        raise InputError(
            f"target '{values.name}' mixes numbers with {counted(len(wrong), 'cell')} of words, first "
            f"'{str(values.iloc[wrong[0]])[:40]}' in row {wrong[0] + 1}; mend it, or give --task classification"
        )
    found = _numbers(frame)
    note = f"target '{values.name}' is read as numbers ({there.nunique():,} different), not as --task classification"
    return found._replace(notes=(note, *found.notes))


def _measured(values: pd.Series) -> bool:
    """Whether numbers have fractions, or too many different values to be classes."""
    import pandas as pd

    raw = pd.to_numeric(values).to_numpy(dtype=np.float64)
    return bool((raw != np.floor(raw)).any() or len(np.unique(raw)) > MANY_VALUES)


def class_labels(values: pd.Series) -> Targets:
    """Class numbers in the order of the names; whole numbers are in their own order."""
    found = [whole(word) for word in words(values)]
    names = sorted(set(found) - {""})
    if len(names) == 1:
        raise InputError(f"target '{values.name}' has one class alone, '{names[0]}'; label rows of another class too")
    if len(names) > MOST_CLASSES:
        raise InputError(
            f"target '{values.name}' has {len(names):,} classes, more than {MOST_CLASSES:,}; give another --target, or "
            "--task regression if it is a number"
        )
    if all(INTEGER.fullmatch(name) for name in names):
        names.sort(key=lambda name: (int(name), name))
    place = {name: number for number, name in enumerate(names)}
    given = np.array([place.get(word, -1) for word in found], dtype=np.int64)
    return Targets(given, tuple(names), _class_notes(str(values.name), given, names))


def _class_notes(name: str, given: NDArray[np.int64], names: list[str]) -> tuple[str, ...]:
    counts = np.bincount(given[given >= 0], minlength=len(names))
    each = [f"'{name}' ({count:,})" for name, count in zip(names, counts.tolist(), strict=True)]
    alone = [name for name, count in zip(names, counts.tolist(), strict=True) if count == 1]
    notes = [f"target '{name}' has {len(names):,} classes: {cut(each)}", _labelled(given >= 0)]
    if alone:
        notes.append(f"with one label, a class cannot be in both training and validation: {few(alone)}")
    return tuple(notes)


def _labelled(there: NDArray[np.bool_]) -> str:
    blank = int((~there).sum())
    return f"{counted(int(there.sum()), 'row')} labelled, {blank:,} not" if blank else NO_BLANKS


def _numbers(frame: pd.DataFrame) -> Targets:
    """Targets [N, D]; each row must have all of them or none."""
    given = np.stack([_target_numbers(frame[name]) for name in frame.columns], axis=1)
    blank = np.isnan(given)
    partly = blank.any(axis=1) & ~blank.all(axis=1)
    if partly.any():
        row = int(partly.argmax())
        name = frame.columns[int(blank[row].argmax())]
        raise InputError(
            f"row {row + 1} has some of its targets but not '{name}'; fill it in, or blank all targets of the row"
        )
    there = ~blank[:, 0]
    if there.sum() < 2:
        raise InputError("a single row has a label; label more rows")
    still = [str(name) for name, column in zip(frame.columns, given[there].T, strict=True) if not np.ptp(column)]
    if len(still) == frame.shape[1]:
        raise InputError(f"target {few(still)} is the same in every labelled row; give another --target")
    same = (f"targets that are the same in every labelled row: {few(still)}",) if still else ()
    return Targets(given, None, (_labelled(there), *same))


def _target_numbers(values: pd.Series) -> NDArray[np.float64]:
    wrong = not_numbers(values)
    if len(wrong):
        raise InputError(
            f"target '{values.name}' holds '{str(values.iloc[wrong[0]])[:40]}' in row {wrong[0] + 1}, which is no "
            "number; mend it, or give one --target and --task classification"
        )
    return numbers(values)
