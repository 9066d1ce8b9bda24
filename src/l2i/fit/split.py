"""Which labelled rows are trained on, which are chosen by and which are measured on.

MERGED:
A person's data made ready for training: encoded inputs of every row, and the split.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2i.config import Run
from l2i.data.samples import Samples, Splits
from l2i.data.splitting import group_by_class, split_holdout
from l2i.data.transforms.text import Vocabulary
from l2i.errors import InputError
from l2i.fit.options import FitOptions, format_names
from l2i.fit.preprocess import (
    BLANK,
    ImagePreprocessor,
    Preprocessor,
    TablePreprocessor,
    TextPreprocessor,
    describe_truncation,
    fit_column,
)
from l2i.fit.readers.source import Source
from l2i.quantity import CountOrFraction, resolve_count

MAX_SMALL_SET_ROWS = 40  # labelled rows, up to which classes may have a row each
MAX_EVAL_ROWS = 2000  # rows set aside by a share: more would tell little more


def assign_splits(labels: NDArray[Any], *, validation: CountOrFraction, test: CountOrFraction, seed: int) -> NDArray[np.str_]:
    """The part of each row: unlabeled, labeled, validation or test; `given` as in `Rows`.

    Rows are set aside such that classes, or small and large targets, keep their shares, and one row of each class at
    least is trained on.
    """
    is_classification = labels.ndim == 1
    labeled_rows = np.flatnonzero(labels >= 0 if is_classification else ~np.isnan(labels).any(axis=1))
    split_names = np.where(np.isin(np.arange(len(labels)), labeled_rows), "labeled", "unlabeled").astype("<U10")
    split_counts = {name: _resolve_split_count(share, len(labeled_rows), name) for name, share in (("validation", validation), ("test", test))}
    generator = np.random.default_rng(seed)
    available = generator.permutation(labeled_rows)
    if is_classification:
        _, reserved = np.unique(labels[available], return_index=True)
        available = np.delete(available, reserved)  # one of each class stays
    available = available[np.argsort(labels[available] if is_classification else labels[available, 0], kind="stable")]
    total = sum(split_counts.values())
    num_distinct = len(np.unique(labels[labeled_rows]))
    if is_classification and 2 * num_distinct > len(labeled_rows) > MAX_SMALL_SET_ROWS:
        raise InputError(
            f"the target has {num_distinct:,} classes in {len(labeled_rows):,} labelled rows: is it the right column? "
            "For numbers, give --task regression"
        )
    if total > len(available) - (not is_classification):
        raise InputError(
            f"{len(labeled_rows):,} labelled rows are too few to set {split_counts['validation']} aside to choose by and "
            f"{split_counts['test']} to measure on; label more, or lower --validation and --test"
        )
    if not total:
        return split_names
    selected = available[((np.arange(total) + generator.random()) * len(available) / total).astype(int)]  # evenly spread
    is_test = (np.arange(total) * split_counts["test"]) // total != (np.arange(1, total + 1) * split_counts["test"]) // total
    split_names[selected[is_test]], split_names[selected[~is_test]] = "test", "validation"
    return split_names


def _resolve_split_count(requested: CountOrFraction, num_labeled: int, name: str) -> int:
    if not requested >= 0 or (isinstance(requested, float) and requested >= 1):  # not a number, too
        raise InputError(f"--{name} {requested} must be a whole number of rows, or a share from 0.0 to less than 1.0")
    return min(max(1, resolve_count(requested, num_labeled)), MAX_EVAL_ROWS) if isinstance(requested, float) and requested else int(requested)


class PreparedData(NamedTuple):
    """A source, made ready: encoded inputs of every row, and the split."""

    source: Source
    preprocessor: Preprocessor
    split_names: NDArray[np.str_]
    x: Tensor
    y: Tensor
    splits: Splits
    offset: NDArray[np.float64]
    """[D], regression: what was taken off the targets, so that float32 holds their digits; [0] otherwise."""

    def rows_to_device(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """Every row, on a device."""
        return Samples(self.x, self.y).to(device, dtype, keep_dtype=self.splits.has_integer_inputs)


def prepare_data(source: Source, options: FitOptions, run: Run) -> PreparedData:
    """Encode and split; what inputs look like is learned from rows that are trained on."""
    split_names = assign_splits(source.given_labels, validation=options.validation, test=options.test, seed=run.seed)
    if not (split_names == "validation").any():
        raise InputError("no rows are set aside to choose by; give --validation 1 or more, or a share such as 0.2")
    is_train = np.isin(split_names, ("labeled", "unlabeled"))
    if isinstance(source.inputs, np.ndarray):
        image_preprocessor = ImagePreprocessor.fit(source.inputs[is_train])
        return assemble_data(source, image_preprocessor, split_names, torch.from_numpy(image_preprocessor.to_grey_levels(source.inputs)), run)
    source = drop_blank_columns(source, is_train)
    if source.encoder is not None:
        return prepare_texts(source, source.encoder, split_names, is_train, run)
    rows = source.inputs[is_train]
    table_preprocessor = TablePreprocessor(columns=tuple(fit_column(rows[name], kind) for name, kind in source.kinds.items()))
    return assemble_data(source, table_preprocessor, split_names, torch.from_numpy(table_preprocessor(source.inputs)), run)


def prepare_texts(source: Source, encoder: str, split_names: NDArray[np.str_], is_train: NDArray[np.bool_], run: Run) -> PreparedData:
    """Texts as token ids; how long they are, and which words say little, is learned from rows that are trained on."""
    assert not isinstance(source.inputs, np.ndarray)
    preprocessor = TextPreprocessor.fit(source.inputs[is_train], encoder, run.data.text)
    tokenizer = preprocessor.tokenizer
    ids = tokenizer(preprocessor.join_texts(source.inputs))
    source = dataclasses.replace(source, notes=(*source.notes, *describe_truncation(ids, tokenizer)))
    return assemble_data(source, preprocessor, split_names, ids, run, tokenizer.make_vocabulary(ids[torch.from_numpy(is_train)]))


def drop_blank_columns(source: Source, is_train: NDArray[np.bool_]) -> Source:
    """Without the columns that are blank in all rows that are trained on: nothing can be learned of them."""
    assert not isinstance(source.inputs, np.ndarray)
    rows = source.inputs[is_train]
    blank = [name for name in source.kinds if (rows[name].isna() | (rows[name] == BLANK)).all()]
    if not blank:
        return source
    if len(blank) == len(source.kinds):
        raise InputError("no column holds anything in the rows that are trained on; give more rows")
    note = f"blank in all rows that are trained on, left out: {format_names(blank)}"
    kinds = {name: kind for name, kind in source.kinds.items() if name not in blank}
    return dataclasses.replace(source, kinds=kinds, inputs=source.inputs[list(kinds)], notes=(*source.notes, note))


def compute_offset(targets: NDArray[Any], *, center: bool) -> NDArray[np.float64]:
    """The mean of each target, where targets are to be `around` 0: float32 has too few digits for a date in seconds."""
    return np.asarray(targets.mean(axis=0), dtype=np.float64) if center else np.zeros(1)


def assemble_data(
    source: Source, preprocessor: Preprocessor, split_names: NDArray[np.str_], x: Tensor, run: Run, tokens: Vocabulary | None = None
) -> PreparedData:
    """The five sets of a run, and all rows in a piece."""
    classes = None if source.classes is None else len(source.classes)
    offset = compute_offset(source.given_labels[split_names == "labeled"], center=classes is None and not source.points)
    y = torch.from_numpy(source.given_labels - offset).float() if classes is None else torch.from_numpy(source.given_labels).long()
    all_samples = Samples(x, y)
    samples_by_split = {
        split_name: all_samples.take(torch.from_numpy(np.flatnonzero(split_names == split_name))) for split_name in np.unique([*split_names, "unlabeled", "test"])
    }
    labeled = samples_by_split["labeled"]
    train_rows = holdout_rows = torch.arange(len(labeled.x))
    if run.l2i.holdout == "separate" and run.l2i.update != "off":
        train_rows, holdout_rows = (torch.cat(groups) for groups in split_holdout(group_by_class(labeled.y, train_rows, classes)))
    splits = Splits(
        labeled=labeled.take(train_rows),
        unlabeled=samples_by_split["unlabeled"],
        holdout=labeled.take(holdout_rows),
        validation=samples_by_split["validation"],
        test=samples_by_split["test"],
        classes=classes,
        has_landmarks=source.points,
        normalization=preprocessor.normalization if isinstance(preprocessor, ImagePreprocessor) else None,
        columns=preprocessor.column_layout if isinstance(preprocessor, TablePreprocessor) else None,
        vocabulary=tokens,
    )
    return PreparedData(source, preprocessor, split_names, x, y, splits, offset)
