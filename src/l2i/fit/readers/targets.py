"""Read the labels of a table: classes or numbers, blank where a row is unlabelled."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.fit.formatting import format_names, join_truncated, pluralize
from l2i.fit.readers.cells import is_continuous
from l2i.fit.readers.columns import (
    IDS,
    find_id_reason,
    find_non_numeric,
    make_mixed_error,
    to_category_names,
    to_floats,
)

if TYPE_CHECKING:
    import pandas as pd

TaskKind = Literal["auto", "classification", "regression"]
UNLABELED_WORDS = ("-1", "unknown", "unlabeled", "unlabelled")  # classes that may mean no label
MAX_CLASSES = 10_000
MIN_LABELS_OF_IDS = 10  # labelled rows, from which different numbers may be ids
INTEGER_PATTERN = re.compile(r"[+-]?\d{1,300}")  # Python refuses to convert far more digits
NO_UNLABELED_NOTE = "no unlabelled rows: there is nothing to impute"
MIN_LABELS_OF_COMMON, TYPO_CUTOFF = 3, 0.75  # of a class that another one may be a typo of
MIN_MARKED = 0.5  # share of the labels with one value, from which it may mean no label


class Targets(NamedTuple):
    """Labels as numbers, and the names of the classes for classification."""

    given_labels: NDArray[Any]  # [N] class numbers, −1 if blank; or [N, D] floats, NaN if blank
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]


def read_targets(frame: pd.DataFrame, task: TaskKind) -> Targets:
    """Read the target columns `frame`: one column of classes, or one or more of numbers."""
    if frame.isna().to_numpy().all():
        names = format_names(list(frame.columns))
        raise InputError(f"no row is labelled: {names} is blank in every row; label some rows")
    num_columns = frame.shape[1]
    if task == "classification" and num_columns > 1:
        fix = "use one --target, or --task regression"
        raise InputError(f"classification takes one target, not {num_columns}; {fix}")
    if task == "auto" and num_columns == 1:
        return _infer_targets(frame)
    if task == "classification":
        return _parse_classes(frame.iloc[:, 0])
    return _parse_numbers(frame)


def _infer_targets(frame: pd.DataFrame) -> Targets:
    values = frame.iloc[:, 0]
    bad_rows, present = find_non_numeric(values), values.dropna()
    numeric = values.drop(values.index[bad_rows]).dropna()
    if not len(bad_rows):
        _check_no_id(present)
    is_marked = len(bad_rows) > 0 and values.iloc[bad_rows].nunique() == 1
    is_marked &= len(numeric) > 0 and is_continuous(numeric)
    if not is_marked and (2 * len(bad_rows) > len(present) or not is_continuous(numeric)):
        return _parse_classes(values)
    if len(bad_rows):
        words = values.iloc[bad_rows].unique()
        marked = f"--missing '{words[0]}' if it means unlabelled, or "
        alternative = f"{marked if len(words) == 1 else ''}--task classification"
        raise make_mixed_error(values, bad_rows, "target", alternative)
    targets = _parse_numbers(frame)
    numeric_note = f"target '{values.name}' is numeric ({present.nunique():,} distinct values)"
    note = f"{numeric_note}: regression; use --task classification for classes"
    return targets._replace(notes=(note, *targets.notes))


def _check_no_id(present: pd.Series) -> None:
    """Raise InputError if the labels are numbers that seem to name their rows."""
    if len(present) >= MIN_LABELS_OF_IDS and find_id_reason(present) == IDS:
        problem = f"target '{present.name}' holds ids: every label is a different whole number"
        fix = "choose a different --target, or use --task regression if it is one"
        raise InputError(f"{problem}; {fix}")


def _parse_classes(values: pd.Series) -> Targets:
    """Assign class numbers in the order of names, or of integers."""
    cells = to_category_names(values)
    names = sorted(set(cells) - {""})
    if len(names) == 1:
        fix = "label rows of another class as well"
        raise InputError(f"target '{values.name}' has only one class, '{names[0]}'; {fix}")
    if len(names) > MAX_CLASSES:
        counts = f"{len(names):,} classes, more than {MAX_CLASSES:,}"
        fix = "choose a different --target, or use --task regression if it is numeric"
        raise InputError(f"target '{values.name}' has {counts}; {fix}")
    if all(INTEGER_PATTERN.fullmatch(name) for name in names):
        names.sort(key=lambda name: (int(name), name))
    class_index = {name: number for number, name in enumerate(names)}
    labels = np.array([class_index.get(cell, -1) for cell in cells], dtype=np.int64)
    return Targets(labels, tuple(names), _describe_classes(str(values.name), labels, names))


def _describe_classes(target: str, labels: NDArray[np.int64], names: list[str]) -> tuple[str, ...]:
    counts = np.bincount(labels[labels >= 0], minlength=len(names)).tolist()
    class_counts = list(zip(names, counts, strict=True))
    class_list = join_truncated([f"'{name}' ({count:,})" for name, count in class_counts])
    title = f"target '{target}' has {len(names):,} classes: {class_list}"
    singletons = format_names([name for name, count in class_counts if count == 1])
    limit = f"classes with one label, too few to judge a model by: {singletons}"
    suspicious = [
        f"warning: {pluralize(count, 'label is', 'labels are')} '{name}'; if it means unlabelled, "
        f"use --missing {name}"
        for name, count in class_counts
        if name.lower() in UNLABELED_WORDS and names != ["-1", "1"]
    ]
    notes = [*([limit] if singletons else []), *suspicious]
    return (title, _describe_labeled(labels >= 0), *notes, *_describe_typos(class_counts))


def _describe_typos(class_counts: list[tuple[str, int]]) -> list[str]:
    """Warn of classes with one label that are nearly named like a class with several."""
    common = {name.lower(): name for name, count in class_counts if count >= MIN_LABELS_OF_COMMON}
    found = []
    for name, count in class_counts:
        is_word = not INTEGER_PATTERN.fullmatch(name)
        close = get_close_matches(name.lower(), common, 1, TYPO_CUTOFF)
        if count == 1 and is_word and close:
            found.append(f"'{name}' of '{common[close[0]]}'")
    return [f"warning: classes that may be typos: {join_truncated(found)}"] if found else []


def _describe_labeled(is_labeled: NDArray[np.bool_]) -> str:
    if is_labeled.all():
        return NO_UNLABELED_NOTE
    num_labeled = int(is_labeled.sum())
    num_unlabeled = len(is_labeled) - num_labeled
    return f"{pluralize(num_labeled, 'labelled row')}, {num_unlabeled:,} unlabelled"


def _parse_numbers(frame: pd.DataFrame) -> Targets:
    """Read targets [N, D]; a row must have all of them or none."""
    alternative = "use one --target with --task classification"
    columns = [
        to_floats(frame[name], role="target", alternative=alternative) for name in frame.columns
    ]
    labels = np.stack(columns, axis=1)
    is_blank = np.isnan(labels)
    is_partial = is_blank.any(axis=1) & ~is_blank.all(axis=1)
    if is_partial.any():
        row = int(is_partial.argmax())
        name = frame.columns[int(is_blank[row].argmax())]
        fix = "fill it in, or leave all targets of the row blank"
        raise InputError(f"row {row + 1} has some targets, but '{name}' is blank; {fix}")
    is_labeled = ~is_blank[:, 0]
    if is_labeled.sum() < 2:
        raise InputError("only one row is labelled; label more rows")
    is_constant = np.ptp(labels[is_labeled], axis=0) == 0
    constant_names = format_names([str(name) for name in frame.columns[is_constant]])
    if is_constant.all():
        fix = "choose a different --target"
        raise InputError(f"target {constant_names} is constant over the labelled rows; {fix}")
    notes = [_describe_labeled(is_labeled), *_describe_markers(frame, labels[is_labeled])]
    if is_constant.any():
        notes.append(f"targets that are constant over the labelled rows: {constant_names}")
    return Targets(labels, None, tuple(notes))


def _describe_markers(frame: pd.DataFrame, labels: NDArray[np.float64]) -> list[str]:
    """Warn of a number that most labels are: it may mean that there is none."""
    notes = []
    for name, column in zip(frame.columns, labels.T, strict=True):
        values, counts = np.unique(column, return_counts=True)
        if len(values) > 2 and counts.max() > MIN_MARKED * len(column):
            value, count = f"{values[counts.argmax()]:g}", f"{counts.max():,} of {len(column):,}"
            notes.append(
                f"warning: {count} labels of '{name}' are {value}; if it means unlabelled, use "
                f"--missing {value}"
            )
    return notes
