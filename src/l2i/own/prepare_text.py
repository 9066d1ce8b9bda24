"""From a table's texts to token ids, by the tokenizer of a pretrained network; learned once, kept as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from l2i.data.texts import cleaned
from l2i.data.tokenized import CHUNK, Text, Tokenizer
from l2i.errors import InputError
from l2i.models.positions import check_length, most_tokens
from l2i.models.pretrained import load_config, save_reading
from l2i.own.prepare import BLANK, Column, words

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "encoder"  # of a fit: what texts are read with
MOST = 128  # tokens of a text that are read, where nothing else is asked for
MULTIPLE = 8  # of tokens
LEARNED = 0  # the length that is asked for where it is to be learned


@dataclass(frozen=True, kw_only=True)
class TextInputs:
    """Texts of one or several columns, joined, as token ids."""

    names: tuple[str, ...]
    length: int
    """Tokens of a text that the network sees."""
    keep: Literal["end", "start"] = "end"
    weights: str
    """The folder or name of the pretrained network."""

    @staticmethod
    def learned(rows: pd.DataFrame, weights: str, asked: Text) -> TextInputs:
        """As long as the longest of the texts, at most `MOST`; or as long as asked."""
        with named(weights):
            config = load_config(weights)
            most = min(MOST, most_tokens(config) or MOST)
            check_length(config, asked.length, weights)
            found = TextInputs(names=tuple(rows.columns), length=asked.length or most, keep=asked.keep, weights=weights)
            return found if asked.length else replace(found, length=min(most, longest(found, rows)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a table must hold."""
        return tuple(Column(name=name, kind="text") for name in self.names)

    @property
    def tokenizer(self) -> Tokenizer:
        """Loaded anew each time."""
        with named(self.weights):
            return Tokenizer(self.weights, Text(length=self.length, keep=self.keep))

    def texts(self, frame: pd.DataFrame) -> list[str]:
        """The text of each row: its columns, a space between them, without HTML."""
        rows = zip(*(words(frame[name]) for name in self.names), strict=True)
        return [cleaned(" ".join(cell for cell in row if cell)) for row in rows]

    def blank(self, frame: pd.DataFrame) -> int:
        """How many rows have no text."""
        return self.texts(frame).count(BLANK)

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.int32]:  # [N, L]
        return np.asarray(self.tokenizer(self.texts(frame)).numpy(), dtype=np.int32)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "text", **asdict(self)}

    def stored(self, fit: Path) -> TextInputs:
        """With the tokenizer that a fit holds itself."""
        return replace(self, weights=stored_encoder(fit))


def longest(inputs: TextInputs, rows: pd.DataFrame) -> int:
    """The most tokens that a text has, rounded up; no more are looked at than are read."""
    tokenizer, texts, most = inputs.tokenizer, inputs.texts(rows), 1
    for start in range(0, len(texts), CHUNK):
        ids = tokenizer(texts[start : start + CHUNK])
        most = max(most, int((ids != tokenizer.pad).sum(dim=1).max()))
        if most == inputs.length:
            break
    return -(-most // MULTIPLE) * MULTIPLE


def cut_note(ids: Tensor, tokenizer: Tokenizer) -> list[str]:
    """How many texts [N, L] are as long as what is read of them, or longer, in words."""
    full, keep = int((ids[:, -1] != tokenizer.pad).sum()), tokenizer.text.keep
    told = f"{full:,} of {len(ids):,} texts fill all {ids.shape[1]} tokens; of longer ones the {keep} is read"
    return [told] if full else []


@contextmanager
def named(weights: str) -> Iterator[None]:
    """What is wrong with weights, in the words of `l2i fit`."""
    try:
        if Path(weights).expanduser().is_file():
            raise InputError(f"{weights} is a file; give --encoder the folder that holds it")
        yield
    except InputError as error:
        raise InputError(str(error).replace("--model.weights", "--encoder")) from None


def store_encoder(weights: str, fit: Path) -> None:
    """Keep in a fit folder what texts are read with, so that it stands alone; the trained weights are there anyway."""
    (fit / FOLDER).mkdir(exist_ok=True)
    save_reading(weights, fit / FOLDER)


def stored_encoder(fit: Path) -> str:
    """The folder that `store_encoder` wrote."""
    path = fit / FOLDER
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is missing or damaged; restore it, or fit again in another --out")
    return str(path)
