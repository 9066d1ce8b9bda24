"""From a table's raw columns, or from raw images, to the network's inputs; learned once, kept as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.data.augment import Columns
from l2i.data.pixels import Pixels
from l2i.data.texts import cleaned
from l2i.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "category", "text"]
MOST_CATEGORIES = 100  # of a column; rarer ones count as not known
MOST_TERMS = 2000  # of a text column
BLANK = ""  # the category of a blank cell


@dataclass(frozen=True, kw_only=True)
class Column:
    """How one column is read: a number standardised, a category as one input each, a text as weighted words."""

    name: str
    kind: Kind
    mean: float = 0.0
    std: float = 1.0
    blanks: bool = False
    """Number: whether an input of its own says where the column is blank; blanks are the mean."""
    values: tuple[str, ...] = ()
    """The categories, or the words."""
    weights: tuple[float, ...] = ()
    """Text: the inverse document frequency of each word."""

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return 1 + self.blanks if self.kind == "number" else len(self.values)

    def encoded(self, values: pd.Series) -> NDArray[np.float32]:  # [N, width]
        if self.kind == "number":
            raw = numbers(values)
            filled = np.where(np.isnan(raw), 0.0, (raw - self.mean) / self.std)
            parts = [filled, np.isnan(raw)] if self.blanks else [filled]
            return np.stack(parts, axis=1).astype(np.float32)
        if self.kind == "category":
            place = {value: i for i, value in enumerate(self.values)}
            codes = np.array([place.get(word, -1) for word in words(values)], dtype=np.int64)
            return np.asarray(codes[:, None] == np.arange(len(self.values)), dtype=np.float32)
        counted = _vectorizer(self.values, self.weights).transform(map(cleaned, words(values)))
        return np.asarray(counted.toarray(), dtype=np.float32)

    def unknown(self, values: pd.Series) -> list[str]:
        """The categories that were not there when the column was learned."""
        return sorted(set(words(values)) - set(self.values)) if self.kind == "category" else []


def numbers(values: pd.Series) -> NDArray[np.float64]:
    """A column as numbers, NaN where it is blank; an infinity, or what is no number, is an InputError."""
    import pandas as pd

    try:
        raw: NDArray[np.float64] = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        wrong = values[pd.to_numeric(values, errors="coerce").isna() & values.notna()]
        raise InputError(f"column '{values.name}' holds {wrong.iloc[0]!r}, which is no number; mend it") from None
    if np.isinf(raw).any():
        raise InputError(f"column '{values.name}' holds an infinity in row {int(np.isinf(raw).argmax()) + 1}; mend it")
    return raw


def words(values: pd.Series) -> list[str]:
    """A column as strings, blank where nothing is there."""
    missing = values.isna()
    return [BLANK if gone else str(value) for value, gone in zip(values.tolist(), missing.tolist(), strict=True)]


def learned(values: pd.Series, kind: Kind, weight: NDArray[np.float64] | None = None) -> Column:
    """How to read a column, from the rows there are; `weight` says how much each counts."""
    name = str(values.name)
    counts = np.ones(len(values)) if weight is None else weight
    if kind == "number":
        raw = numbers(values)
        there = ~np.isnan(raw)
        if not there.any():
            raise InputError(f"column '{name}' is blank in every row; leave it out")
        mean, std = scale_of(raw[there], counts[there], name)
        return Column(name=name, kind=kind, mean=float(mean), std=float(std), blanks=not there.all())
    if kind == "category":
        found = words(values)
        total: dict[str, float] = {}
        for word, count in zip(found, counts.tolist(), strict=True):
            total[word] = total.get(word, 0.0) + count
        frequent = sorted(total, key=lambda word: (-total[word], word))[:MOST_CATEGORIES]
        return Column(name=name, kind=kind, values=tuple(sorted(frequent)))
    return _learned_text(name, [cleaned(text) for text in words(values)])


def scale_of(
    values: NDArray[np.float64], weight: NDArray[np.float64], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and spread over the first dimension, whatever the unit; a constant has a spread of 1."""
    mean = np.average(values, axis=0, weights=weight)
    centred = values - mean
    most = np.abs(centred).max(axis=0)
    unit = np.where(most > 0, most, 1.0)
    std = unit * np.sqrt(np.average((centred / unit) ** 2, axis=0, weights=weight))
    if not np.isfinite(std).all():
        raise InputError(f"column '{name}' holds numbers too large to be averaged; give them in another unit")
    constant = std <= 1e-12 * np.abs(mean)  # what rounding leaves
    return mean, np.where(constant | (std == 0), 1.0, std)


def _learned_text(name: str, texts: list[str]) -> Column:
    least = 2 if len(texts) >= 100 else 1  # rows that a word must be in
    vectorizer = _vectorizer(None, None, max_features=MOST_TERMS, min_df=least)
    try:
        vectorizer.fit(texts)
    except ValueError:
        raise InputError(f"the text column '{name}' holds no words that could be learned from; give another") from None
    weights = tuple(float(w) for w in vectorizer.idf_)
    return Column(name=name, kind="text", values=tuple(vectorizer.get_feature_names_out().tolist()), weights=weights)


def _vectorizer(terms: Sequence[str] | None, weights: Sequence[float] | None, **options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(vocabulary=terms, sublinear_tf=True, dtype=np.float32, **options)
    if weights is not None:
        vectorizer.idf_ = np.asarray(weights)
    return vectorizer


@dataclass(frozen=True, kw_only=True)
class TableInputs:
    """A table's columns, in the order of the network's inputs."""

    columns: tuple[Column, ...]

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.float32]:  # [N, E]
        missing = [column.name for column in self.columns if column.name not in frame.columns]
        if missing:
            raise InputError(f"there is no column '{missing[0]}'; the model was trained with it")
        return np.concatenate([column.encoded(frame[column.name]) for column in self.columns], axis=1)

    @property
    def layout(self) -> Columns:
        """What belongs together among the inputs; each word of a text stands alone."""
        group: list[int] = []
        numeric: list[bool] = []
        for column in self.columns:
            first = group[-1] + 1 if group else 0
            alone = column.kind == "text"
            group += [first + i * alone for i in range(column.width)]
            numeric += [column.kind == "number" and i == 0 for i in range(column.width)]
        return Columns(torch.tensor(group), torch.tensor(numeric), group[-1] + 1)

    def unknown(self, frame: pd.DataFrame) -> dict[str, list[str]]:
        """New categories, by column."""
        found = {column.name: column.unknown(frame[column.name]) for column in self.columns}
        return {name: values for name, values in found.items() if values}

    def to_json(self) -> dict[str, Any]:
        return {"kind": "table", "columns": [asdict(column) for column in self.columns]}


@dataclass(frozen=True, kw_only=True)
class ImageInputs:
    """Images [N, C, H, W]: grey levels of each channel, standardised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: float = 0.0
    """What is taken as black, and `high` as white: raw values become grey levels 0 to 255."""
    high: float = 255.0

    @staticmethod
    def learned(raw: NDArray[Any]) -> ImageInputs:
        """From raw images [N, C, H, W]: 8-bit ones as they are, others between their darkest and lightest value."""
        eight = raw.dtype == np.uint8
        low, high = (0.0, 255.0) if eight else (float(raw.min()), float(raw.max()))
        high = high if high > low else low + 1.0
        found = Pixels.of(torch.from_numpy(ImageInputs(mean=(), std=(), low=low, high=high).grey(raw)))
        mean, std = (tuple(values.flatten().tolist()) for values in found)
        return ImageInputs(mean=mean, std=std, low=low, high=high)

    def grey(self, raw: NDArray[Any]) -> NDArray[np.uint8]:
        """Raw values as 256 grey levels; those of 8 bits stay as they are."""
        if raw.dtype == np.uint8 and (self.low, self.high) == (0.0, 255.0):
            return raw
        levels = (raw.astype(np.float64) - self.low) * (255.0 / (self.high - self.low))
        return np.asarray(np.rint(levels).clip(0, 255), dtype=np.uint8)

    @property
    def pixels(self) -> Pixels:
        """How the network sees grey levels."""
        return Pixels(*(torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (self.mean, self.std)))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "images", **asdict(self)}
