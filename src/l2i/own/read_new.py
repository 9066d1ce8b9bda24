"""New data for a model that was fitted to a user's own: read as those were, labels or none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from l2i.data.limits import plain_file
from l2i.errors import InputError
from l2i.own.kinds import as_kind, blank_texts
from l2i.own.pictures import Frame, Told, checked_memory, read_pictures
from l2i.own.prepare import BLANK, Column, TableInputs, words
from l2i.own.prepare_text import TextInputs
from l2i.own.read_folder import Files, listed_files, new_files
from l2i.own.read_images import new_array_images
from l2i.own.read_npz import as_table, read_npz
from l2i.own.read_table import TABLES, Raw, read_table, row_ids
from l2i.own.reading import counted, few, one_line

if TYPE_CHECKING:
    import pandas as pd

Layout = Literal["table", "folder", "paths", "arrays"]
KINDS = {"layout": str, "encoding": str, "separator": str, "id": str | None, "image": str | None}
FRAME = {"side": int, "channels": int, "whole": bool, "dtype": str, "skip_unreadable": bool}  # of images
DTYPES = ("uint8", "float32")


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
    path: str, options: dict[str, Any], columns: TableInputs | TextInputs | None, told: Told | None = None
) -> NewData:
    """Data of the layout that the model was fitted to: `options` are Source.options, `columns` a table's inputs."""
    _check(options, images=columns is None)
    try:
        place = existing(path)
        if columns is not None:
            return _table(place, options, columns)
        return _arrays(place, options) if options["layout"] == "arrays" else _files(place, options, told)
    except OSError as error:
        raise unreadable_path(error, path) from None
    except InputError as error:
        raise InputError(one_line(str(error))) from None


def _check(options: dict[str, Any], *, images: bool) -> None:
    """That a fit says how to read what it has learned to; a stranger's may say anything."""
    kinds = KINDS | (FRAME if images else {})
    wrong = next((name for name, kind in kinds.items() if not isinstance(options.get(name, ()), kind)), None)
    layouts = ("folder", "paths", "arrays") if images else ("table",)
    if wrong is None and options["layout"] not in layouts:
        wrong = "layout"
    if wrong is None and images and not (options["side"] > 0 < options["channels"] and options["dtype"] in DTYPES):
        wrong = "frame"
    if wrong is not None:
        raise InputError(f"fit.json does not say the {wrong} of its data; restore it, or fit again in another --out")


def existing(path: str) -> Path:
    """The path, if something is there."""
    place = Path(path).expanduser()
    if not place.exists():
        raise InputError(f"there is no file or folder {path}; check the path")
    return place if place.is_dir() else plain_file(place)


def unreadable_path(error: OSError, path: str) -> InputError:
    """What to say of a file that the system does not let be read."""
    return InputError(f"{error.filename or path} cannot be read ({error.strerror}); see to its permissions")


def _table(path: Path, options: dict[str, Any], columns: TableInputs | TextInputs) -> NewData:
    import pandas as pd

    raw = _raw(path, options)
    missing = [column.name for column in columns.columns if column.name not in raw.frame.columns]
    if missing:
        raise InputError(
            f"{path} has no column {few(missing)}, with which the model was trained; add it, blank if unknown"
        )
    ids, notes = _ids(raw.frame, options["id"])
    cells = {column.name: as_kind(raw.frame[column.name], column.kind) for column in columns.columns}
    found = [note for column in columns.columns for note in _column_notes(column, cells[column.name])]
    inputs = pd.DataFrame(cells, index=pd.RangeIndex(len(ids)))
    found += blank_texts(columns.blank(inputs)) if isinstance(columns, TextInputs) else []
    return NewData(ids=ids, inputs=inputs, notes=tuple(map(one_line, (*raw.notes, *notes, *found))))


def _raw(path: Path, options: dict[str, Any]) -> Raw:
    if path.suffix.lower() == ".npz" and path.is_file():
        x = read_npz(path, labelled=False).x
        if x.ndim != 2:
            raise InputError(f"{path}: x is {list(x.shape)}, but the model was trained on a table; write [N, columns]")
        return Raw(as_table(x), ())
    if path.suffix.lower() not in TABLES or path.is_dir():
        raise InputError(f"{path} is no table, as the model was trained on; give one of {', '.join((*TABLES, '.npz'))}")
    return read_table(path, encoding=options["encoding"], separator=options["separator"])


def _ids(frame: pd.DataFrame, column: str | None) -> tuple[list[str], list[str]]:
    if column is None or column in frame.columns:
        return row_ids(frame, column), []
    return row_ids(frame, None), [f"there is no column '{column}' of ids: rows are numbered from 1"]


def _column_notes(column: Column, values: pd.Series) -> list[str]:
    """What a model cannot know of a column's new cells."""
    if column.kind == "number":
        blank = int(values.isna().sum())
        return [f"column '{column.name}': {counted(blank, 'blank row')} filled with the mean"] if blank else []
    new = column.unknown(values)
    found = np.array(words(values), dtype=object)
    if column.kind == "text" and column.values:
        return blank_texts(int((found == BLANK).sum()))
    notes = []
    if BLANK in new:
        blank = int((found == BLANK).sum())
        notes.append(f"column '{column.name}': {counted(blank, 'blank row')} of an unknown category")
    names = [name for name in new if name != BLANK]
    if names:
        rows = int(np.isin(found, names).sum())
        categories = counted(len(names), "new category", "new categories")
        notes.append(
            f"column '{column.name}': {counted(rows, 'row')} with {categories}, such as '{names[0]}', "
            f"{'counts' if rows == 1 else 'count'} as not known"
        )
    return notes


def _frame(options: dict[str, Any]) -> Frame:
    return Frame(options["side"], options["channels"], options["whole"])


def _arrays(path: Path, options: dict[str, Any]) -> NewData:
    if path.suffix.lower() != ".npz" or path.is_dir():
        raise InputError(f"{path} is no .npz file, as the model was trained on; give one with an array x")
    x = read_npz(path, labelled=False).x
    images = new_array_images(x, path, _frame(options), options["dtype"])
    ids = [str(row) for row in range(1, len(x) + 1)]
    return NewData(ids=ids, inputs=images.pixels, notes=images.notes, sizes=images.sizes)


def _files(path: Path, options: dict[str, Any], told: Told | None) -> NewData:
    files, ids, notes = _listed(path, options)
    frame = _frame(options)
    checked_memory(len(ids), frame)
    read = read_pictures(files.paths, files.names, lambda *_: frame, skip=options["skip_unreadable"], told=told)
    kept = [ids[row] for row in read.kept.tolist()]
    return NewData(ids=kept, inputs=read.pixels, notes=(*notes, *read.notes), sizes=read.sizes)


def _listed(path: Path, options: dict[str, Any]) -> tuple[Files, list[str], tuple[str, ...]]:
    """The image files, their ids, and notes; of a table where the model was fitted to one."""
    if options["layout"] == "folder" or path.is_dir() or path.suffix.lower() not in TABLES:
        files = new_files(path)
        return files, files.names, ()
    raw = read_table(path, encoding=options["encoding"], separator=options["separator"])
    if options["image"] not in raw.frame.columns:
        raise InputError(
            f"{path} has no column '{options['image']}' with paths of images; it has {few(list(raw.frame.columns))}"
        )
    ids, notes = _ids(raw.frame, options["id"])
    return listed_files(raw.frame[options["image"]], path), ids, (*raw.notes, *notes)
