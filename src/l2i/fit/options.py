"""Options of the commands for a user's own data. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLANK_MARKERS = ("", "NA", "N/A", "nan", "NaN", "null", "None", "?")  # cells that hold nothing


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read your data."""

    target: tuple[str, ...] = ()
    """Column of a table with the labels; a blank cell is an unlabelled row. Give several for
    regression with several targets, or for landmarks as x1 y1 x2 y2 …"""
    text: tuple[str, ...] = ()
    """Columns to read as text, by their words or by an encoder."""
    encoder: str | None = None
    """Encoder of the text columns, which are then the only inputs: a folder with a pretrained
    network and its tokenizer, or a name on the Hugging Face hub, such as bert-base-uncased. Without
    it texts are read by their words, which needs no weights."""
    category: tuple[str, ...] = ()
    """Columns to read as categories although they hold numbers."""
    ignore: tuple[str, ...] = ()
    """Columns to leave out."""
    id: str | None = None
    """Column with the names of the rows. By default table rows are numbered from 1, and images are
    named by their paths."""
    image: str | None = None
    """Column of a table with paths of images, relative to the table's folder; the images are then
    the inputs."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """Whether the target is a class or a number. Numbers with fractions or more than 20 different
    values mean regression."""
    landmarks: Literal["auto", "yes", "no"] = "auto"
    """Whether the targets of images are points x, y in pixels, which move with the image when it is
    resized; 'auto' for an even number of targets, at least 4, that all lie within the images."""
    size: int = 0
    """Side in pixels to which images are resized; 0 chooses from the data, at most 32, or 60 for
    landmarks."""
    grey: Literal["auto", "yes", "no"] = "auto"
    """Whether images are read as grey levels; 'auto' if all are grey."""
    encoding: str = "utf-8"
    """Encoding of a CSV file."""
    separator: str = "auto"
    """Separator of the cells of a CSV file, such as ';' or 'tab'; 'auto' infers it from the first
    line."""
    skip_unreadable: bool = False
    """Skip images that cannot be read, instead of stopping."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(ReadOptions):
    """Train on your own data: a CSV or Parquet file, image paths, a folder of images, an .npz.

    Every field of a run is a flag as well, with a default chosen from your data: --steps, --seed,
    --device, --model.name, --model.width, --batch.unlabeled, --optim.lr, --method.weight,
    --l2i.rho, --data.weak.noise, …; 'l2i train digits --help' explains them.
    """

    out: str | None = None
    """Folder for the fit; runs/NAME by default, after the file or folder."""
    method: str = "auto"
    """Semi-supervised method ('l2i list' shows them); auto chooses one for the data."""
    baselines: bool = True
    """Also train the supervised baseline, and the method without L2I, on the same split."""
    validation: int | float = 0.2
    """Labelled rows for model selection, never trained on: their number, or a share."""
    test: int | float = 0.2
    """Labelled rows for testing, never trained on nor selected by: their number, or a share."""


@dataclass(frozen=True, kw_only=True)
class ImputeOptions:
    """Write the label of every input row, given or imputed, with its confidence."""

    out: str = "labels.csv"
    """File to write, .csv or .parquet."""
    threshold: float | None = None
    """Abstain below this calibrated probability, 0.9 by default; for regression, above this spread
    relative to that of the labelled targets, 1.0 by default."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict the labels of new rows, to a file or stdout."""

    out: str | None = None
    """File to write, .csv or .parquet; by default CSV on stdout."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write one HTML file about a fit, to open in a browser or send to a colleague."""

    out: str | None = None
    """File to write; RUN/report.html by default."""
