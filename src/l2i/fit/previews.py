"""Choose the rows that a report shows: the surest and the least sure, of images by class too."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.impute import Imputations, impute
from l2i.fit.readers.source import Source

PREVIEWS_PER_END = 8  # rows in a report, of the most and of the least confident ones
PREVIEWS_PER_CLASS = 3  # of one class before other classes have their turn
MAX_GRID_CLASSES = 20  # with more, images are not shown by class
GRID_IMAGES_PER_END = 5  # of a class; of foreign images, twice as many in all


def add_previews(fitted: FitArtifact, rows: FitRows, source: Source) -> FitArtifact:
    """Add the rows with the most and the least confident labels, and images by class."""
    imputations = impute(fitted, rows)
    imputed_rows = np.flatnonzero(imputations.is_imputed)
    order = imputed_rows[np.argsort(-imputations.confidence[imputed_rows], kind="stable")]
    first = order if fitted.classes is None else _interleave_classes(order, imputations.labels)
    ends = [*first[:PREVIEWS_PER_END].tolist(), *order[-PREVIEWS_PER_END:].tolist()]
    previews = tuple(source.make_preview(row) for row in dict.fromkeys(ends))
    grid_rows: list[int] = []
    if source.has_features and fitted.classes is not None:
        grid_rows = _list_grid_rows(fitted.classes, rows, imputations, order)
    grids = tuple(source.make_preview(row) for row in grid_rows)
    return dataclasses.replace(fitted, previews=previews, grid_previews=grids)


def _interleave_classes(order: NDArray[np.intp], labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Reorder rows so that a class waits for the others after every few of its rows."""
    turns = np.zeros(len(order), dtype=np.int64)
    for label in np.unique(labels[order]):
        of_class = labels[order] == label
        turns[of_class] = np.arange(of_class.sum()) // PREVIEWS_PER_CLASS
    return order[np.argsort(turns, kind="stable")]


def _list_grid_rows(
    classes: tuple[str, ...], rows: FitRows, imputations: Imputations, order: NDArray[np.intp]
) -> list[int]:
    """Return the surest and the least sure rows of each class, and rows like none of the labelled.

    `order` lists the imputed rows, the surest first.
    """
    is_foreign = np.zeros(len(rows.ids), dtype=bool)
    if rows.is_foreign is not None:
        is_foreign = rows.is_foreign
    foreign: list[int] = order[is_foreign[order]][: 2 * GRID_IMAGES_PER_END].tolist()
    if len(classes) > MAX_GRID_CLASSES:
        return foreign
    chosen: list[int] = []
    for label in range(len(classes)):
        of_class = order[(imputations.labels[order] == label) & ~is_foreign[order]].tolist()
        chosen += of_class[:GRID_IMAGES_PER_END]
        chosen += of_class[GRID_IMAGES_PER_END:][-GRID_IMAGES_PER_END:]
    return chosen + foreign
