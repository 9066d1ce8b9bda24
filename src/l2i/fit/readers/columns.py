"""Infer the kinds of input and target columns from their cells, and convert them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.output import ProgressCallback, ignore_progress, report_progress
from l2i.fit.formatting import format_names, join_truncated, pluralize

if TYPE_CHECKING:
    import pandas as pd

ColumnKind = Literal["number", "category", "text"]
KIND_TITLES = {"number": "numeric", "category": "categorical", "text": "text"}
BLANK = ""  # a blank cell among strings
MAX_CATEGORIES = 100  # per column; rarer ones count as unknown
INDEX_NAME_WORDS = {"id", "ids", "idx", "index", "row", "rows", "rowid", "unnamed"}
INTEGER_AS_FLOAT = re.compile(r"\A([+-]?\d+)\.0+\Z")
TaskKind = Literal["auto", "classification", "regression"]
UNLABELED_WORDS = ("-1", "unknown", "unlabeled", "unlabelled")  # classes that may mean no label
MAX_CLASSES = 10_000
MAX_INTEGER_CLASSES = 20  # integers with more distinct values are numbers, not classes
INTEGER_PATTERN = re.compile(r"[+-]?\d{1,300}")  # Python refuses to convert far more digits
NO_UNLABELED_NOTE = "no unlabelled rows: only the supervised model will be trained"


def check_unique_names(path: Path, names: Sequence[str]) -> None:
    """Raise InputError if two columns have the same name."""
    previous_names: set[str] = set()
    for name in names:
        if name in previous_names:
            raise InputError(f"{path} has two columns named '{name}'; rename one of them")
        previous_names.add(name)


def to_strings(values: pd.Series) -> list[str]:
    """Convert a column to strings, '' where blank."""
    cells = zip(values.tolist(), values.isna().tolist(), strict=True)
    return [BLANK if is_missing else str(value) for value, is_missing in cells]


def _to_category_names(values: pd.Series) -> list[str]:
    """Convert a column to strings, without the '.0' that programs add to integers beside blanks."""
    return [INTEGER_AS_FLOAT.sub(r"\1", name) for name in to_strings(values)]


def to_floats(
    values: pd.Series, *, role: str = "column", alternative: str = "leave it blank"
) -> NDArray[np.float64]:
    """Convert a column to numbers, NaN where blank; raise InputError for words and infinities."""
    import pandas as pd

    title = f"{role} '{values.name}'"
    if values.dtype == np.float64:
        floats: NDArray[np.float64] = values.to_numpy()
    else:
        numbers = pd.to_numeric(values, errors="coerce")
        floats = numbers.to_numpy(np.float64, na_value=np.nan)
        bad_rows = np.flatnonzero(np.isnan(floats) & values.notna().to_numpy(dtype=bool))
        if len(bad_rows):
            cell = _quote_cell(values, bad_rows[0])
            raise InputError(f"{title} contains {cell}, not a number; fix it, or {alternative}")
    is_infinite = np.isinf(floats)
    if is_infinite.any():
        raise InputError(f"{title} contains infinity in row {is_infinite.argmax() + 1}; fix it")
    return floats


def _find_non_numeric(values: pd.Series) -> NDArray[np.int64]:
    """Return the positions of the cells that are neither blank nor numbers."""
    import pandas as pd

    is_non_numeric = pd.to_numeric(values, errors="coerce").isna() & values.notna()
    return np.flatnonzero(is_non_numeric.to_numpy(dtype=bool))


def find_blank(values: pd.Series) -> pd.Series:
    """Return which cells of a converted column are blank: NaN among numbers, '' among strings."""
    return values.isna() if values.dtype == np.float64 else values.isna() | (values == BLANK)


def _quote_cell(values: pd.Series, row: int) -> str:
    return f"'{str(values.iloc[row])[:40]}' in row {row + 1}"


def _make_mixed_error(
    values: pd.Series, bad_rows: NDArray[np.int64], role: str, alternative: str
) -> InputError:
    cells, first = pluralize(len(bad_rows), "cell"), _quote_cell(values, bad_rows[0])
    problem = f"{role} '{values.name}' mixes numbers and text ({cells}, first {first})"
    return InputError(f"{problem}; fix it, or use {alternative}")


def convert_columns(
    frame: pd.DataFrame, kinds: dict[str, ColumnKind], progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """Convert columns to what preprocessing takes: numbers to floats, others to strings."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name in report_progress(kinds, len(kinds), "converted", progress, noun="columns"):
        kind = kinds[name]
        if kind == "number":
            columns[name] = to_floats(frame[name])
        else:
            convert = _to_category_names if kind == "category" else to_strings
            columns[name] = pd.Series(convert(frame[name]), dtype=object)
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


class InputColumns(NamedTuple):
    """Input columns: numbers as floats, NaN where blank; categories and texts as strings."""

    frame: pd.DataFrame
    kinds: dict[str, ColumnKind]
    notes: tuple[str, ...]


class SkippedColumn(NamedTuple):
    """Why a column is not an input; columns skipped for the same reason share a note."""

    reason: str
    has_own_note: bool = False


def infer_columns(
    frame: pd.DataFrame,
    *,
    text: Sequence[str] = (),
    category: Sequence[str] = (),
    progress: ProgressCallback = ignore_progress,
) -> InputColumns:
    """Infer the kind of every column; raise InputError for mixed types, or if none is left."""
    forced: dict[str, ColumnKind] = dict.fromkeys(text, "text")
    forced |= dict.fromkeys(category, "category")
    kinds: dict[str, ColumnKind] = {}
    skipped: dict[str, SkippedColumn] = {}
    names = list(frame.columns)
    for name in report_progress(names, len(names), "checked", progress, noun="columns"):
        kind = _infer_kind(frame[name], forced.get(name))
        if isinstance(kind, SkippedColumn):
            skipped[name] = kind
        else:
            kinds[name] = kind
    skipped_notes = _describe_skipped(skipped)
    if not kinds:
        reason = f": {skipped_notes[0]}" if skipped_notes else ""
        fix = "add input columns, or name some with --text or --category"
        raise InputError(f"no input columns are left{reason}; {fix}")
    inputs = convert_columns(frame, kinds, progress)
    notes = [*_describe_kinds(inputs, kinds), *skipped_notes, *_describe_blanks(inputs, kinds)]
    return InputColumns(inputs, kinds, tuple(notes))


def select_text_columns(frame: pd.DataFrame, names: Sequence[str]) -> InputColumns:
    """Take the named columns as text, in that order, and leave out all others."""
    kinds: dict[str, ColumnKind] = dict.fromkeys(names, "text")
    inputs = convert_columns(frame, kinds)
    num_blank = int((inputs == BLANK).all(axis=1).sum())
    if num_blank == len(inputs):
        fix = "choose a different --text"
        raise InputError(f"{format_names(names)} is blank in every row; {fix}")
    order = ", joined in this order" if len(names) > 1 else ""
    notes = [f"text columns: {format_names(names)}{order}"]
    other_columns = [str(name) for name in frame.columns if name not in names]
    if other_columns:
        notes.append(f"ignored (--encoder uses text columns only): {format_names(other_columns)}")
    return InputColumns(inputs, kinds, (*notes, *describe_blank_texts(num_blank)))


def _infer_kind(values: pd.Series, forced: ColumnKind | None) -> ColumnKind | SkippedColumn:
    name, present = values.name, values.dropna()
    if present.empty:
        if forced is not None:
            fix = "choose a different column"
            raise InputError(f"--{forced} '{name}': the column is blank in every row; {fix}")
        return SkippedColumn("blank in every row")
    if len(present) == len(values) > 1 and (values == values.iloc[0]).all():
        return SkippedColumn("constant")
    if forced is not None:
        return forced
    bad_rows = _find_non_numeric(values)
    if not len(bad_rows):
        return SkippedColumn("row numbers") if _is_row_index(values) else "number"
    if 2 * len(bad_rows) <= len(present):
        alternative = f"--category {name}, --text {name} or --ignore {name}"
        raise _make_mixed_error(values, bad_rows, "column", alternative)
    num_distinct = int(present.nunique())
    if num_distinct <= MAX_CATEGORIES and 2 * num_distinct <= len(values):
        return "category"
    return SkippedColumn(
        f"ignored ({num_distinct:,} distinct values in {pluralize(len(values), 'row')}): "
        f"'{name}'; use --text {name} to read it as text",
        has_own_note=True,
    )


def _is_row_index(values: pd.Series) -> bool:
    """Return whether a column named like an index holds 0 to N − 1 or 1 to N, in any order."""
    name_words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", str(values.name))
    if not INDEX_NAME_WORDS & {word.lower() for word in name_words}:
        return False
    floats = np.sort(to_floats(values))  # NaN, the blanks, come last and equal nothing
    return any(np.array_equal(floats, np.arange(len(floats)) + first) for first in (0, 1))


def _describe_skipped(skipped: dict[str, SkippedColumn]) -> list[str]:
    names_by_reason: dict[str, list[str]] = {}
    for name, column in skipped.items():
        if not column.has_own_note:
            names_by_reason.setdefault(column.reason, []).append(name)
    notes = [f"ignored ({why}): {format_names(names)}" for why, names in names_by_reason.items()]
    return notes + [column.reason for column in skipped.values() if column.has_own_note]


def _describe_kinds(inputs: pd.DataFrame, kinds: dict[str, ColumnKind]) -> list[str]:
    notes = []
    for kind, title in KIND_TITLES.items():
        if names := [name for name in kinds if kinds[name] == kind]:
            notes.append(f"{title} columns: {format_names(names)}")
    for name in kinds:
        count = int(inputs[name].nunique()) if kinds[name] == "category" else 0
        if count > MAX_CATEGORIES:
            limit = f"the {MAX_CATEGORIES} most frequent are kept, others treated as unknown"
            notes.append(f"column '{name}' has {count:,} categories: {limit}")
    return notes


def _describe_blanks(inputs: pd.DataFrame, kinds: dict[str, ColumnKind]) -> list[str]:
    counts = {name: int(find_blank(inputs[name]).sum()) for name in kinds}
    titles = {
        True: "blank cells are filled with the mean and flagged",
        False: "blank cells are a category of their own, or an empty text",
    }
    notes = []
    for is_number, title in titles.items():
        names = [name for name in kinds if (kinds[name] == "number") == is_number]
        items = [f"'{name}' ({counts[name]:,})" for name in names if counts[name]]
        if items:
            notes.append(f"{title}: {join_truncated(items)}")
    return notes


def describe_blank_texts(count: int) -> list[str]:
    """Note how many rows have no text, if any."""
    return [f"{pluralize(count, 'row')} without text, treated as empty"] if count else []


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
    bad_rows, present = _find_non_numeric(values), values.dropna()
    numeric = values.drop(values.index[bad_rows]).dropna()
    if 2 * len(bad_rows) > len(present) or not _is_continuous(numeric):
        return _parse_classes(values)
    if len(bad_rows):
        raise _make_mixed_error(values, bad_rows, "target", "--task classification")
    targets = _parse_numbers(frame)
    numeric_note = f"target '{values.name}' is numeric ({present.nunique():,} distinct values)"
    note = f"{numeric_note}: regression; use --task classification for classes"
    return targets._replace(notes=(note, *targets.notes))


def _is_continuous(values: pd.Series) -> bool:
    """Return whether numbers have fractions, or too many distinct values to be classes."""
    import pandas as pd

    floats = pd.to_numeric(values).to_numpy(dtype=np.float64)
    return bool((floats != np.floor(floats)).any() or len(np.unique(floats)) > MAX_INTEGER_CLASSES)


def _parse_classes(values: pd.Series) -> Targets:
    """Assign class numbers in the order of names, or of integers."""
    cells = _to_category_names(values)
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
    limit = f"classes with one label, which cannot be both trained and validated on: {singletons}"
    suspicious = [
        f"warning: {count:,} labels are '{name}'; if it means unlabelled, leave those cells blank"
        for name, count in class_counts
        if name.lower() in UNLABELED_WORDS
    ]
    notes = [*([limit] if singletons else []), *suspicious]
    return (title, _describe_labeled(labels >= 0), *notes)


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
    notes = [_describe_labeled(is_labeled)]
    if is_constant.any():
        notes.append(f"targets that are constant over the labelled rows: {constant_names}")
    return Targets(labels, None, tuple(notes))
