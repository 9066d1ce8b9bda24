"""New data for a model that was fitted to a user's own: read as those were, labels or none.

MERGED:
A user's own data as `l2i fit` and `l2i predict` read them: a table, images or arrays, checked, with notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.safety import check_regular_file
from l2i.fit.artifact import RowPreview
from l2i.fit.options import ReadOptions, format_names, pluralize, to_one_line
from l2i.fit.preprocess import BLANK, Column, ColumnKind, TablePreprocessor, TextPreprocessor, to_strings
from l2i.fit.readers.columns import convert_to_kind, describe_blank_texts, infer_columns, select_text_columns
from l2i.fit.readers.delimited import TABLE_SUFFIXES, RawTable, check_named_columns, get_row_ids, read_table
from l2i.fit.readers.folders import ImageFileList, list_class_files, list_image_files, resolve_listed_files
from l2i.fit.readers.images import (
    Images,
    ImageSpec,
    ProgressCallback,
    check_image_memory,
    decode_image_files,
    encode_thumbnail,
    points_to_square,
    read_array_images,
    read_image_files,
    read_new_array_images,
)
from l2i.fit.readers.npz import array_to_frame, parse_npz_targets, read_npz
from l2i.fit.readers.targets import Targets, TaskKind, read_targets

if TYPE_CHECKING:
    import pandas as pd

Layout = Literal["table", "folder", "paths", "arrays"]
OPTION_TYPES = {"layout": str, "encoding": str, "separator": str, "id": str | None, "image": str | None}
IMAGE_OPTION_TYPES = {"side": int, "channels": int, "whole": bool, "dtype": str, "skip_unreadable": bool}  # of images
IMAGE_DTYPES = ("uint8", "float32")


@dataclass(frozen=True, kw_only=True)
class NewData:
    """Rows to predict labels for."""

    ids: list[str]
    inputs: pd.DataFrame | NDArray[Any]
    """As Source.inputs."""
    notes: tuple[str, ...]
    sizes: NDArray[np.int64] | None = None
    """As Source.sizes."""


def read_new(
    path: str, options: dict[str, Any], preprocessor: TablePreprocessor | TextPreprocessor | None, progress: ProgressCallback | None = None
) -> NewData:
    """Data of the layout that the model was fitted to: `options` are Source.options, `columns` a table's inputs."""
    _check_options(options, images=preprocessor is None)
    try:
        data_path = resolve_existing_path(path)
        if preprocessor is not None:
            return _read_new_table(data_path, options, preprocessor)
        return _read_new_arrays(data_path, options) if options["layout"] == "arrays" else _read_new_images(data_path, options, progress)
    except OSError as error:
        raise make_path_error(error, path) from None
    except InputError as error:
        raise InputError(to_one_line(str(error))) from None


def _check_options(options: dict[str, Any], *, images: bool) -> None:
    """That a fit says how to read what it has learned to; a stranger's may say anything."""
    option_types = OPTION_TYPES | (IMAGE_OPTION_TYPES if images else {})
    invalid_name = next((name for name, expected_type in option_types.items() if not isinstance(options.get(name, ()), expected_type)), None)
    layouts = ("folder", "paths", "arrays") if images else ("table",)
    if invalid_name is None and options["layout"] not in layouts:
        invalid_name = "layout"
    if invalid_name is None and images and not (options["side"] > 0 < options["channels"] and options["dtype"] in IMAGE_DTYPES):
        invalid_name = "frame"
    if invalid_name is not None:
        raise InputError(f"fit.json does not say the {invalid_name} of its data; restore it, or fit again in another --out")


def resolve_existing_path(path: str) -> Path:
    """The path, if something is there."""
    data_path = Path(path).expanduser()
    if not data_path.exists():
        raise InputError(f"there is no file or folder {path}; check the path")
    return data_path if data_path.is_dir() else check_regular_file(data_path)


def make_path_error(error: OSError, path: str) -> InputError:
    """What to say of a file that the system does not let be read."""
    return InputError(f"{error.filename or path} cannot be read ({error.strerror}); see to its permissions")


def _read_new_table(path: Path, options: dict[str, Any], preprocessor: TablePreprocessor | TextPreprocessor) -> NewData:
    import pandas as pd

    raw = _read_raw_table(path, options)
    missing = [column.name for column in preprocessor.columns if column.name not in raw.frame.columns]
    if missing:
        raise InputError(
            f"{path} has no column {format_names(missing)}, with which the model was trained; add it, blank if unknown"
        )
    ids, notes = _resolve_row_ids(raw.frame, options["id"])
    cells = {column.name: convert_to_kind(raw.frame[column.name], column.kind) for column in preprocessor.columns}
    column_notes = [note for column in preprocessor.columns for note in _describe_new_cells(column, cells[column.name])]
    inputs = pd.DataFrame(cells, index=pd.RangeIndex(len(ids)))
    column_notes += describe_blank_texts(preprocessor.count_blank(inputs)) if isinstance(preprocessor, TextPreprocessor) else []
    return NewData(ids=ids, inputs=inputs, notes=tuple(map(to_one_line, (*raw.notes, *notes, *column_notes))))


def _read_raw_table(path: Path, options: dict[str, Any]) -> RawTable:
    if path.suffix.lower() == ".npz" and path.is_file():
        x = read_npz(path, labelled=False).x
        if x.ndim != 2:
            raise InputError(f"{path}: x is {list(x.shape)}, but the model was trained on a table; write [N, columns]")
        return RawTable(array_to_frame(x), ())
    if path.suffix.lower() not in TABLE_SUFFIXES or path.is_dir():
        raise InputError(f"{path} is no table, as the model was trained on; give one of {', '.join((*TABLE_SUFFIXES, '.npz'))}")
    return read_table(path, encoding=options["encoding"], separator=options["separator"])


def _resolve_row_ids(frame: pd.DataFrame, column: str | None) -> tuple[list[str], list[str]]:
    if column is None or column in frame.columns:
        return get_row_ids(frame, column), []
    return get_row_ids(frame, None), [f"there is no column '{column}' of ids: rows are numbered from 1"]


def _describe_new_cells(column: Column, values: pd.Series) -> list[str]:
    """What a model cannot know of a column's new cells."""
    if column.kind == "number":
        num_blank = int(values.isna().sum())
        return [f"column '{column.name}': {pluralize(num_blank, 'blank row')} filled with the mean"] if num_blank else []
    unknown_values = column.find_unknown(values)
    cells = np.array(to_strings(values), dtype=object)
    if column.kind == "text" and column.values:
        return describe_blank_texts(int((cells == BLANK).sum()))
    notes = []
    if BLANK in unknown_values:
        num_blank = int((cells == BLANK).sum())
        notes.append(f"column '{column.name}': {pluralize(num_blank, 'blank row')} of an unknown category")
    names = [name for name in unknown_values if name != BLANK]
    if names:
        num_rows = int(np.isin(cells, names).sum())
        categories = pluralize(len(names), "new category", "new categories")
        notes.append(
            f"column '{column.name}': {pluralize(num_rows, 'row')} with {categories}, such as '{names[0]}', "
            f"{'counts' if num_rows == 1 else 'count'} as not known"
        )
    return notes


def _make_image_spec(options: dict[str, Any]) -> ImageSpec:
    return ImageSpec(options["side"], options["channels"], options["whole"])


def _read_new_arrays(path: Path, options: dict[str, Any]) -> NewData:
    if path.suffix.lower() != ".npz" or path.is_dir():
        raise InputError(f"{path} is no .npz file, as the model was trained on; give one with an array x")
    x = read_npz(path, labelled=False).x
    images = read_new_array_images(x, path, _make_image_spec(options), options["dtype"])
    ids = [str(row) for row in range(1, len(x) + 1)]
    return NewData(ids=ids, inputs=images.pixels, notes=images.notes, sizes=images.sizes)


def _read_new_images(path: Path, options: dict[str, Any], progress: ProgressCallback | None) -> NewData:
    files, ids, notes = _find_image_files(path, options)
    spec = _make_image_spec(options)
    check_image_memory(len(ids), spec)
    decoded = decode_image_files(files.paths, files.names, lambda *_: spec, skip_unreadable=options["skip_unreadable"], progress=progress)
    image_ids = [ids[row] for row in decoded.indices.tolist()]
    return NewData(ids=image_ids, inputs=decoded.pixels, notes=(*notes, *decoded.notes), sizes=decoded.sizes)


def _find_image_files(path: Path, options: dict[str, Any]) -> tuple[ImageFileList, list[str], tuple[str, ...]]:
    """The image files, their ids, and notes; of a table where the model was fitted to one."""
    if options["layout"] == "folder" or path.is_dir() or path.suffix.lower() not in TABLE_SUFFIXES:
        files = list_image_files(path)
        return files, files.names, ()
    raw = read_table(path, encoding=options["encoding"], separator=options["separator"])
    if options["image"] not in raw.frame.columns:
        raise InputError(
            f"{path} has no column '{options['image']}' with paths of images; it has {format_names(list(raw.frame.columns))}"
        )
    ids, notes = _resolve_row_ids(raw.frame, options["id"])
    return resolve_listed_files(raw.frame[options["image"]], path), ids, (*raw.notes, *notes)


__all__ = ["NewData", "ReadOptions", "Source", "read_new", "read_source"]
TABLE_ONLY_OPTIONS = ("id", "image", "encoding", "separator")  # options
SPREADSHEET_SUFFIXES = (".xlsx", ".xls", ".ods")
MAX_CELL_CHARS, MAX_TEXT_CHARS = 200, 400  # characters of a sample that are shown
BAG_OF_WORDS_NOTE = "texts are read by their words; --encoder bert-base-uncased reads them with a pretrained network"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows with their inputs and the labels that were given."""

    kind: Literal["table", "images"]
    ids: list[str]
    inputs: pd.DataFrame | NDArray[Any]
    """A table's input columns; or images [N, C, S, S], uint8 or float32."""
    kinds: dict[str, ColumnKind]
    """Of a table's input columns, in order."""
    given_labels: NDArray[Any]
    """[N] class numbers, −1 where blank; or [N, D] targets, NaN where blank; points in pixels of the squares."""
    classes: tuple[str, ...] | None
    target_names: tuple[str, ...]
    points: bool
    """Whether the targets are points x1 y1 x2 y2 … in the images."""
    notes: tuple[str, ...]
    """What was found out and decided, a line each."""
    options: dict[str, Any]
    """What new data must be read with, as JSON."""
    sizes: NDArray[np.int64] | None = None
    """[N, 2]: width and height of the images before; pictures.from_square brings points back to them."""
    encoder: str | None = None
    """What reads a table of texts, where that is a pretrained network."""

    def make_sample(self, row: int) -> RowPreview:
        """A row as a person can look at it."""
        if isinstance(self.inputs, np.ndarray):
            return RowPreview(row=row, png_base64=encode_thumbnail(self.inputs[row]))
        cells = {name: self.inputs[name].iloc[row] for name in self.kinds}
        return RowPreview(row=row, fields={name: _format_cell(cell, self.kinds[name]) for name, cell in cells.items()})


def _format_cell(cell: Any, kind: ColumnKind) -> str:
    if kind == "number":
        return "" if np.isnan(cell) else format(float(cell), ".6g")
    max_chars = MAX_TEXT_CHARS if kind == "text" else MAX_CELL_CHARS
    text = str(cell)
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def read_source(path: str, options: ReadOptions, progress: ProgressCallback | None = None) -> Source:
    """The data to fit a model to; `told` hears of progress where many images are read."""
    try:
        data_path = resolve_existing_path(path)
        if data_path.is_dir():
            return _read_folder_source(data_path, options, progress)
        if data_path.suffix.lower() == ".npz":
            return _read_array_source(data_path, options)
        if data_path.suffix.lower() in TABLE_SUFFIXES:
            return _read_image_table(data_path, options, progress) if options.image is not None else _read_table_source(data_path, options)
    except OSError as error:
        raise make_path_error(error, path) from None
    except InputError as error:
        raise InputError(to_one_line(str(error))) from None
    suffixes = ", ".join((*TABLE_SUFFIXES, ".npz"))
    hint = "save it as CSV" if data_path.suffix.lower() in SPREADSHEET_SUFFIXES else f"give a folder of images, or one of {suffixes}"
    raise InputError(f"{path} is of no known kind; {hint}")


def _read_table_source(path: Path, options: ReadOptions) -> Source:
    check_unused_options(options, ("size", "grey", "landmarks", "skip_unreadable"), "images")
    if options.encoder is not None:
        check_unused_options(options, ("category",), "tables without --encoder")
        if not options.text:
            raise InputError("--encoder reads texts; name the columns that hold them by --text")
    raw = _read_checked_table(path, options)
    targets = read_targets(raw.frame[list(options.target)], options.task)
    used_columns = [*options.target, *options.ignore, *((options.id,) if options.id else ())]
    input_frame = raw.frame.drop(columns=used_columns)
    return _make_table_source(input_frame, get_row_ids(raw.frame, options.id), options, targets, options.target, raw.notes)


def _read_checked_table(path: Path, options: ReadOptions) -> RawTable:
    raw = read_table(path, encoding=options.encoding, separator=options.separator)
    columns = list(raw.frame.columns)
    if not options.target:
        raise InputError(f"say with --target which column of {path} holds the labels; it has {format_names(columns)}")
    check_named_columns(options, columns, path)
    return raw


def _make_table_source(
    frame: pd.DataFrame,
    ids: list[str],
    options: ReadOptions,
    targets: Targets,
    target_names: tuple[str, ...],
    notes: Sequence[str] = (),
) -> Source:
    if options.encoder is None:
        inputs = infer_columns(frame, text=options.text, category=options.category)
        hint = (BAG_OF_WORDS_NOTE,) if options.text else ()
    else:
        inputs, hint = select_text_columns(frame, options.text), ()
    return Source(
        kind="table",
        ids=ids,
        inputs=inputs.frame,
        kinds=inputs.kinds,
        given_labels=targets.given_labels,
        classes=targets.classes,
        target_names=target_names,
        points=False,
        notes=_flatten_notes(f"a table of {pluralize(len(ids), 'row')}", *notes, *targets.notes, *inputs.notes, *hint),
        options=_collect_read_options(options, "table"),
        encoder=options.encoder,
    )


def _read_folder_source(path: Path, options: ReadOptions, progress: ProgressCallback | None) -> Source:
    check_unused_options(options, ("target", "text", "encoder", "category", "ignore", *TABLE_ONLY_OPTIONS), "tables")
    if options.task == "regression" or options.landmarks == "yes":
        raise InputError(f"{path} has classes as folders; for other targets give a CSV of paths with --image COLUMN")
    files, classes, notes = list_class_files(path)
    read_targets(classes, "classification")  # what is wrong with them is said before images are read
    images = read_image_files(files, options, None, progress)
    return _make_image_source(images, files.names, options, "folder", classes, "classification", notes)


def _read_image_table(path: Path, options: ReadOptions, progress: ProgressCallback | None) -> Source:
    check_unused_options(options, ("text", "encoder", "category"), "tables without --image")
    raw = _read_checked_table(path, options)
    labels = raw.frame[list(options.target)]
    targets, ids = read_targets(labels, options.task), get_row_ids(raw.frame, options.id)
    task: TaskKind = "regression" if targets.classes is None else "classification"
    files = resolve_listed_files(raw.frame[options.image], path)
    images = read_image_files(files, options, targets.given_labels if task == "regression" else None, progress)
    used_columns = {*options.target, *options.ignore, options.id, options.image}
    other_columns = [name for name in raw.frame.columns if name not in used_columns]
    notes = (*raw.notes, *((f"left out beside the images: {format_names(other_columns)}",) if other_columns else ()))
    return _make_image_source(images, ids, options, "paths", labels, task, notes)


def _read_array_source(path: Path, options: ReadOptions) -> Source:
    table_options = ("target", "text", "encoder", *TABLE_ONLY_OPTIONS, "skip_unreadable", "grey")
    check_unused_options(options, table_options, "tables and image files")
    x, y = read_npz(path, labelled=True)
    assert y is not None
    labels, task = parse_npz_targets(y, options.task, path)
    targets, ids = read_targets(labels, task), [str(row) for row in range(1, len(x) + 1)]
    if x.ndim == 2:
        check_unused_options(options, ("size", "landmarks"), "images")
        frame = array_to_frame(x)
        check_named_columns(options, list(frame.columns), path)
        return _make_table_source(frame.drop(columns=list(options.ignore)), ids, options, targets, tuple(labels.columns))
    check_unused_options(options, ("category", "ignore"), "tables")
    images = read_array_images(x, path, options, targets.given_labels if targets.classes is None else None)
    return _make_image_source(images, ids, options, "arrays", labels, task, ())


def _make_image_source(
    images: Images,
    ids: list[str],
    options: ReadOptions,
    layout: Layout,
    labels: pd.DataFrame,
    task: TaskKind,
    notes: Sequence[str],
) -> Source:
    targets = read_targets(labels.iloc[images.indices].reset_index(drop=True), task)  # of the rows that could be read
    label_array = points_to_square(targets.given_labels, images.sizes, images.spec.side) if images.spec.whole else targets.given_labels
    return Source(
        kind="images",
        ids=[ids[row] for row in images.indices.tolist()],
        inputs=images.pixels,
        kinds={},
        given_labels=label_array,
        classes=targets.classes,
        target_names=tuple(str(name) for name in labels.columns),
        points=images.spec.whole,
        notes=_flatten_notes(pluralize(len(images.indices), "image"), *notes, *images.notes, *targets.notes),
        options=_collect_read_options(options, layout, **images.spec._asdict(), dtype=str(images.pixels.dtype)),
        sizes=images.sizes,
    )


def _flatten_notes(*notes: str) -> tuple[str, ...]:
    return tuple(to_one_line(note) for note in notes)


def _collect_read_options(options: ReadOptions, layout: Layout, **resolved: Any) -> dict[str, Any]:
    names = (*TABLE_ONLY_OPTIONS, "encoder", "skip_unreadable")
    return {"layout": layout, **{name: getattr(options, name) for name in names}, **resolved}


def check_unused_options(options: ReadOptions, names: Sequence[str], applies_to: str) -> None:
    """An option that could do nothing is a mistake."""
    defaults = ReadOptions()
    misplaced = [name for name in names if getattr(options, name) != getattr(defaults, name)]
    if misplaced:
        raise InputError(f"--{misplaced[0].replace('_', '-')} is for {applies_to}, which these data are not; leave it out")
