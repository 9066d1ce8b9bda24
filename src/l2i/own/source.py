"""A user's own data as `l2i fit` and `l2i predict` read them: a table, images or arrays, checked, with notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.own.fitted import Sample
from l2i.own.kinds import infer, texts_alone
from l2i.own.pictures import Told, thumbnail, to_square
from l2i.own.prepare import Kind
from l2i.own.read_folder import class_files, listed_files
from l2i.own.read_images import Images, read_array_images, read_image_files
from l2i.own.read_new import Layout, NewData, existing, read_new, unreadable_path
from l2i.own.read_npz import as_table, npz_targets, read_npz
from l2i.own.read_table import TABLES, Raw, checked_columns, read_table, row_ids
from l2i.own.read_targets import Targets, Task, read_targets
from l2i.own.reading import ReadOptions, counted, few, one_line

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NewData", "ReadOptions", "Source", "read_new", "read_source"]
TABLE_ONLY = ("id", "image", "encoding", "separator")  # options
SHEETS = (".xlsx", ".xls", ".ods")
MOST_CELL, MOST_TEXT = 200, 400  # characters of a sample that are shown
BY_WORDS = "texts are read by their words; --encoder bert-base-uncased reads them with a pretrained network"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Rows with their inputs and the labels that were given."""

    kind: Literal["table", "images"]
    ids: list[str]
    inputs: pd.DataFrame | NDArray[Any]
    """A table's input columns; or images [N, C, S, S], uint8 or float32."""
    kinds: dict[str, Kind]
    """Of a table's input columns, in order."""
    given: NDArray[Any]
    """[N] class numbers, −1 where blank; or [N, D] targets, NaN where blank; points in pixels of the squares."""
    classes: tuple[str, ...] | None
    targets: tuple[str, ...]
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

    def sample(self, row: int) -> Sample:
        """A row as a person can look at it."""
        if isinstance(self.inputs, np.ndarray):
            return Sample(row=row, picture=thumbnail(self.inputs[row]))
        cells = {name: self.inputs[name].iloc[row] for name in self.kinds}
        return Sample(row=row, fields={name: _shown(cell, self.kinds[name]) for name, cell in cells.items()})


def _shown(cell: Any, kind: Kind) -> str:
    if kind == "number":
        return "" if np.isnan(cell) else format(float(cell), ".6g")
    most = MOST_TEXT if kind == "text" else MOST_CELL
    text = str(cell)
    return text if len(text) <= most else text[: most - 1] + "…"


def read_source(path: str, options: ReadOptions, told: Told | None = None) -> Source:
    """The data to fit a model to; `told` hears of progress where many images are read."""
    try:
        place = existing(path)
        if place.is_dir():
            return _folder(place, options, told)
        if place.suffix.lower() == ".npz":
            return _arrays(place, options)
        if place.suffix.lower() in TABLES:
            return _image_table(place, options, told) if options.image is not None else _table(place, options)
    except OSError as error:
        raise unreadable_path(error, path) from None
    except InputError as error:
        raise InputError(one_line(str(error))) from None
    kinds = ", ".join((*TABLES, ".npz"))
    how = "save it as CSV" if place.suffix.lower() in SHEETS else f"give a folder of images, or one of {kinds}"
    raise InputError(f"{path} is of no known kind; {how}")


def _table(path: Path, options: ReadOptions) -> Source:
    unused(options, ("size", "grey", "landmarks", "skip_unreadable"), "images")
    if options.encoder is not None:
        unused(options, ("category",), "tables without --encoder")
        if not options.text:
            raise InputError("--encoder reads texts; name the columns that hold them by --text")
    raw = _checked_table(path, options)
    targets = read_targets(raw.frame[list(options.target)], options.task)
    taken = [*options.target, *options.ignore, *((options.id,) if options.id else ())]
    rest = raw.frame.drop(columns=taken)
    return _of_table(rest, row_ids(raw.frame, options.id), options, targets, options.target, raw.notes)


def _checked_table(path: Path, options: ReadOptions) -> Raw:
    raw = read_table(path, encoding=options.encoding, separator=options.separator)
    columns = list(raw.frame.columns)
    if not options.target:
        raise InputError(f"say with --target which column of {path} holds the labels; it has {few(columns)}")
    checked_columns(options, columns, path)
    return raw


def _of_table(
    frame: pd.DataFrame,
    ids: list[str],
    options: ReadOptions,
    targets: Targets,
    names: tuple[str, ...],
    notes: Sequence[str] = (),
) -> Source:
    if options.encoder is None:
        inputs = infer(frame, text=options.text, category=options.category)
        hint = (BY_WORDS,) if options.text else ()
    else:
        inputs, hint = texts_alone(frame, options.text), ()
    return Source(
        kind="table",
        ids=ids,
        inputs=inputs.frame,
        kinds=inputs.kinds,
        given=targets.given,
        classes=targets.classes,
        targets=names,
        points=False,
        notes=_lines(f"a table of {counted(len(ids), 'row')}", *notes, *targets.notes, *inputs.notes, *hint),
        options=_kept(options, "table"),
        encoder=options.encoder,
    )


def _folder(path: Path, options: ReadOptions, told: Told | None) -> Source:
    unused(options, ("target", "text", "encoder", "category", "ignore", *TABLE_ONLY), "tables")
    if options.task == "regression" or options.landmarks == "yes":
        raise InputError(f"{path} has classes as folders; for other targets give a CSV of paths with --image COLUMN")
    files, classes, notes = class_files(path)
    read_targets(classes, "classification")  # what is wrong with them is said before images are read
    images = read_image_files(files, options, None, told)
    return _of_images(images, files.names, options, "folder", classes, "classification", notes)


def _image_table(path: Path, options: ReadOptions, told: Told | None) -> Source:
    unused(options, ("text", "encoder", "category"), "tables without --image")
    raw = _checked_table(path, options)
    labels = raw.frame[list(options.target)]
    targets, ids = read_targets(labels, options.task), row_ids(raw.frame, options.id)
    task: Task = "regression" if targets.classes is None else "classification"
    files = listed_files(raw.frame[options.image], path)
    images = read_image_files(files, options, targets.given if task == "regression" else None, told)
    used = {*options.target, *options.ignore, options.id, options.image}
    others = [name for name in raw.frame.columns if name not in used]
    notes = (*raw.notes, *((f"left out beside the images: {few(others)}",) if others else ()))
    return _of_images(images, ids, options, "paths", labels, task, notes)


def _arrays(path: Path, options: ReadOptions) -> Source:
    others = ("target", "text", "encoder", *TABLE_ONLY, "skip_unreadable", "grey")
    unused(options, others, "tables and image files")
    x, y = read_npz(path, labelled=True)
    assert y is not None
    labels, task = npz_targets(y, options.task, path)
    targets, ids = read_targets(labels, task), [str(row) for row in range(1, len(x) + 1)]
    if x.ndim == 2:
        unused(options, ("size", "landmarks"), "images")
        frame = as_table(x)
        checked_columns(options, list(frame.columns), path)
        return _of_table(frame.drop(columns=list(options.ignore)), ids, options, targets, tuple(labels.columns))
    unused(options, ("category", "ignore"), "tables")
    images = read_array_images(x, path, options, targets.given if targets.classes is None else None)
    return _of_images(images, ids, options, "arrays", labels, task, ())


def _of_images(
    images: Images,
    ids: list[str],
    options: ReadOptions,
    layout: Layout,
    labels: pd.DataFrame,
    task: Task,
    notes: Sequence[str],
) -> Source:
    targets = read_targets(labels.iloc[images.kept].reset_index(drop=True), task)  # of the rows that could be read
    given = to_square(targets.given, images.sizes, images.frame.side) if images.frame.whole else targets.given
    return Source(
        kind="images",
        ids=[ids[row] for row in images.kept.tolist()],
        inputs=images.pixels,
        kinds={},
        given=given,
        classes=targets.classes,
        targets=tuple(str(name) for name in labels.columns),
        points=images.frame.whole,
        notes=_lines(counted(len(images.kept), "image"), *notes, *images.notes, *targets.notes),
        options=_kept(options, layout, **images.frame._asdict(), dtype=str(images.pixels.dtype)),
        sizes=images.sizes,
    )


def _lines(*notes: str) -> tuple[str, ...]:
    return tuple(one_line(note) for note in notes)


def _kept(options: ReadOptions, layout: Layout, **resolved: Any) -> dict[str, Any]:
    names = (*TABLE_ONLY, "encoder", "skip_unreadable")
    return {"layout": layout, **{name: getattr(options, name) for name in names}, **resolved}


def unused(options: ReadOptions, names: Sequence[str], belongs: str) -> None:
    """An option that could do nothing is a mistake."""
    plain = ReadOptions()
    wrong = [name for name in names if getattr(options, name) != getattr(plain, name)]
    if wrong:
        raise InputError(f"--{wrong[0].replace('_', '-')} is for {belongs}, which these data are not; leave it out")
