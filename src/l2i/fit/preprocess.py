"""From a table's raw columns, or from raw images, to the network's inputs; learned once, kept as JSON.

MERGED:
From a table's texts to token ids, by the tokenizer of a pretrained network; learned once, kept as JSON.
What turns a fit's raw rows into the network's inputs, from the JSON that it is kept as.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2i.config.serialization import from_dict
from l2i.data.datasets.imdb import clean_web_text
from l2i.data.tokenization import TOKENIZE_CHUNK, Text, Tokenizer
from l2i.data.transforms.image import ColumnLayout, Normalize
from l2i.errors import InputError
from l2i.models.huggingface import load_config, save_text_config
from l2i.models.text_encoder import check_length, get_max_tokens

if TYPE_CHECKING:
    import pandas as pd

ColumnKind = Literal["number", "category", "text"]
MAX_CATEGORIES = 100  # of a column; rarer ones count as not known
MAX_TERMS = 2000  # of a text column
BLANK = ""  # the category of a blank cell


@dataclass(frozen=True, kw_only=True)
class Column:
    """How one column is read: a number standardised, a category as one input each, a text as weighted words."""

    name: str
    kind: ColumnKind
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

    def encode(self, values: pd.Series) -> NDArray[np.float32]:  # [N, width]
        if self.kind == "number":
            raw = to_floats(values)
            filled = np.where(np.isnan(raw), 0.0, (raw - self.mean) / self.std)
            parts = [filled, np.isnan(raw)] if self.blanks else [filled]
            return np.stack(parts, axis=1).astype(np.float32)
        if self.kind == "category":
            category_index = {value: i for i, value in enumerate(self.values)}
            codes = np.array([category_index.get(word, -1) for word in to_strings(values)], dtype=np.int64)
            return np.asarray(codes[:, None] == np.arange(len(self.values)), dtype=np.float32)
        tfidf = _make_vectorizer(self.values, self.weights).transform(map(clean_web_text, to_strings(values)))
        return np.asarray(tfidf.toarray(), dtype=np.float32)

    def find_unknown(self, values: pd.Series) -> list[str]:
        """The categories that were not there when the column was learned."""
        return sorted(set(to_strings(values)) - set(self.values)) if self.kind == "category" else []


def to_floats(values: pd.Series) -> NDArray[np.float64]:
    """A column as numbers, NaN where it is blank; an infinity, or what is no number, is an InputError."""
    import pandas as pd

    try:
        raw: NDArray[np.float64] = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        bad_cells = values[pd.to_numeric(values, errors="coerce").isna() & values.notna()]
        raise InputError(f"column '{values.name}' holds {bad_cells.iloc[0]!r}, which is no number; mend it") from None
    if np.isinf(raw).any():
        raise InputError(f"column '{values.name}' holds an infinity in row {int(np.isinf(raw).argmax()) + 1}; mend it")
    return raw


def to_strings(values: pd.Series) -> list[str]:
    """A column as strings, blank where nothing is there."""
    missing = values.isna()
    return [BLANK if is_missing else str(value) for value, is_missing in zip(values.tolist(), missing.tolist(), strict=True)]


def fit_column(values: pd.Series, kind: ColumnKind, weight: NDArray[np.float64] | None = None) -> Column:
    """How to read a column, from the rows there are; `weight` says how much each counts."""
    name = str(values.name)
    row_weights = np.ones(len(values)) if weight is None else weight
    if kind == "number":
        raw = to_floats(values)
        present = ~np.isnan(raw)
        if not present.any():
            raise InputError(f"column '{name}' is blank in every row; leave it out")
        mean, std = compute_scale(raw[present], row_weights[present], name)
        return Column(name=name, kind=kind, mean=float(mean), std=float(std), blanks=not present.all())
    if kind == "category":
        categories = to_strings(values)
        total: dict[str, float] = {}
        for word, row_weight in zip(categories, row_weights.tolist(), strict=True):
            total[word] = total.get(word, 0.0) + row_weight
        frequent = sorted(total, key=lambda word: (-total[word], word))[:MAX_CATEGORIES]
        return Column(name=name, kind=kind, values=tuple(sorted(frequent)))
    return _fit_text_column(name, [clean_web_text(text) for text in to_strings(values)])


def compute_scale(
    values: NDArray[np.float64], weight: NDArray[np.float64], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and spread over the first dimension, whatever the unit; a constant has a spread of 1."""
    mean = np.average(values, axis=0, weights=weight)
    centred = values - mean
    max_abs = np.abs(centred).max(axis=0)
    unit = np.where(max_abs > 0, max_abs, 1.0)
    std = unit * np.sqrt(np.average((centred / unit) ** 2, axis=0, weights=weight))
    if not np.isfinite(std).all():
        raise InputError(f"column '{name}' holds numbers too large to be averaged; give them in another unit")
    constant = std <= 1e-12 * np.abs(mean)  # what rounding leaves
    return mean, np.where(constant | (std == 0), 1.0, std)


def _fit_text_column(name: str, texts: list[str]) -> Column:
    min_rows = 2 if len(texts) >= 100 else 1  # rows that a word must be in
    vectorizer = _make_vectorizer(None, None, max_features=MAX_TERMS, min_df=min_rows)
    try:
        vectorizer.fit(texts)
    except ValueError:
        raise InputError(f"the text column '{name}' holds no words that could be learned from; give another") from None
    weights = tuple(float(w) for w in vectorizer.idf_)
    return Column(name=name, kind="text", values=tuple(vectorizer.get_feature_names_out().tolist()), weights=weights)


def _make_vectorizer(terms: Sequence[str] | None, weights: Sequence[float] | None, **options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(vocabulary=terms, sublinear_tf=True, dtype=np.float32, **options)
    if weights is not None:
        vectorizer.idf_ = np.asarray(weights)
    return vectorizer


@dataclass(frozen=True, kw_only=True)
class TablePreprocessor:
    """A table's columns, in the order of the network's inputs."""

    columns: tuple[Column, ...]

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.float32]:  # [N, E]
        missing = [column.name for column in self.columns if column.name not in frame.columns]
        if missing:
            raise InputError(f"there is no column '{missing[0]}'; the model was trained with it")
        return np.concatenate([column.encode(frame[column.name]) for column in self.columns], axis=1)

    @property
    def column_layout(self) -> ColumnLayout:
        """What belongs together among the inputs; each word of a text stands alone."""
        group: list[int] = []
        numeric: list[bool] = []
        for column in self.columns:
            first = group[-1] + 1 if group else 0
            is_text = column.kind == "text"
            group += [first + i * is_text for i in range(column.width)]
            numeric += [column.kind == "number" and i == 0 for i in range(column.width)]
        return ColumnLayout(torch.tensor(group), torch.tensor(numeric), group[-1] + 1)

    def find_unknown(self, frame: pd.DataFrame) -> dict[str, list[str]]:
        """New categories, by column."""
        unknown_by_column = {column.name: column.find_unknown(frame[column.name]) for column in self.columns}
        return {name: values for name, values in unknown_by_column.items() if values}

    def to_json(self) -> dict[str, Any]:
        return {"kind": "table", "columns": [asdict(column) for column in self.columns]}


@dataclass(frozen=True, kw_only=True)
class ImagePreprocessor:
    """Images [N, C, H, W]: grey levels of each channel, standardised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: float = 0.0
    """What is taken as black, and `high` as white: raw values become grey levels 0 to 255."""
    high: float = 255.0

    @staticmethod
    def fit(raw: NDArray[Any]) -> ImagePreprocessor:
        """From raw images [N, C, H, W]: 8-bit ones as they are, others between their darkest and lightest value."""
        is_uint8 = raw.dtype == np.uint8
        low, high = (0.0, 255.0) if is_uint8 else (float(raw.min()), float(raw.max()))
        high = high if high > low else low + 1.0
        channel_stats = Normalize.from_images(torch.from_numpy(ImagePreprocessor(mean=(), std=(), low=low, high=high).to_grey_levels(raw)))
        mean, std = (tuple(values.flatten().tolist()) for values in channel_stats)
        return ImagePreprocessor(mean=mean, std=std, low=low, high=high)

    def to_grey_levels(self, raw: NDArray[Any]) -> NDArray[np.uint8]:
        """Raw values as 256 grey levels; those of 8 bits stay as they are."""
        if raw.dtype == np.uint8 and (self.low, self.high) == (0.0, 255.0):
            return raw
        levels = (raw.astype(np.float64) - self.low) * (255.0 / (self.high - self.low))
        return np.asarray(np.rint(levels).clip(0, 255), dtype=np.uint8)

    @property
    def normalization(self) -> Normalize:
        """How the network sees grey levels."""
        return Normalize(*(torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (self.mean, self.std)))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "images", **asdict(self)}


ENCODER_DIR = "encoder"  # of a fit: what texts are read with
DEFAULT_MAX_TOKENS = 128  # tokens of a text that are read, where nothing else is asked for
LENGTH_MULTIPLE = 8  # of tokens
INFER_LENGTH = 0  # the length that is asked for where it is to be learned


@dataclass(frozen=True, kw_only=True)
class TextPreprocessor:
    """Texts of one or several columns, joined, as token ids."""

    names: tuple[str, ...]
    length: int
    """Tokens of a text that the network sees."""
    keep: Literal["end", "start"] = "end"
    weights: str
    """The folder or name of the pretrained network."""

    @staticmethod
    def fit(rows: pd.DataFrame, weights: str, text_config: Text) -> TextPreprocessor:
        """As long as the longest of the texts, at most `MOST`; or as long as asked."""
        with translate_weights_errors(weights):
            config = load_config(weights)
            max_length = min(DEFAULT_MAX_TOKENS, get_max_tokens(config) or DEFAULT_MAX_TOKENS)
            check_length(config, text_config.length, weights)
            preprocessor = TextPreprocessor(names=tuple(rows.columns), length=text_config.length or max_length, keep=text_config.keep_side, weights=weights)
            return preprocessor if text_config.length else replace(preprocessor, length=min(max_length, measure_longest(preprocessor, rows)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """What a table must hold."""
        return tuple(Column(name=name, kind="text") for name in self.names)

    @property
    def tokenizer(self) -> Tokenizer:
        """Loaded anew each time."""
        with translate_weights_errors(self.weights):
            return Tokenizer(self.weights, Text(length=self.length, keep_side=self.keep))

    def join_texts(self, frame: pd.DataFrame) -> list[str]:
        """The text of each row: its columns, a space between them, without HTML."""
        rows = zip(*(to_strings(frame[name]) for name in self.names), strict=True)
        return [clean_web_text(" ".join(cell for cell in row if cell)) for row in rows]

    def count_blank(self, frame: pd.DataFrame) -> int:
        """How many rows have no text."""
        return self.join_texts(frame).count(BLANK)

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.int32]:  # [N, L]
        return np.asarray(self.tokenizer(self.join_texts(frame)).numpy(), dtype=np.int32)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "text", **asdict(self)}

    def with_saved_encoder(self, fit_dir: Path) -> TextPreprocessor:
        """With the tokenizer that a fit holds itself."""
        return replace(self, weights=find_saved_encoder(fit_dir))


def measure_longest(preprocessor: TextPreprocessor, rows: pd.DataFrame) -> int:
    """The most tokens that a text has, rounded up; no more are looked at than are read."""
    tokenizer, texts, max_tokens = preprocessor.tokenizer, preprocessor.join_texts(rows), 1
    for start in range(0, len(texts), TOKENIZE_CHUNK):
        ids = tokenizer(texts[start : start + TOKENIZE_CHUNK])
        max_tokens = max(max_tokens, int((ids != tokenizer.pad_id).sum(dim=1).max()))
        if max_tokens == preprocessor.length:
            break
    return -(-max_tokens // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def describe_truncation(ids: Tensor, tokenizer: Tokenizer) -> list[str]:
    """How many texts [N, L] are as long as what is read of them, or longer, in words."""
    num_full, keep = int((ids[:, -1] != tokenizer.pad_id).sum()), tokenizer.text.keep_side
    note = f"{num_full:,} of {len(ids):,} texts fill all {ids.shape[1]} tokens; of longer ones the {keep} is read"
    return [note] if num_full else []


@contextmanager
def translate_weights_errors(weights: str) -> Iterator[None]:
    """What is wrong with weights, in the words of `l2i fit`."""
    try:
        if Path(weights).expanduser().is_file():
            raise InputError(f"{weights} is a file; give --encoder the folder that holds it")
        yield
    except InputError as error:
        raise InputError(str(error).replace("--model.weights", "--encoder")) from None


def save_encoder(weights: str, fit_dir: Path) -> None:
    """Keep in a fit folder what texts are read with, so that it stands alone; the trained weights are there anyway."""
    (fit_dir / ENCODER_DIR).mkdir(exist_ok=True)
    save_text_config(weights, fit_dir / ENCODER_DIR)


def find_saved_encoder(fit_dir: Path) -> str:
    """The folder that `store_encoder` wrote."""
    path = fit_dir / ENCODER_DIR
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is missing or damaged; restore it, or fit again in another --out")
    return str(path)


Preprocessor = TablePreprocessor | ImagePreprocessor | TextPreprocessor
PREPROCESSORS = {"table": TablePreprocessor, "images": ImagePreprocessor, "text": TextPreprocessor}


def load_preprocessor(saved: dict[str, Any]) -> Preprocessor:
    """What `to_json` wrote; an InputError where it is something else."""
    fields = {name: value for name, value in saved.items() if name != "kind"}
    try:
        return cast(Preprocessor, from_dict(PREPROCESSORS[saved["kind"]], fields, "inputs."))
    except (KeyError, TypeError, RecursionError):
        raise InputError(
            "fit.json does not say how to read inputs; restore it, or fit again in another --out"
        ) from None
