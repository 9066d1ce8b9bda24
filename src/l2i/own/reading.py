"""How a user's own data are to be read: the options of `l2i fit` that say so, and words for messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SHOWN = 8  # names, which a message can hold
BLANKS = ("", "NA", "N/A", "nan", "NaN", "null", "None", "?")  # cells that hold nothing


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


def few(names: Sequence[str]) -> str:
    """Names in quotes, cut after some."""
    return cut([f"'{name}'" for name in names])


def cut(parts: Sequence[str]) -> str:
    """Parts of a list, cut after some."""
    more = f" and {len(parts) - SHOWN:,} more" if len(parts) > SHOWN else ""
    return ", ".join(parts[:SHOWN]) + more


def one_line(text: str) -> str:
    """A message or note in one line, whatever names and cells it quotes."""
    return " ".join(text.split())


def counted(number: int, thing: str, things: str | None = None) -> str:
    """A number of things, such as '1 row' or '3 rows'."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
