"""How a user's own data are to be read: the options of `l2i fit` that say so, and words for messages.

MERGED:
What the commands take, apart from a run's own fields; nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAX_NAMES_SHOWN = 8  # names, which a message can hold
BLANK_MARKERS = ("", "NA", "N/A", "nan", "NaN", "null", "None", "?")  # cells that hold nothing


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read your data."""

    target: tuple[str, ...] = ()
    """Column of a table with the labels; a blank cell is an unlabelled row. Several for regression with several
    targets, or for landmarks as x1 y1 x2 y2 …"""
    text: tuple[str, ...] = ()
    """Columns to read as text, by their words, or by an encoder."""
    encoder: str | None = None
    """What reads the text columns: a folder with a pretrained network and its tokenizer, or a name on Hugging Face's
    hub, such as bert-base-uncased. The texts are then the only inputs. Without it texts are read by their words, which
    needs no weights."""
    category: tuple[str, ...] = ()
    """Columns to read as categories although they hold numbers."""
    ignore: tuple[str, ...] = ()
    """Columns to leave out."""
    id: str | None = None
    """Column with the names of the rows; otherwise rows of a table are numbered from 1, and images named by their
    paths."""
    image: str | None = None
    """Column of a table with paths of images, seen from the table's folder; the images are then the inputs."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What the target is: a class, or a number. Numbers with fractions or more than 20 different values are taken as
    numbers."""
    landmarks: Literal["auto", "yes", "no"] = "auto"
    """Whether the targets of images are points x, y in their pixels, which move with the image when it is resized;
    'auto' for an even number of targets, at least 4, that all lie within the images."""
    size: int = 0
    """Side in pixels that images are brought to; 0 chooses from the data, at most 32, or 60 for landmarks."""
    grey: Literal["auto", "yes", "no"] = "auto"
    """Whether images are read in grey levels; 'auto' if all are grey."""
    encoding: str = "utf-8"
    """Encoding of a CSV file."""
    separator: str = "auto"
    """What stands between the cells of a CSV file, such as ';' or 'tab'; 'auto' finds out from the first line."""
    skip_unreadable: bool = False
    """Leave images out that cannot be read, instead of stopping."""


def format_names(names: Sequence[str]) -> str:
    """Names in quotes, cut after some."""
    return join_truncated([f"'{name}'" for name in names])


def join_truncated(items: Sequence[str]) -> str:
    """Parts of a list, cut after some."""
    suffix = f" and {len(items) - MAX_NAMES_SHOWN:,} more" if len(items) > MAX_NAMES_SHOWN else ""
    return ", ".join(items[:MAX_NAMES_SHOWN]) + suffix


def to_one_line(text: str) -> str:
    """A message or note in one line, whatever names and cells it quotes."""
    return " ".join(text.split())


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """A number of things, such as '1 row' or '3 rows'."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


@dataclass(frozen=True, kw_only=True)
class FitOptions(ReadOptions):
    """Train on your own data: a CSV or Parquet file, a folder of images, an .npz, or a CSV of image paths.

    Every field of a run is a flag as well, its default chosen from your data: --steps, --seed, --device, --model.name,
    --model.width, --batch.unlabeled, --optim.lr, --method.weight, --l2i.rho, --data.weak.noise, …; 'l2i train digits
    --help' explains them.
    """

    out: str | None = None
    """Folder for the fit; runs/NAME by default, after the file or folder."""
    method: str = "auto"
    """Semi-supervised method ('l2i list' shows them); auto chooses one for the data."""
    baselines: bool = True
    """Also train the supervised baseline, and the method without L2I, on the same split."""
    validation: int | float = 0.2
    """Labelled rows to choose by, never trained on: a number of them, or a share."""
    test: int | float = 0.2
    """Labelled rows to measure on, never trained on nor chosen by: a number of them, or a share."""


@dataclass(frozen=True, kw_only=True)
class ImputeOptions:
    """The label of every input row, given or imputed, with its confidence."""

    out: str = "labels.csv"
    """File to write, .csv or .parquet."""
    threshold: float | None = None
    """Calibrated probability under which to abstain, 0.9 by default; for regression, the spread above which to abstain,
    in spreads of the labelled targets, 1.0 by default."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Labels of new rows, in a file or on stdout."""

    out: str | None = None
    """File to write, .csv or .parquet; by default CSV on stdout."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """One HTML file about a fit, to be opened in a browser or sent to a colleague."""

    out: str | None = None
    """File to write; RUN/report.html by default."""
