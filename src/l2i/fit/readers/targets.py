"""What a user's own data are labelled with: classes or numbers, and where they are blank."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.fit.options import format_names, join_truncated, pluralize
from l2i.fit.preprocess import to_floats, to_strings
from l2i.fit.readers.columns import find_non_numeric, strip_decimal_zeros

if TYPE_CHECKING:
    import pandas as pd

TaskKind = Literal["auto", "classification", "regression"]
MAX_CLASSES = 10_000
MAX_INTEGER_CLASSES = 20  # different numbers, above which they are no classes
INTEGER_PATTERN = re.compile(r"[+-]?\d{1,300}")  # of more digits Python makes no number
NO_UNLABELED_NOTE = "no unlabelled rows: only the supervised model will be trained"


class Targets(NamedTuple):
    """Labels as numbers, and the names of the classes where they are classes."""

    given_labels: NDArray[Any]  # [N] class numbers, −1 where blank; or [N, D] numbers, NaN where blank
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]


def read_targets(frame: pd.DataFrame, task: TaskKind) -> Targets:
    """The labels of all rows, of one column of classes or of columns of numbers; `frame` holds the target columns."""
    if frame.isna().to_numpy().all():
        raise InputError(f"no row has a label: {format_names(list(frame.columns))} is blank everywhere; label some rows")
    if task == "classification" and frame.shape[1] > 1:
        raise InputError(
            f"classification has one target, not {frame.shape[1]}; give one --target, or --task regression"
        )
    if task == "auto":
        return _infer_targets(frame)
    return _parse_numeric_targets(frame) if task == "regression" else parse_class_labels(frame.iloc[:, 0])


def _infer_targets(frame: pd.DataFrame) -> Targets:
    if frame.shape[1] > 1:
        return _parse_numeric_targets(frame)
    values = frame.iloc[:, 0]
    bad_rows, present = find_non_numeric(values), values.dropna()
    if 2 * len(bad_rows) > len(present) or not _is_continuous(values.drop(values.index[bad_rows]).dropna()):
        return parse_class_labels(values)
    if len(bad_rows):
        raise InputError(
            f"target '{values.name}' mixes numbers with {pluralize(len(bad_rows), 'cell')} of words, first "
            f"'{str(values.iloc[bad_rows[0]])[:40]}' in row {bad_rows[0] + 1}; mend it, or give --task classification"
        )
    targets = _parse_numeric_targets(frame)
    note = f"target '{values.name}' is read as numbers ({present.nunique():,} different), not as --task classification"
    return targets._replace(notes=(note, *targets.notes))


def _is_continuous(values: pd.Series) -> bool:
    """Whether numbers have fractions, or too many different values to be classes."""
    import pandas as pd

    raw = pd.to_numeric(values).to_numpy(dtype=np.float64)
    return bool((raw != np.floor(raw)).any() or len(np.unique(raw)) > MAX_INTEGER_CLASSES)


def parse_class_labels(values: pd.Series) -> Targets:
    """Class numbers in the order of the names; whole numbers are in their own order."""
    cells = [strip_decimal_zeros(word) for word in to_strings(values)]
    names = sorted(set(cells) - {""})
    if len(names) == 1:
        raise InputError(f"target '{values.name}' has one class alone, '{names[0]}'; label rows of another class too")
    if len(names) > MAX_CLASSES:
        raise InputError(
            f"target '{values.name}' has {len(names):,} classes, more than {MAX_CLASSES:,}; give another --target, or "
            "--task regression if it is a number"
        )
    if all(INTEGER_PATTERN.fullmatch(name) for name in names):
        names.sort(key=lambda name: (int(name), name))
    class_index = {name: number for number, name in enumerate(names)}
    labels = np.array([class_index.get(word, -1) for word in cells], dtype=np.int64)
    return Targets(labels, tuple(names), _describe_classes(str(values.name), labels, names))


def _describe_classes(name: str, labels: NDArray[np.int64], names: list[str]) -> tuple[str, ...]:
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    class_list = [f"'{name}' ({count:,})" for name, count in zip(names, counts.tolist(), strict=True)]
    singletons = [name for name, count in zip(names, counts.tolist(), strict=True) if count == 1]
    notes = [f"target '{name}' has {len(names):,} classes: {join_truncated(class_list)}", _describe_labeled(labels >= 0)]
    if singletons:
        notes.append(f"with one label, a class cannot be in both training and validation: {format_names(singletons)}")
    return tuple(notes)


def _describe_labeled(is_labeled: NDArray[np.bool_]) -> str:
    num_unlabeled = int((~is_labeled).sum())
    return f"{pluralize(int(is_labeled.sum()), 'row')} labelled, {num_unlabeled:,} not" if num_unlabeled else NO_UNLABELED_NOTE


def _parse_numeric_targets(frame: pd.DataFrame) -> Targets:
    """Targets [N, D]; each row must have all of them or none."""
    labels = np.stack([_parse_target_column(frame[name]) for name in frame.columns], axis=1)
    is_blank = np.isnan(labels)
    is_partial = is_blank.any(axis=1) & ~is_blank.all(axis=1)
    if is_partial.any():
        row = int(is_partial.argmax())
        name = frame.columns[int(is_blank[row].argmax())]
        raise InputError(
            f"row {row + 1} has some of its targets but not '{name}'; fill it in, or blank all targets of the row"
        )
    is_labeled = ~is_blank[:, 0]
    if is_labeled.sum() < 2:
        raise InputError("a single row has a label; label more rows")
    constant_names = [str(name) for name, column in zip(frame.columns, labels[is_labeled].T, strict=True) if not np.ptp(column)]
    if len(constant_names) == frame.shape[1]:
        raise InputError(f"target {format_names(constant_names)} is the same in every labelled row; give another --target")
    constant_notes = (f"targets that are the same in every labelled row: {format_names(constant_names)}",) if constant_names else ()
    return Targets(labels, None, (_describe_labeled(is_labeled), *constant_notes))


def _parse_target_column(values: pd.Series) -> NDArray[np.float64]:
    bad_rows = find_non_numeric(values)
    if len(bad_rows):
        raise InputError(
            f"target '{values.name}' holds '{str(values.iloc[bad_rows[0]])[:40]}' in row {bad_rows[0] + 1}, which is no "
            "number; mend it, or give one --target and --task classification"
        )
    return to_floats(values)
