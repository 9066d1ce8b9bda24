"""Turn raw table columns, images or texts into network inputs; fitted once, saved as JSON."""

from __future__ import annotations

from collections.abc import Iterator
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
from l2i.fit.readers.columns import BLANK, MAX_CATEGORIES, ColumnKind, to_floats, to_strings
from l2i.models.huggingface import load_config, save_text_config
from l2i.models.text_encoder import check_length, get_max_tokens

if TYPE_CHECKING:
    import pandas as pd

MAX_TERMS = 2000  # per text column
MIN_TEXTS_FOR_RARE_TERMS = 100  # from here on, a term must be in two texts
ENCODER_DIR = "encoder"  # in a fit folder: config and tokenizer of the text encoder
DEFAULT_MAX_TOKENS = 128  # per text, unless another length is requested
LENGTH_MULTIPLE = 8  # lengths are rounded up to one
INFER_LENGTH = 0  # requested length that stands for "infer it from the texts"


@dataclass(frozen=True, kw_only=True)
class Column:
    """Encoding of one column: standardised number, one-hot category, or TF-IDF of a text."""

    name: str
    kind: ColumnKind
    mean: float = 0.0
    std: float = 1.0
    blanks: bool = False
    """Number: whether a second input marks blank cells, which are filled with the mean."""
    values: tuple[str, ...] = ()
    """The categories, or the terms."""
    weights: tuple[float, ...] = ()
    """Text: the inverse document frequency of each term."""

    @property
    def width(self) -> int:
        """Return the number of inputs it becomes."""
        return 1 + self.blanks if self.kind == "number" else len(self.values)

    def encode(self, values: pd.Series) -> NDArray[np.float32]:  # [N, width]
        if self.kind == "number":
            floats = to_floats(values)
            filled = np.where(np.isnan(floats), 0.0, (floats - self.mean) / self.std)
            parts = [filled, np.isnan(floats)] if self.blanks else [filled]
            return np.stack(parts, axis=1).astype(np.float32)
        if self.kind == "category":
            category_index = {value: i for i, value in enumerate(self.values)}
            codes = np.array([category_index.get(name, -1) for name in to_strings(values)])
            return np.asarray(codes[:, None] == np.arange(len(self.values)), dtype=np.float32)
        vectorizer = _make_vectorizer(vocabulary=self.values)
        vectorizer.idf_ = np.asarray(self.weights)
        tfidf = vectorizer.transform(map(clean_web_text, to_strings(values)))
        return np.asarray(tfidf.toarray(), dtype=np.float32)

    def find_unknown(self, values: pd.Series) -> list[str]:
        """Return the categories that the column was not fitted to."""
        return sorted(set(to_strings(values)) - set(self.values)) if self.kind == "category" else []


def fit_column(
    values: pd.Series, kind: ColumnKind, weight: NDArray[np.float64] | None = None
) -> Column:
    """Fit the encoding of a column to rows, weighted by `weight`."""
    name = str(values.name)
    row_weights = np.ones(len(values)) if weight is None else weight
    if kind == "text":
        return _fit_text_column(name, [clean_web_text(text) for text in to_strings(values)])
    if kind == "category":
        totals: dict[str, float] = {}
        for category, row_weight in zip(to_strings(values), row_weights.tolist(), strict=True):
            totals[category] = totals.get(category, 0.0) + row_weight
        frequent = sorted(totals, key=lambda category: (-totals[category], category))
        return Column(name=name, kind=kind, values=tuple(sorted(frequent[:MAX_CATEGORIES])))
    floats = to_floats(values)
    present = ~np.isnan(floats)
    if not present.any():
        raise InputError(f"column '{name}' is blank in every row; leave it out")
    mean, std = compute_scale(floats[present], row_weights[present], name)
    return Column(name=name, kind=kind, mean=float(mean), std=float(std), blanks=not present.all())


def compute_scale(
    values: NDArray[np.float64], weight: NDArray[np.float64], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and std over axis 0, whatever the unit; the std of a constant is 1."""
    mean = np.average(values, axis=0, weights=weight)
    centred = values - mean
    max_abs = np.abs(centred).max(axis=0)
    unit = np.where(max_abs > 0, max_abs, 1.0)
    std = unit * np.sqrt(np.average((centred / unit) ** 2, axis=0, weights=weight))
    if not np.isfinite(std).all():
        fix = "give them in another unit"
        raise InputError(f"column '{name}' holds numbers too large to be averaged; {fix}")
    constant = std <= 1e-12 * np.abs(mean)  # rounding error
    return mean, np.where(constant | (std == 0), 1.0, std)


def _fit_text_column(name: str, texts: list[str]) -> Column:
    min_texts = 2 if len(texts) >= MIN_TEXTS_FOR_RARE_TERMS else 1
    vectorizer = _make_vectorizer(max_features=MAX_TERMS, min_df=min_texts)
    try:
        vectorizer.fit(texts)
    except ValueError:
        raise InputError(
            f"the text column '{name}' holds no words that could be learned from; give another"
        ) from None
    terms = tuple(vectorizer.get_feature_names_out().tolist())
    return Column(name=name, kind="text", values=terms, weights=tuple(vectorizer.idf_.tolist()))


def _make_vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **options)


@dataclass(frozen=True, kw_only=True)
class TablePreprocessor:
    """The columns of a table, in the order of the network's inputs."""

    columns: tuple[Column, ...]

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.float32]:  # [N, E]
        for column in self.columns:
            if column.name not in frame.columns:
                fix = "the model was trained with it"
                raise InputError(f"there is no column '{column.name}'; {fix}")
        encoded = [column.encode(frame[column.name]) for column in self.columns]
        return np.concatenate(encoded, axis=1)

    @property
    def column_layout(self) -> ColumnLayout:
        """Return which inputs belong together; every term of a text stands alone."""
        group: list[int] = []
        numeric: list[bool] = []
        for column in self.columns:
            first = group[-1] + 1 if group else 0
            is_text = column.kind == "text"
            group += [first + i * is_text for i in range(column.width)]
            numeric += [column.kind == "number" and i == 0 for i in range(column.width)]
        return ColumnLayout(torch.tensor(group), torch.tensor(numeric), group[-1] + 1)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "table", "columns": [asdict(column) for column in self.columns]}


@dataclass(frozen=True, kw_only=True)
class ImagePreprocessor:
    """Images [N, C, H, W] as grey levels 0 to 255, and their mean and std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: float = 0.0
    """The raw value of black; `high` is that of white."""
    high: float = 255.0

    @staticmethod
    def fit(raw: NDArray[Any]) -> ImagePreprocessor:
        """Fit to raw images: keep 8-bit ones, stretch others from their minimum to maximum."""
        low, high = 0.0, 255.0
        if raw.dtype != np.uint8:
            low, high = float(raw.min()), float(raw.max())
            high = high if high > low else low + 1.0
        unscaled = ImagePreprocessor(mean=(), std=(), low=low, high=high)
        channel_stats = Normalize.from_images(torch.from_numpy(unscaled.to_grey_levels(raw)))
        mean, std = (tuple(values.flatten().tolist()) for values in channel_stats)
        return replace(unscaled, mean=mean, std=std)

    @property
    def takes_uint8(self) -> bool:
        """Return whether raw 8-bit values are grey levels already."""
        return (self.low, self.high) == (0.0, 255.0)

    def to_grey_levels(self, raw: NDArray[Any]) -> NDArray[np.uint8]:
        """Return raw values as 8-bit grey levels."""
        if raw.dtype == np.uint8 and self.takes_uint8:
            return raw
        levels = self.round_levels(torch.from_numpy(raw.astype(np.float64)))
        return np.asarray(levels.to(torch.uint8).numpy())

    def round_levels(self, raw: Tensor) -> Tensor:
        """Return raw values as grey levels in float64, for exported models too."""
        return ((raw.double() - self.low) * (255.0 / (self.high - self.low))).round().clamp(0, 255)

    @property
    def normalization(self) -> Normalize:
        """Return the normalisation of grey levels."""
        mean, std = (
            torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        return Normalize(mean, std)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "images", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class TextPreprocessor:
    """Texts of one or several columns, joined, as token ids."""

    names: tuple[str, ...]
    length: int
    """Tokens per text that the network sees."""
    keep: Literal["end", "start"] = "end"
    weights: str
    """The folder or name of the pretrained network."""

    @staticmethod
    def fit(rows: pd.DataFrame, weights: str, text_config: Text) -> TextPreprocessor:
        """Fit to the longest text, up to DEFAULT_MAX_TOKENS, unless a length is requested."""
        with _translate_weights_errors(weights):
            config = load_config(weights)
            max_length = min(DEFAULT_MAX_TOKENS, get_max_tokens(config) or DEFAULT_MAX_TOKENS)
            check_length(config, text_config.length, weights)
            preprocessor = TextPreprocessor(
                names=tuple(rows.columns),
                length=text_config.length or max_length,
                keep=text_config.keep_side,
                weights=weights,
            )
            if text_config.length:
                return preprocessor
            return replace(preprocessor, length=min(max_length, preprocessor._measure(rows)))

    def _measure(self, rows: pd.DataFrame) -> int:
        """Return the tokens of the longest text, cut at `length`, rounded up."""
        tokenizer, texts, max_tokens = self.tokenizer, self.join_texts(rows), 1
        for start in range(0, len(texts), TOKENIZE_CHUNK):
            ids = tokenizer(texts[start : start + TOKENIZE_CHUNK])
            max_tokens = max(max_tokens, int((ids != tokenizer.pad_id).sum(dim=1).max()))
            if max_tokens == self.length:
                break
        return -(-max_tokens // LENGTH_MULTIPLE) * LENGTH_MULTIPLE

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that a table must have."""
        return tuple(Column(name=name, kind="text") for name in self.names)

    @property
    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer, anew each time."""
        with _translate_weights_errors(self.weights):
            return Tokenizer(self.weights, Text(length=self.length, keep_side=self.keep))

    def join_texts(self, frame: pd.DataFrame) -> list[str]:
        """Return one text per row: its columns joined by spaces, without HTML."""
        rows = zip(*(to_strings(frame[name]) for name in self.names), strict=True)
        return [clean_web_text(" ".join(cell for cell in row if cell)) for row in rows]

    def count_blank(self, frame: pd.DataFrame) -> int:
        """Return how many rows have no text."""
        return self.join_texts(frame).count(BLANK)

    def __call__(self, frame: pd.DataFrame) -> NDArray[np.int32]:  # [N, L]
        return np.asarray(self.tokenizer(self.join_texts(frame)).numpy(), dtype=np.int32)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "text", **asdict(self)}

    def with_saved_encoder(self, fit_dir: Path) -> TextPreprocessor:
        """Return a copy with the tokenizer saved in a fit folder."""
        return replace(self, weights=find_saved_encoder(fit_dir))


def describe_truncation(ids: Tensor, tokenizer: Tokenizer) -> list[str]:
    """Note how many texts [N, L] are as long as what is read of them, or longer."""
    num_full, keep = int((ids[:, -1] != tokenizer.pad_id).sum()), tokenizer.text.keep_side
    note = (
        f"{num_full:,} of {len(ids):,} texts fill all {ids.shape[1]} tokens; of longer ones the "
        f"{keep} is read"
    )
    return [note] if num_full else []


@contextmanager
def _translate_weights_errors(weights: str) -> Iterator[None]:
    """Report errors of weights in terms of `l2i fit`."""
    try:
        if Path(weights).expanduser().is_file():
            raise InputError(f"{weights} is a file; give --encoder the folder that holds it")
        yield
    except InputError as error:
        raise InputError(str(error).replace("--model.weights", "--encoder")) from None


def save_encoder(weights: str, fit_dir: Path) -> None:
    """Save config and tokenizer in a fit folder; its checkpoints hold the trained weights."""
    (fit_dir / ENCODER_DIR).mkdir(exist_ok=True)
    save_text_config(weights, fit_dir / ENCODER_DIR)


def find_saved_encoder(fit_dir: Path) -> str:
    """Return the folder that `save_encoder` wrote."""
    path = fit_dir / ENCODER_DIR
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is missing or damaged; restore it, or fit again in another --out")
    return str(path)


Preprocessor = TablePreprocessor | ImagePreprocessor | TextPreprocessor
PREPROCESSORS = {"table": TablePreprocessor, "images": ImagePreprocessor, "text": TextPreprocessor}


def load_preprocessor(saved: dict[str, Any]) -> Preprocessor:
    """Load what `to_json` wrote; raise InputError for anything else."""
    fields = {name: value for name, value in saved.items() if name != "kind"}
    try:
        return cast(Preprocessor, from_dict(PREPROCESSORS[saved["kind"]], fields, "inputs."))
    except (KeyError, TypeError, RecursionError):
        fix = "restore it, or fit again in another --out"
        raise InputError(f"fit.json does not say how to read inputs; {fix}") from None
