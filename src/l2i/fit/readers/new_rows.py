"""Read new rows as those that a model was fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2i.errors import InputError
from l2i.files.output import ProgressCallback, ignore_progress
from l2i.fit.formatting import format_names, pluralize
from l2i.fit.preprocess import (
    Column,
    FeaturePreprocessor,
    Preprocessor,
    TablePreprocessor,
    TextPreprocessor,
)
from l2i.fit.readers.cells import RawTable, is_missing_word
from l2i.fit.readers.columns import BLANK, convert_columns, describe_blank_texts, find_blank
from l2i.fit.readers.delimited import read_table
from l2i.fit.readers.folders import list_image_files, resolve_listed_files
from l2i.fit.readers.image_files import Images, ImageSpec, decode_image_files
from l2i.fit.readers.images import check_image_memory, read_new_array_images
from l2i.fit.readers.npz import array_to_frame, read_npz
from l2i.fit.readers.rows import (
    SUFFIX_LIST,
    InputRows,
    PathKind,
    SavedOptions,
    find_image_id,
    flatten_notes,
    get_row_ids,
    number_rows,
    resolve_data_path,
    translate_read_errors,
)
from l2i.models.frozen_encoder import FrozenEncoder

if TYPE_CHECKING:
    import pandas as pd

TABLE_TYPES = {
    "layout": str,
    "encoding": str,
    "separator": str,
    "missing": list | tuple,
    "id": str | None,
    "image": str | None,
}
IMAGE_TYPES = {"side": int, "channels": int, "whole": bool, "dtype": str, "skip_unreadable": bool}
IMAGE_DTYPES = ("uint8", "float32")


def read_new(
    path: str,
    saved: SavedOptions,
    preprocessor: Preprocessor | None,
    progress: ProgressCallback = ignore_progress,
) -> InputRows:
    """Read rows as those that a model was fitted to: Source.options, and their preprocessor."""
    is_table = isinstance(preprocessor, TablePreprocessor | TextPreprocessor)
    _check_saved_options(saved, images=not is_table)
    with translate_read_errors(path):
        data_path, path_kind = resolve_data_path(path)
        if isinstance(preprocessor, TablePreprocessor | TextPreprocessor):
            return _read_new_table(data_path, path_kind, saved, preprocessor)
        features = preprocessor if isinstance(preprocessor, FeaturePreprocessor) else None
        encoder = None if features is None else features.load_encoder()
        spec = ImageSpec(saved["side"], saved["channels"], saved["whole"])
        if encoder is not None:  # whatever the file says: features are cached by the encoder's size
            spec = ImageSpec(encoder.side, 3, saved["whole"])
        if saved["layout"] != "arrays":
            return _read_new_images(data_path, path_kind, saved, spec, progress, encoder)
        if path_kind != "npz":
            fix = "use one with an array x"
            raise InputError(f"{path} is not an .npz file, but the model was trained on one; {fix}")
        x, _ = read_npz(data_path, labeled=False)
        levels = (0.0, 255.0) if features is None else (features.low, features.high)
        images = read_new_array_images(x, data_path, spec, saved["dtype"], encoder, levels)
        return _make_new_images(images, number_rows(len(x)), ())


def _check_saved_options(saved: SavedOptions, *, images: bool) -> None:
    """Check that a fit.json, which may be untrusted, describes how to read its data."""
    types: dict[str, Any] = TABLE_TYPES | (IMAGE_TYPES if images else {})
    invalid = [name for name, kind in types.items() if not isinstance(saved.get(name, ()), kind)]
    if not invalid and not all(isinstance(cell, str) for cell in saved.get("missing", ())):
        invalid = ["missing"]
    layouts = ("folder", "paths", "arrays") if images else ("table",)
    if not invalid and saved["layout"] not in layouts:
        invalid = ["layout"]
    if not invalid and images:
        is_valid = saved["side"] > 0 < saved["channels"] and saved["dtype"] in IMAGE_DTYPES
        invalid = [] if is_valid else ["image size"]
    if invalid:
        fix = "restore it, or fit again with a different --out"
        raise InputError(f"fit.json has no valid {invalid[0]} for its data; {fix}")


def _read_new_table(
    path: Path,
    path_kind: PathKind,
    saved: SavedOptions,
    preprocessor: TablePreprocessor | TextPreprocessor,
) -> InputRows:
    columns: dict[str, Column] = {}
    for column in preprocessor.columns:  # of a date there are several, alike in what is read
        columns.setdefault(column.name, column)
    kinds = {name: column.raw_kind for name, column in columns.items()}
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    frame, notes = _read_unlabeled_table(path, path_kind, saved, numbers)
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        count, pronoun = pluralize(len(missing), "column"), "it" if len(missing) == 1 else "them"
        problem = f"lacks {count} that the model was trained with: {format_names(missing)}"
        raise InputError(f"{path} {problem}; add {pronoun}, blank if unknown")
    ids, id_notes = _get_new_row_ids(frame, saved)
    date_formats = {name: column.date_format for name, column in columns.items()}
    frame = frame.assign(
        **{name: frame[name].mask(is_missing_word(frame[name])) for name in numbers}
    )
    inputs = convert_columns(frame, kinds, date_formats)
    cell_notes = [
        note
        for name, column in columns.items()
        for note in _describe_new_cells(column, inputs[name])
    ]
    if isinstance(preprocessor, TextPreprocessor):
        cell_notes += describe_blank_texts(preprocessor.count_blank(inputs))
    return InputRows(ids=ids, inputs=inputs, notes=flatten_notes(*notes, *id_notes, *cell_notes))


def _read_unlabeled_table(
    path: Path, path_kind: PathKind, saved: SavedOptions, numbers: Sequence[str] = ()
) -> RawTable:
    """Read a table in which the columns of `numbers` hold numbers, and all others words."""
    if path_kind == "table":
        return read_table(
            path,
            encoding=saved["encoding"],
            separator=saved["separator"],
            missing=saved.get("missing", ()),
            get_role=lambda name: "number" if name in numbers else "words",
        )
    if path_kind != "npz":
        fix = f"use a file that ends in {SUFFIX_LIST}"
        raise InputError(f"{path} is not a table, but the model was trained on one; {fix}")
    x, _ = read_npz(path, labeled=False)
    if x.ndim != 2:
        problem = f"x is {list(x.shape)}, but the model was trained on a table"
        raise InputError(f"{path}: {problem}; write x as [N, columns]")
    return RawTable(array_to_frame(x), ())


def _describe_new_cells(column: Column, values: pd.Series) -> list[str]:
    """Note blanks, and categories that the model does not know."""
    num_blank = int(find_blank(values).sum())
    blank_cells = pluralize(num_blank, "blank cell")
    if column.kind == "number":
        return [f"column '{column.name}': {blank_cells} filled with the mean"] if num_blank else []
    if column.kind == "text":  # a TextPreprocessor, without words of its own, counts joined texts
        return describe_blank_texts(num_blank) if column.values else []
    notes = []
    unknown_values = column.find_unknown(values)
    if BLANK in unknown_values:
        notes.append(f"column '{column.name}': {blank_cells} treated as an unknown category")
        unknown_values.remove(BLANK)
    if unknown_values:
        num_rows = int(values.isin(unknown_values).sum())
        categories = pluralize(len(unknown_values), "new category", "new categories")
        rows = f"{pluralize(num_rows, 'row')} with {categories}, such as '{unknown_values[0]}'"
        notes.append(f"column '{column.name}': {rows}, treated as unknown")
    return notes


def _read_new_images(
    path: Path,
    path_kind: PathKind,
    saved: SavedOptions,
    spec: ImageSpec,
    progress: ProgressCallback,
    encoder: FrozenEncoder | None,
) -> InputRows:
    """Read the images of a folder, or those listed in a table if the model was fitted to one."""
    if saved["layout"] == "folder" or path_kind != "table":
        files, notes = list_image_files(path), []
        ids = files.names
    else:
        frame, table_notes = _read_unlabeled_table(path, path_kind, saved)
        name = saved["image"]
        if name not in frame.columns:
            actual = f"it has {format_names(list(frame.columns))}"
            raise InputError(f"{path} has no column '{name}' of image paths; {actual}")
        if saved["id"] is None:
            saved = {**saved, "id": find_image_id(frame[name])}
        ids, id_notes = _get_new_row_ids(frame, saved)
        files, notes = resolve_listed_files(frame[name], path), [*table_notes, *id_notes]
    if encoder is None:
        check_image_memory(len(ids), spec)
    images = decode_image_files(
        files,
        lambda *_: spec,
        skip_unreadable=saved["skip_unreadable"],
        progress=progress,
        encoder=encoder,
    )
    return _make_new_images(images, ids, notes)


def _make_new_images(images: Images, ids: list[str], notes: Sequence[str]) -> InputRows:
    return InputRows(
        ids=[ids[row] for row in images.indices.tolist()],
        inputs=images.pixels,
        notes=flatten_notes(*notes, *images.notes),
        sizes=images.sizes,
    )


def _get_new_row_ids(frame: pd.DataFrame, saved: SavedOptions) -> tuple[list[str], list[str]]:
    """Return row ids, and a note if the column of ids is missing from new data."""
    column = saved["id"]
    if column is None or column in frame.columns:
        return get_row_ids(frame, column), []
    note = f"id column '{column}' was not found: rows are numbered from 1"
    return number_rows(len(frame)), [note]
