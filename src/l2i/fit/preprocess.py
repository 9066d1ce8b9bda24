"""Turn raw table columns, images or texts into network inputs; fitted once, saved as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from l2i.config.serialization import from_dict
from l2i.data.datasets.imdb import clean_web_text
from l2i.data.tokenization import TOKENIZE_CHUNK, Text, Tokenizer
from l2i.data.transforms.image import ColumnLayout, Normalize
from l2i.errors import InputError
from l2i.files.output import name_file_in_errors
from l2i.fit.readers.columns import BLANK, MAX_CATEGORIES, ColumnKind, to_floats, to_strings
from l2i.fit.readers.dates import (
    DATE_PARTS,
    DATE_TITLES,
    PART_TITLES,
    list_date_parts,
    take_date_part,
)
from l2i.models.frozen_encoder import FrozenEncoder, load_frozen_encoder
from l2i.models.huggingface import load_config, save_text_config, translate_weights_errors
from l2i.models.text_encoder import check_length, get_max_tokens

if TYPE_CHECKING:
    import pandas as pd

MAX_TERMS = 2000  # per text column
MIN_TEXTS_FOR_RARE_TERMS = 100  # from here on, a term must be in two texts
ENCODER_DIR = "encoder"  # in a fit folder: config and tokenizer of the text encoder
DEFAULT_MAX_TOKENS = 128  # per text, unless another length is requested
LENGTH_MULTIPLE = 8  # lengths are rounded up to one
MAX_ENCODED_CELLS = 2**20  # cells of a table that are encoded together
MAX_MEAN_STD_RATIO = 1e3  # beyond which float32 has too few digits left for the variation
MIN_FLOAT32_STD = 1e-30  # float32 holds it, and its inverse, with room to spare
ENCODER_INPUTS = {"numbers": "number", "categories": "category", "texts": "text"}
INPUT_KINDS = ("number", "flag", "category", "text")  # as `TableEncoder` concatenates them
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
    part: str = ""
    """Number: the part of a date that it is, such as its weekday; '' if it is none."""
    date_format: str = ""
    """How that date is written."""

    @property
    def raw_kind(self) -> ColumnKind:
        """Return the kind of the cells that it is made of."""
        return "date" if self.part else self.kind

    @property
    def title(self) -> str:
        """Return its name, and the part of a date that it is."""
        return f"{self.name} ({PART_TITLES[self.part]})" if self.part else self.name

    @property
    def width(self) -> int:
        """Return the number of inputs it becomes."""
        return 1 + self.blanks if self.kind == "number" else len(self.values)

    def extract(self, values: pd.Series) -> NDArray[Any]:
        """Return numbers [N], category codes [N], −1 if unknown, or the TF-IDF of terms [N, T]."""
        if self.kind == "number":
            floats = to_floats(values)
            return take_date_part(floats, self.part) if self.part else floats
        if self.kind == "category":
            codes = {value: code for code, value in enumerate(self.values)}
            return np.array([codes.get(name, -1) for name in to_strings(values)], dtype=np.int64)
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
        raise InputError(f"column '{name}' is blank in every row; drop it")
    mean, std = compute_mean_std(floats[present], row_weights[present], name)
    return Column(name=name, kind=kind, mean=float(mean), std=float(std), blanks=not present.all())


def fit_numbers(x: NDArray[np.float64], weight: NDArray[np.float64]) -> tuple[Column, ...]:
    """Fit the encodings of an array's columns [N, F], named x0, x1, …; NaN where blank."""
    is_blank = np.isnan(x)
    if is_blank.all(axis=0).any():
        raise InputError(f"column 'x{is_blank.all(axis=0).argmax()}' is NaN in every row; drop it")
    has_blanks: NDArray[np.bool_] = np.any(is_blank, axis=0)
    mean, std = compute_mean_std(np.where(has_blanks, 0.0, x), weight, "X")
    for i in np.flatnonzero(has_blanks).tolist():
        present = ~is_blank[:, i]
        mean[i], std[i] = compute_mean_std(x[present, i], weight[present], f"x{i}")
    facts = zip(mean.tolist(), std.tolist(), has_blanks.tolist(), strict=True)
    return tuple(
        Column(name=f"x{i}", kind="number", mean=m, std=s, blanks=b)
        for i, (m, s, b) in enumerate(facts)
    )


def fit_date_columns(
    values: pd.Series, date_format: str, weight: NDArray[np.float64] | None = None
) -> list[Column]:
    """Fit the encodings of dates, given as days: elapsed time, and the parts that vary."""
    import pandas as pd

    columns, days = [], to_floats(values)
    for part in list_date_parts(days):
        part_values = pd.Series(take_date_part(days, part), name=values.name)
        fitted = fit_column(part_values, "number", weight)
        has_blanks = fitted.blanks and part == DATE_PARTS[0]  # one flag is enough
        columns.append(replace(fitted, part=part, date_format=date_format, blanks=has_blanks))
    return columns


def compute_mean_std(
    values: NDArray[np.float64], weight: NDArray[np.float64], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and std over axis 0, whatever the unit; the std of a constant is 1."""
    mean = np.average(values, axis=0, weights=weight)
    centred = values - mean
    max_abs = np.abs(centred).max(axis=0)
    unit = np.where(max_abs > 0, max_abs, 1.0)
    std = unit * np.sqrt(np.average((centred / unit) ** 2, axis=0, weights=weight))
    if not np.isfinite(std).all():
        raise InputError(f"column '{name}' contains numbers too large to standardise; rescale them")
    constant = std <= 1e-12 * np.abs(mean)  # rounding error
    return mean, np.where(constant | (std == 0), 1.0, std)


def _fit_text_column(name: str, texts: list[str]) -> Column:
    min_texts = 2 if len(texts) >= MIN_TEXTS_FOR_RARE_TERMS else 1
    vectorizer = _make_vectorizer(max_features=MAX_TERMS, min_df=min_texts)
    try:
        vectorizer.fit(texts)
    except ValueError:
        fix = "choose a different column"
        raise InputError(f"text column '{name}' contains no usable words; {fix}") from None
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
                fix = "add it: the model was trained with it"
                raise InputError(f"column '{column.name}' was not found; {fix}")
        encoded = np.empty((len(frame), sum(c.width for c in self.columns)), dtype=np.float32)
        start = 0
        for group in self._group_columns(MAX_ENCODED_CELLS // max(1, len(frame))):
            arrays = {name: torch.from_numpy(a) for name, a in group.to_arrays(frame).items()}
            part = TableEncoder(group, torch.float64)(**arrays)
            encoded[:, start : start + part.shape[1]] = part.numpy()
            start += part.shape[1]
        return encoded

    def _group_columns(self, max_width: int) -> Iterator[TablePreprocessor]:
        """Yield the columns in order, in groups of at most `max_width` inputs, to bound memory."""
        first, width = 0, 0
        for i, column in enumerate(self.columns):
            if i > first and width + column.width > max_width:
                yield TablePreprocessor(columns=self.columns[first:i])
                first, width = i, 0
            width += column.width
        yield TablePreprocessor(columns=self.columns[first:])

    def to_arrays(self, frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
        """Return the arguments of `TableEncoder`: those for which there are columns."""
        extracted = {
            name: [column.extract(frame[column.name]) for column in self.select(kind)]
            for name, kind in ENCODER_INPUTS.items()
        }
        return {name: np.column_stack(parts) for name, parts in extracted.items() if parts}

    def select(self, kind: str) -> list[Column]:
        """Return the columns of one kind, in order."""
        return [column for column in self.columns if column.kind == kind]

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


class TableEncoder(nn.Module):
    """A table's inputs in the order of its columns, also within exported models.

    Takes raw numbers, NaN if blank; categories as codes; TF-IDF of texts, which are not exported.
    By default it computes in float32 if that is precise enough.
    """

    mean: Tensor  # [Fn]
    mean_residual: Tensor  # [Fn], what rounding takes from the mean
    std: Tensor  # [Fn]
    flagged: Tensor  # [B], the numbers with an input that marks blanks
    category_column: Tensor  # [K], the column of each category
    category_index: Tensor  # [K], and its index there
    order: Tensor  # [E], where each input lies among numbers, flags, categories and terms

    def __init__(self, inputs: TablePreprocessor, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        numbers, categories = inputs.select("number"), inputs.select("category")
        needs_float64 = any(_needs_float64(c.mean, c.std) for c in numbers)
        self.dtype = dtype or (torch.float64 if needs_float64 else torch.float32)
        mean = torch.tensor([c.mean for c in numbers], dtype=torch.float64)
        self.register_buffer("mean", mean.to(self.dtype))
        self.register_buffer("mean_residual", (mean - self.mean.double()).to(self.dtype))
        self.register_buffer("std", torch.tensor([c.std for c in numbers], dtype=self.dtype))
        index_buffers = {
            "flagged": [i for i, c in enumerate(numbers) if c.blanks],
            "category_column": [i for i, c in enumerate(categories) for _ in c.values],
            "category_index": [k for c in categories for k in range(c.width)],
            "order": _compute_input_order(inputs),
        }
        for name, indices in index_buffers.items():
            self.register_buffer(name, torch.tensor(indices, dtype=torch.long))
        self.is_ordered = index_buffers["order"] == sorted(index_buffers["order"])

    def forward(
        self,
        numbers: Tensor | None = None,
        categories: Tensor | None = None,
        texts: Tensor | None = None,
    ) -> Tensor:
        parts: list[Tensor] = []
        if numbers is not None:
            is_blank = numbers.isnan()
            standardized = (numbers - self.mean - self.mean_residual) / self.std
            parts.append(torch.where(is_blank, 0.0, standardized).float())
            parts += [is_blank.index_select(1, self.flagged).float()] if len(self.flagged) else []
        if categories is not None:
            parts.append(
                (categories.index_select(1, self.category_column) == self.category_index).float()
            )
        parts += [] if texts is None else [texts]
        encoded = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return encoded if self.is_ordered else encoded.index_select(1, self.order)


def _compute_input_order(inputs: TablePreprocessor) -> list[int]:
    """Return where each input lies among all numbers, then flags, then categories, then terms."""
    kinds: list[str] = []  # of the inputs, in the order of their columns
    for column in inputs.columns:
        num_flags = int(column.blanks) if column.kind == "number" else 0
        kinds += [column.kind] * (column.width - num_flags) + ["flag"] * num_flags
    by_kind = sorted(range(len(kinds)), key=lambda i: INPUT_KINDS.index(kinds[i]))
    return [int(i) for i in np.argsort(by_kind)]


def _needs_float64(mean: float, std: float) -> bool:
    """Return whether float32 is too coarse, or too small, for values of this mean and std."""
    return abs(mean) > MAX_MEAN_STD_RATIO * std or not MIN_FLOAT32_STD < std < 1 / MIN_FLOAT32_STD


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
        stats = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.std))
        return Normalize(*(values.view(-1, 1, 1) for values in stats))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "images", **asdict(self)}


class ImageEncoder(nn.Module):
    """ImagePreprocessor for exported models; takes 8-bit grey levels, or other raw values."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    def __init__(self, inputs: ImagePreprocessor) -> None:
        super().__init__()
        self.inputs = inputs
        max_abs = max(abs(inputs.low), abs(inputs.high))
        needs_float64 = _needs_float64(max_abs, inputs.high - inputs.low)
        self.dtype = torch.float64 if needs_float64 else torch.float32
        self.dtype = torch.uint8 if inputs.takes_uint8 else self.dtype
        pixels = inputs.normalization.to(torch.device("cpu"), torch.float32)
        self.register_buffer("mean", pixels.mean)
        self.register_buffer("std", pixels.std)

    def forward(self, images: Tensor) -> Tensor:
        levels = images if self.inputs.takes_uint8 else self.inputs.round_levels(images)
        return Normalize(self.mean, self.std).apply(levels)


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
        with translate_weights_errors(weights):
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
        with translate_weights_errors(self.weights):
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


def describe_full_texts(ids: Tensor, tokenizer: Tokenizer) -> list[str]:
    """Note how many texts [N, L] reach the maximum length, and how longer ones are truncated."""
    num_full, keep = int((ids[:, -1] != tokenizer.pad_id).sum()), tokenizer.text.keep_side
    full = f"{num_full:,} of {len(ids):,} texts reach the limit of {ids.shape[1]} tokens"
    return [f"{full}; only the {keep} of longer ones is used"] if num_full else []


def save_encoder(weights: str, fit_dir: Path) -> None:
    """Save config and tokenizer in a fit folder; its checkpoints hold the trained weights."""
    folder = fit_dir / ENCODER_DIR
    with name_file_in_errors(folder):
        folder.mkdir(exist_ok=True)
        save_text_config(weights, folder)


def find_saved_encoder(fit_dir: Path) -> str:
    """Return the folder that `save_encoder` wrote."""
    path = fit_dir / ENCODER_DIR
    if not (path / "config.json").is_file():
        raise InputError(
            f"{path} is missing or damaged; restore it, or fit again with a different --out"
        )
    return str(path)


@dataclass(frozen=True, kw_only=True)
class FeaturePreprocessor:
    """Images as features of a frozen encoder, which a projection then turns into rows."""

    encoder: str
    """Its name or folder."""
    digest: str
    """The checksum of its weights."""
    side: int
    """Pixels of the squares that images are resized to."""
    low: float = 0.0
    """The raw value of black; `high` is that of white."""
    high: float = 255.0

    def load_encoder(self) -> FrozenEncoder:
        """Load the encoder, and check that it has the weights it had."""
        with translate_weights_errors(self.encoder):
            encoder = load_frozen_encoder(self.encoder, self.side)
        if encoder.digest != self.digest:
            problem = f"the weights of {self.encoder} are not those that the model was fitted with"
            raise InputError(f"{problem}; restore them, or fit again with a different --out")
        return encoder

    def to_json(self) -> dict[str, Any]:
        return {"kind": "features", **asdict(self)}


Preprocessor = TablePreprocessor | ImagePreprocessor | TextPreprocessor | FeaturePreprocessor
PREPROCESSORS = {
    "table": TablePreprocessor,
    "images": ImagePreprocessor,
    "text": TextPreprocessor,
    "features": FeaturePreprocessor,
}


def _check_dates(preprocessor: TablePreprocessor) -> None:
    """Raise KeyError for parts or formats of dates that do not exist."""
    for column in preprocessor.columns:
        if column.part and not (column.part in DATE_PARTS and column.date_format in DATE_TITLES):
            raise KeyError(column.part)


def load_preprocessor(saved: dict[str, Any]) -> Preprocessor:
    """Load what `to_json` wrote; raise InputError for anything else."""
    fields = {name: value for name, value in saved.items() if name != "kind"}
    try:
        loaded = cast(Preprocessor, from_dict(PREPROCESSORS[saved["kind"]], fields, "inputs."))
        if isinstance(loaded, TablePreprocessor):
            _check_dates(loaded)
        if (
            isinstance(loaded, FeaturePreprocessor)
            and not np.isfinite([loaded.low, loaded.high]).all()
        ):
            raise TypeError("not grey levels")
        return loaded
    except (KeyError, TypeError, RecursionError):
        fix = "restore it, or fit again with a different --out"
        raise InputError(f"fit.json does not describe the inputs; {fix}") from None
