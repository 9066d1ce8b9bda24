"""Grids of images: those of each class, the surest first, and those like none of the classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.impute import Imputations
from l2i.fit.report.confidence import MIN_ROUNDED_TO_ONE, to_data_uri

FOREIGN_TITLE = "Like none of your classes"


class Tile(NamedTuple):
    """An image of a grid."""

    id: str
    image_uri: str
    caption: str


class Grid(NamedTuple):
    """Images of one class."""

    title: str
    num_rows: int
    """Of the class, shown or not."""
    tiles: list[Tile]


def build_grids(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> list[Grid]:
    """Return a grid per class, and one of rows like none of the labelled ones, if there are any."""
    if fitted.classes is None:
        return []
    is_foreign = np.zeros(len(rows.ids), dtype=bool)
    if rows.is_foreign is not None:
        is_foreign = rows.is_foreign & imputations.is_imputed
    grids: dict[str, list[Tile]] = {}  # in the order they were saved in: the surest first
    for preview in fitted.grid_previews:
        row, uri = preview.row, to_data_uri(preview.png_base64)
        if not 0 <= row < len(rows.ids) or uri is None:
            continue
        label, confidence = int(imputations.labels[row]), float(imputations.confidence[row])
        title = FOREIGN_TITLE if is_foreign[row] else fitted.classes[label]
        shown = f"{confidence:.3f}" if confidence < MIN_ROUNDED_TO_ONE else "> 0.999"
        caption = f"{fitted.classes[label]}?" if is_foreign[row] else shown
        grids.setdefault(title, []).append(Tile(rows.ids[row], uri, caption))
    counts = {
        name: int((imputations.is_imputed & ~is_foreign & (imputations.labels == k)).sum())
        for k, name in enumerate(fitted.classes)
    }
    counts[FOREIGN_TITLE] = int(is_foreign.sum())
    return [Grid(title, counts[title], tiles) for title, tiles in grids.items()]
