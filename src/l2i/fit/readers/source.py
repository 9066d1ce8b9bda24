"""Read user data to fit a model to: tables, images or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from l2i.data.samples import Fingerprint
from l2i.errors import InputError
from l2i.files.digest import hash_arrays, hash_strings
from l2i.files.output import ProgressCallback, ignore_progress
from l2i.fit.artifact import RowPreview
from l2i.fit.formatting import format_first_and_last, format_names, pluralize
from l2i.fit.options import ReadOptions
from l2i.fit.preprocess import FeaturePreprocessor
from l2i.fit.readers.cells import CellRole, RawTable
from l2i.fit.readers.columns import ColumnKind, infer_columns, select_text_columns
from l2i.fit.readers.dates import format_date
from l2i.fit.readers.delimited import read_table
from l2i.fit.readers.folders import ImageFileList, list_class_files, resolve_listed_files
from l2i.fit.readers.groups import describe_hidden_groups, read_groups
from l2i.fit.readers.image_files import Images, encode_thumbnail, load_thumbnail
from l2i.fit.readers.images import (
    EncoderChoice,
    points_to_square,
    read_array_images,
    read_image_files,
)
from l2i.fit.readers.npz import array_to_frame, parse_npz_targets, read_npz, to_image_array
from l2i.fit.readers.rows import (
    SUFFIX_LIST,
    InputRows,
    SavedOptions,
    find_image_id,
    flatten_notes,
    get_row_ids,
    number_rows,
    resolve_data_path,
    translate_read_errors,
)
from l2i.fit.readers.targets import Targets, TaskKind, read_targets

if TYPE_CHECKING:
    import pandas as pd

Layout = Literal["table", "folder", "paths", "arrays"]
SPREADSHEET_SUFFIXES = (".xlsx", ".xls", ".ods")
INPUT_OPTIONS = ("text", "category", "number", "ignore")
COLUMN_OPTIONS = ("target", *INPUT_OPTIONS, "id", "group", "image")
TABLE_ONLY_OPTIONS = ("id", "image", "encoding", "separator", "missing")
IMAGE_ONLY_OPTIONS = ("size", "grey", "landmarks", "skip_unreadable")
HASHED_ROWS = 1024  # images that are copied together
MAX_CELL_CHARS, MAX_TEXT_CHARS = 200, 400  # shown of a row
ENCODER_HINT = "for a pretrained network, use --encoder bert-base-uncased"


@dataclass(frozen=True, kw_only=True)
class Source(InputRows):
    """Rows with their inputs and labels, to fit a model to."""

    kinds: dict[str, ColumnKind]
    """Kinds of a table's input columns, in order."""
    given_labels: NDArray[Any]
    """[N] class numbers, −1 if blank; or [N, D] targets, NaN if blank, points in resized pixels."""
    classes: tuple[str, ...] | None
    target_names: tuple[str, ...]
    points: bool
    """Whether the targets are points x1 y1 x2 y2 … in the images."""
    options: SavedOptions
    """How to read new data."""
    encoder: str | None = None
    """The pretrained network that reads a table of texts, if any."""
    groups: NDArray[np.str_] | None = None
    """[N], of a table: rows of one group belong together."""
    date_formats: Mapping[str, str] = field(default_factory=dict)
    """How the dates of columns are written."""
    features: FeaturePreprocessor | None = None
    """How images became features, if they did."""
    digests: tuple[str, ...] = ()
    """Checksums of the content of such images."""
    load_image: Callable[[int], NDArray[Any]] | None = None
    """Reads such an image again, [C, H, W]."""

    @property
    def is_table(self) -> bool:
        """Return whether the inputs are columns, not images or texts for an encoder."""
        return self.encoder is None and not isinstance(self.inputs, np.ndarray)

    @property
    def has_features(self) -> bool:
        """Return whether the inputs are features of images."""
        return self.features is not None

    @property
    def is_unlabeled(self) -> NDArray[np.bool_]:
        """Which rows have no label."""
        labels = self.given_labels
        return labels < 0 if self.classes is not None else np.isnan(labels).any(axis=1)

    def fingerprint(self) -> Fingerprint:
        """Return checksums of ids, raw inputs and labels, and of the order of all rows."""
        parts = {"order of the rows": hash_arrays(self.is_unlabeled)}
        for name, mask in (("labeled", ~self.is_unlabeled), ("unlabeled", self.is_unlabeled)):
            rows = np.flatnonzero(mask)
            parts[f"{name}.ids"] = hash_strings(self.ids[row] for row in rows.tolist())
            parts[f"{name}.inputs"] = self._hash_inputs(rows)
            parts[f"{name}.labels"] = hash_arrays(self.given_labels[rows])
        if self.classes is not None:
            parts["names of the classes"] = hash_strings(self.classes)
        if self.groups is not None:
            parts["groups"] = hash_strings(self.groups.tolist())
        return parts

    def _hash_inputs(self, rows: NDArray[np.intp]) -> str:
        """Return a checksum of the raw inputs of some rows, whatever becomes of them later."""
        sizes = [] if self.sizes is None else [self.sizes[rows]]
        if self.features is not None:  # by content: features differ in the last bits by machine
            digests = [self.digests[row] for row in rows.tolist()]
            return hash_strings([self.features.digest, *digests, hash_arrays(*sizes)])
        if isinstance(self.inputs, np.ndarray):
            chunks = (rows[i : i + HASHED_ROWS] for i in range(0, len(rows), HASHED_ROWS))
            return hash_strings(
                [hash_arrays(self.inputs[c]) for c in chunks] + [hash_arrays(*sizes)]
            )
        numbers = [name for name, kind in self.kinds.items() if kind in ("number", "date")]
        words = [name for name in self.kinds if name not in numbers]
        columns = [hash_strings(self.inputs[name].iloc[rows]) for name in words]
        values = hash_arrays(self.inputs[numbers].to_numpy(np.float64)[rows], *sizes)
        return hash_strings([*numbers, values, *words, *columns])

    def make_preview(self, row: int) -> RowPreview:
        """Return a row as shown in a report."""
        if isinstance(self.inputs, np.ndarray):
            image = self.inputs[row] if self.load_image is None else self.load_image(row)
            return RowPreview(row=row, png_base64=encode_thumbnail(image))
        cells = self.inputs.iloc[row]
        fields = {name: _format_cell(cells[name], kind) for name, kind in self.kinds.items()}
        return RowPreview(row=row, fields=fields)


def _format_cell(cell: Any, kind: ColumnKind) -> str:
    if kind == "number":
        return "" if np.isnan(cell) else format(float(cell), ".6g")
    if kind == "date":
        return format_date(float(cell))
    max_chars = MAX_TEXT_CHARS if kind == "text" else MAX_CELL_CHARS
    text = str(cell)
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def read_source(
    path: str,
    options: ReadOptions,
    progress: ProgressCallback = ignore_progress,
    encoder: EncoderChoice | None = None,
) -> Source:
    """Read the data to fit a model to, images as features if there is an encoder for them."""
    with translate_read_errors(path):
        data_path, path_kind = resolve_data_path(path)
        if path_kind == "folder":
            return _read_folder_source(data_path, options, progress, encoder)
        if path_kind == "npz":
            return _read_array_source(data_path, options, progress, encoder)
        if path_kind == "table" and options.image is None:
            return _read_table_source(data_path, options, progress)
        if path_kind == "table":
            return _read_image_table(data_path, options, progress, encoder)
        hint = f"use a folder of images, or a file that ends in {SUFFIX_LIST}"
        if data_path.suffix.lower() in SPREADSHEET_SUFFIXES:
            hint = "save it as CSV"
        raise InputError(f"{path} has an unsupported format; {hint}")


def _read_table_source(path: Path, options: ReadOptions, progress: ProgressCallback) -> Source:
    _check_unused_options(options, IMAGE_ONLY_OPTIONS, "images")
    if options.encoder is not None:
        _check_unused_options(options, ("category", "number"), "tables without --encoder")
        if not options.text:
            raise InputError("--encoder needs text columns; name them with --text")
    table = _read_labeled_table(path, options, progress)
    targets = read_targets(table.frame[list(options.target)], options.task)
    named = [name for name in (options.id, options.group) if name]
    used_columns = [*options.target, *options.ignore, *named]
    ids, inputs = get_row_ids(table.frame, options.id), table.frame.drop(columns=used_columns)
    target_names, notes = options.target, table.notes
    source = _make_table_source(inputs, ids, options, targets, target_names, notes, progress)
    if options.group is not None:
        return replace(source, groups=read_groups(table.frame[options.group]))
    if not source.is_table:
        return source
    hidden = describe_hidden_groups(source.inputs, source.kinds, ~source.is_unlabeled)
    return replace(source, notes=(*source.notes, *hidden))


def _read_image_table(
    path: Path, options: ReadOptions, progress: ProgressCallback, encoder: EncoderChoice | None
) -> Source:
    _check_unused_options(options, ("text", "category", "number"), "tables without --image")
    frame, notes = _read_labeled_table(path, options, progress)
    labels = frame[list(options.target)]
    targets = read_targets(labels, options.task)
    ids = get_row_ids(frame, options.id or find_image_id(frame[options.image]))
    numbers = targets.given_labels if targets.classes is None else None
    files = resolve_listed_files(frame[options.image], path)
    images = read_image_files(files, options, numbers, progress, encoder)
    used_columns = {*options.target, *options.ignore, options.id, options.image}
    other_columns = [name for name in frame.columns if name not in used_columns]
    if other_columns:
        notes = (*notes, f"ignored (only images are used): {format_names(other_columns)}")
    task: TaskKind = "regression" if targets.classes is None else "classification"
    source = _make_image_source(images, ids, options, "paths", labels, task, notes)
    return _add_features(source, images, encoder, files)


def _read_labeled_table(path: Path, options: ReadOptions, progress: ProgressCallback) -> RawTable:
    def check_names(columns: list[str]) -> None:
        if not options.target:
            actual = f"it has {format_first_and_last(columns)}"
            raise InputError(f"--target must name the column of {path} with the labels; {actual}")
        _check_named_columns(options, columns, path)

    return read_table(
        path,
        encoding=options.encoding,
        separator=options.separator,
        missing=options.missing,
        get_role=lambda name: _find_role(name, options),
        check_names=check_names,
        progress=progress,
    )


def _find_role(name: str, options: ReadOptions) -> CellRole:
    """Return what the cells of a column may be, as far as the options say it."""
    if name in options.target and options.task != "classification":
        is_number = options.task == "regression" or len(options.target) > 1
        return "target" if is_number else "label"
    named = (*options.target, *options.category, *options.text)
    return "words" if name in (*named, options.id, options.group, options.image) else "number"


def _read_folder_source(
    path: Path, options: ReadOptions, progress: ProgressCallback, encoder: EncoderChoice | None
) -> Source:
    table_options = ("target", *INPUT_OPTIONS, *TABLE_ONLY_OPTIONS)
    _check_unused_options(options, table_options, "tables")
    if options.task == "regression" or options.landmarks == "yes":
        fix = "for other targets, use a CSV of image paths with --image COLUMN"
        raise InputError(f"{path} is a folder, whose subfolders are classes; {fix}")
    files, classes, notes = list_class_files(path)
    task: TaskKind = "classification"
    read_targets(classes, task)  # report wrong classes before reading images
    images = read_image_files(files, options, None, progress, encoder)
    source = _make_image_source(images, files.names, options, "folder", classes, task, notes)
    return _add_features(source, images, encoder, files)


def _read_array_source(
    path: Path, options: ReadOptions, progress: ProgressCallback, encoder: EncoderChoice | None
) -> Source:
    file_options = ("target", "text", *TABLE_ONLY_OPTIONS, "skip_unreadable", "grey")
    _check_unused_options(options, file_options, "tables and image files")
    x, y = read_npz(path, labeled=True)
    assert y is not None
    labels, task = parse_npz_targets(y, options.task, path)
    targets, ids = read_targets(labels, task), number_rows(len(x))
    _check_unused_options(options, ("group",), "CSV and Parquet files")
    if x.ndim == 2:
        _check_unused_options(options, ("size", "landmarks"), "images")
        _check_unused_options(options, ("encoder",), "text columns and images")
        frame = array_to_frame(x)
        _check_named_columns(options, list(frame.columns), path)
        inputs = frame.drop(columns=list(options.ignore))
        names = tuple(labels.columns)
        return _make_table_source(inputs, ids, options, targets, names, (), progress)
    _check_unused_options(options, ("category", "number", "ignore"), "tables")
    numbers = targets.given_labels if targets.classes is None else None
    images = read_array_images(x, path, options, numbers, progress, encoder)
    source = _make_image_source(images, ids, options, "arrays", labels, task, ())
    return _add_features(source, images, encoder, to_image_array(x, path))


def _make_table_source(
    frame: pd.DataFrame,
    ids: list[str],
    options: ReadOptions,
    targets: Targets,
    target_names: tuple[str, ...],
    notes: Sequence[str],
    progress: ProgressCallback,
) -> Source:
    if options.encoder is None:
        kinds = {"text": options.text, "category": options.category, "number": options.number}
        inputs = infer_columns(frame, **kinds, progress=progress)
        hints = [f"text becomes TF-IDF features; {ENCODER_HINT}"] if options.text else []
    else:
        inputs, hints = select_text_columns(frame, options.text), []
    title = f"table of {pluralize(len(ids), 'row')}"
    return Source(
        ids=ids,
        inputs=inputs.frame,
        kinds=inputs.kinds,
        given_labels=targets.given_labels,
        classes=targets.classes,
        target_names=target_names,
        points=False,
        notes=flatten_notes(title, *notes, *targets.notes, *inputs.notes, *hints),
        options=_collect_saved_options(options, "table"),
        encoder=options.encoder,
        date_formats=inputs.date_formats,
    )


def _make_image_source(
    images: Images,
    ids: list[str],
    options: ReadOptions,
    layout: Layout,
    labels: pd.DataFrame,
    task: TaskKind,
    notes: Sequence[str],
) -> Source:
    """Combine images with the labels of the rows whose images could be read."""
    targets = read_targets(labels.iloc[images.indices].reset_index(drop=True), task)
    given_labels, spec = targets.given_labels, images.spec
    if spec.whole:
        given_labels = points_to_square(given_labels, images.sizes, spec.side)
    title = pluralize(len(images.indices), "image")
    return Source(
        ids=[ids[row] for row in images.indices.tolist()],
        inputs=images.pixels,
        kinds={},
        given_labels=given_labels,
        classes=targets.classes,
        target_names=tuple(str(name) for name in labels.columns),
        points=spec.whole,
        notes=flatten_notes(title, *notes, *images.notes, *targets.notes),
        options=_collect_saved_options(
            options, layout, **spec._asdict(), dtype=str(images.pixels.dtype)
        ),
        sizes=images.sizes,
    )


def _add_features(
    source: Source,
    images: Images,
    choice: EncoderChoice | None,
    originals: ImageFileList | NDArray[Any],
) -> Source:
    """Say how images became features, and how to read them again; refuse contradictory labels."""
    encoder, indices = images.encoder, images.indices
    if images.digests is None or choice is None or encoder is None:
        return source

    def load_image(row: int) -> NDArray[Any]:
        index = int(indices[row])
        if isinstance(originals, np.ndarray):
            return np.asarray(originals[index])
        return load_thumbnail(originals.paths[index])

    low, high = images.levels
    folder = Path(choice.name).expanduser()
    name = str(folder.resolve()) if folder.is_dir() else choice.name  # found from anywhere
    features = FeaturePreprocessor(
        encoder=name, digest=encoder.digest, side=encoder.side, low=low, high=high
    )
    source = replace(
        source, features=features, digests=tuple(images.digests), load_image=load_image
    )
    if isinstance(originals, np.ndarray):
        source.options["dtype"] = str(originals.dtype)
    if source.classes is not None:
        _check_contradictions(source)
    labeled = [d for d, u in zip(images.digests, source.is_unlabeled, strict=True) if not u]
    num_copies = len(labeled) - len(set(labeled))
    if not num_copies:
        return source
    copies = pluralize(num_copies, "labelled image is a copy", "labelled images are copies")
    note = f"{copies} of another, so errors may be larger than they seem; remove copies"
    return replace(source, notes=(*source.notes, note))


def _check_contradictions(source: Source) -> None:
    """Refuse an image that is in two classes, by its content."""
    first_rows: dict[str, int] = {}
    for row in np.flatnonzero(~source.is_unlabeled).tolist():
        first = first_rows.setdefault(source.digests[row], row)
        if source.given_labels[first] != source.given_labels[row]:
            names = f"{source.ids[first]} and {source.ids[row]}"
            problem = f"{names} are the same image in different classes"
            raise InputError(f"{problem}; remove one of them, or both")


def _collect_saved_options(options: ReadOptions, layout: Layout, **resolved: Any) -> SavedOptions:
    names = (*TABLE_ONLY_OPTIONS, "encoder", "skip_unreadable")
    return {"layout": layout, **{name: getattr(options, name) for name in names}, **resolved}


def _check_named_columns(options: ReadOptions, columns: Sequence[str], path: Path) -> None:
    """Check that the columns which the options name exist, and are named once."""
    option_by_column: dict[str, str] = {}
    for option in COLUMN_OPTIONS:
        value = getattr(options, option)
        for name in (value,) if isinstance(value, str) else value or ():
            if name not in columns:
                by_lower = {column.lower(): column for column in columns}
                matches = get_close_matches(name.lower(), by_lower, n=1)
                hint = f"it has {format_first_and_last(columns)}"
                if matches:
                    hint = f"perhaps you meant '{by_lower[matches[0]]}'"
                raise InputError(f"--{option} '{name}': {path} has no such column; {hint}")
            if name in option_by_column and {option_by_column[name], option} != {"id", "image"}:
                both = f"--{option_by_column[name]} and --{option}"
                raise InputError(f"column '{name}' is named twice, by {both}; name it once")
            option_by_column[name] = option


def _check_unused_options(options: ReadOptions, names: Sequence[str], applies_to: str) -> None:
    """Raise InputError if an option is set that has no effect on this kind of data."""
    defaults = ReadOptions()
    for name in names:
        if getattr(options, name) != getattr(defaults, name):
            problem = f"applies only to {applies_to}, not to this data"
            raise InputError(f"--{name.replace('_', '-')} {problem}; remove it")
