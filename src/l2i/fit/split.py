"""Split user data into rows to train on, to select by and to test on, and encode it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2i.config import Run
from l2i.data.samples import Samples, Splits, check_target_range
from l2i.data.splitting import group_by_class, split_holdout
from l2i.data.transforms.image import ColumnLayout
from l2i.data.transforms.text import Vocabulary
from l2i.errors import InputError
from l2i.fit.formatting import format_names
from l2i.fit.options import DEFAULT_SHARE, FitOptions
from l2i.fit.preprocess import (
    Column,
    FeaturePreprocessor,
    ImagePreprocessor,
    Preprocessor,
    TablePreprocessor,
    TextPreprocessor,
    describe_full_texts,
    fit_column,
    fit_date_columns,
)
from l2i.fit.projection import Projection, fit_projection
from l2i.fit.readers.columns import find_blank
from l2i.fit.readers.source import Source
from l2i.models.frozen_encoder import GREY_MEAN, GREY_STD
from l2i.quantity import CountOrFraction, resolve_count

if TYPE_CHECKING:
    import pandas as pd

Mask = NDArray[np.bool_]  # [N], of rows
MAX_SMALL_SET_ROWS = 40  # labelled rows, up to which every row may be a class
MAX_EVAL_ROWS = 2000  # set aside by a fraction: more would hardly be more precise


class PreparedData(NamedTuple):
    """A source with the encoded inputs of every row, and the split."""

    source: Source
    preprocessor: Preprocessor
    split_names: NDArray[np.str_]
    x: Tensor
    y: Tensor
    splits: Splits
    offset: NDArray[np.float64]
    """[D], regression: subtracted from targets so that float32 holds their digits; else [0]."""
    projection: Projection | None = None
    """From features of images to `x`."""

    def rows_to_device(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """Return every row, on a device."""
        return Samples(self.x, self.y).to(device, dtype, keep_dtype=self.splits.has_integer_inputs)


def prepare_data(
    source: Source, options: FitOptions, run: Run, *, is_cross_validated: bool = False
) -> PreparedData:
    """Split, then encode; preprocessing is fitted to the rows that are trained on.

    If the model is chosen by cross-validation, no row is set aside unless requested.
    """
    default = 0 if is_cross_validated else DEFAULT_SHARE
    validation, test = (
        default if count is None else count for count in (options.validation, options.test)
    )
    split_names = assign_splits(
        source.given_labels, validation=validation, test=test, seed=run.seed, groups=source.groups
    )
    if not is_cross_validated and "validation" not in split_names:
        fix = "set --validation to 1 or more rows, or to a fraction such as 0.2"
        raise InputError(f"there are no validation rows to select a model on; {fix}")
    is_train = np.isin(split_names, ("labeled", "unlabeled"))
    if source.features is not None:
        assert isinstance(source.inputs, np.ndarray)
        projection = fit_projection(source.inputs, np.flatnonzero(is_train))
        x = projection.project(source.inputs)
        source = dataclasses.replace(source, inputs=x.numpy())  # features take five times as much
        assert source.features is not None
        data = assemble_data(source, source.features, split_names, x, run)
        return data._replace(projection=projection)
    if isinstance(source.inputs, np.ndarray):
        images = ImagePreprocessor.fit(source.inputs[is_train])
        if options.fine_tune:  # as the encoder's images were standardised
            mean, std = (GREY_MEAN,) * 3, (GREY_STD,) * 3
            images = dataclasses.replace(images, mean=mean, std=std)
        x = torch.from_numpy(images.to_grey_levels(source.inputs))
        return assemble_data(source, images, split_names, x, run)
    source = _drop_blank_columns(source, is_train)
    rows = source.inputs[is_train]
    if source.encoder is None:
        table = TablePreprocessor(columns=_fit_columns(rows, source))
        x = torch.from_numpy(table(source.inputs))
        return assemble_data(source, table, split_names, x, run)
    texts = TextPreprocessor.fit(rows, source.encoder, run.data.text)
    tokenizer = texts.tokenizer
    x = tokenizer(texts.join_texts(source.inputs))
    notes = (*source.notes, *describe_full_texts(x, tokenizer))
    source = dataclasses.replace(source, notes=notes)
    vocabulary = tokenizer.make_vocabulary(x[torch.from_numpy(is_train)])
    return assemble_data(source, texts, split_names, x, run, vocabulary)


def _fit_columns(rows: pd.DataFrame, source: Source) -> tuple[Column, ...]:
    """Fit the encoding of each column to the rows that are trained on."""
    columns: list[Column] = []
    for name, kind in source.kinds.items():
        if kind == "date":
            columns += fit_date_columns(rows[name], source.date_formats[name])
        else:
            columns.append(fit_column(rows[name], kind))
    return tuple(columns)


def assign_splits(
    labels: NDArray[Any],
    *,
    validation: CountOrFraction,
    test: CountOrFraction,
    seed: int,
    groups: NDArray[np.str_] | None = None,
) -> NDArray[np.str_]:
    """Return the split of each row (a SplitName), for labels as in `Source.given_labels`.

    Rows are set aside such that classes, or small and large targets, keep their shares, and at
    least one row of each class is trained on. Of `groups`, whole ones are set aside, for testing
    only, until they have enough labelled rows.
    """
    is_classification = labels.ndim == 1
    is_labeled = labels >= 0 if is_classification else ~np.isnan(labels).any(axis=1)
    split_names = np.where(is_labeled, "labeled", "unlabeled").astype("<U10")
    num_labeled = int(is_labeled.sum())
    num_validation = _resolve_split_count(validation, num_labeled, "validation")
    num_test = _resolve_split_count(test, num_labeled, "test")
    generator = np.random.default_rng(seed)
    available = generator.permutation(np.flatnonzero(is_labeled))
    if groups is not None and num_test:
        split_names[_draw_groups(groups, is_labeled, num_test, generator)] = "test"
        return split_names
    if is_classification:
        classes, first_rows = np.unique(labels[available], return_index=True)
        _check_class_count(len(classes), num_labeled)
        available = np.delete(available, first_rows)  # one of each class stays
    targets = labels[available] if is_classification else labels[available, 0]
    available = available[np.argsort(targets, kind="stable")]
    total = num_validation + num_test
    if total > len(available) - (not is_classification):
        request = f"for {num_validation} validation and {num_test} test rows"
        fix = "label more rows, or lower --validation and --test"
        raise InputError(f"{num_labeled:,} labelled rows are too few {request}; {fix}")
    if total:  # evenly spread
        places = (np.arange(total) + generator.random()) * len(available) / total
        selected = available[places.astype(int)]
        is_test = np.diff(np.arange(total + 1) * num_test // total) > 0
        split_names[selected[is_test]], split_names[selected[~is_test]] = "test", "validation"
    return split_names


def _draw_groups(
    groups: NDArray[np.str_], is_labeled: Mask, num_rows: int, generator: np.random.Generator
) -> Mask:
    """Return the labelled rows of groups that have enough of them, drawn at random."""
    names, index = np.unique(groups[is_labeled], return_inverse=True)
    order = generator.permutation(len(names))
    totals = np.cumsum(np.bincount(index)[order])
    num_drawn = int((totals < num_rows).sum()) + 1
    if num_drawn > len(names) - 2:
        fix = "lower --test, or label rows of more groups"
        raise InputError(f"{len(names)} groups are too few to set {num_rows} rows aside; {fix}")
    return is_labeled & np.isin(groups, names[order[:num_drawn]])


def _resolve_split_count(requested: CountOrFraction, num_labeled: int, name: str) -> int:
    is_fraction = isinstance(requested, float)
    if not requested >= 0 or (is_fraction and requested >= 1):  # NaN, too
        allowed = "a whole number of rows, or a fraction from 0.0 to less than 1.0"
        raise InputError(f"--{name} {requested} must be {allowed}")
    if not is_fraction or not requested:
        return int(requested)
    return min(max(1, resolve_count(requested, num_labeled)), MAX_EVAL_ROWS)


def _check_class_count(num_classes: int, num_labeled: int) -> None:
    """Refuse a target with nearly as many classes as rows."""
    if 2 * num_classes > num_labeled > MAX_SMALL_SET_ROWS:
        counts = f"{num_classes:,} classes in {num_labeled:,} labelled rows"
        fix = "is it the right column? For a numeric target, use --task regression"
        raise InputError(f"the target has {counts}: {fix}")


def _drop_blank_columns(source: Source, is_train: NDArray[np.bool_]) -> Source:
    """Drop columns that are blank in all rows trained on: nothing can be learned about them."""
    assert not isinstance(source.inputs, np.ndarray)
    rows = source.inputs[is_train]
    blank = [name for name in source.kinds if find_blank(rows[name]).all()]
    if not blank:
        return source
    if len(blank) == len(source.kinds):
        raise InputError("every input column is blank in the training rows; add more rows")
    note = f"ignored (blank in all training rows): {format_names(blank)}"
    kinds = {name: kind for name, kind in source.kinds.items() if name not in blank}
    return dataclasses.replace(
        source, kinds=kinds, inputs=source.inputs[list(kinds)], notes=(*source.notes, note)
    )


def assemble_data(
    source: Source,
    preprocessor: Preprocessor,
    split_names: NDArray[np.str_],
    x: Tensor,
    run: Run,
    vocabulary: Vocabulary | None = None,
) -> PreparedData:
    """Divide encoded rows into the five sets of a run."""
    labels, offset = source.given_labels, np.zeros(1)
    classes = None if source.classes is None else len(source.classes)
    if classes is None and not source.points:  # float32 has too few digits for a date in seconds
        check_target_range(labels[split_names != "unlabeled"], source.target_names)
        offset = np.asarray(labels[split_names == "labeled"].mean(axis=0), dtype=np.float64)
    y = torch.from_numpy(labels - offset).float() if classes is None else torch.from_numpy(labels)
    rows = Samples(x, y)
    labeled, unlabeled, validation, test = (
        rows.take(torch.from_numpy(np.flatnonzero(split_names == name)))
        for name in ("labeled", "unlabeled", "validation", "test")
    )
    train_rows = holdout_rows = torch.arange(len(labeled.x))
    if run.l2i.holdout == "separate" and run.l2i.update != "off":
        groups = split_holdout(group_by_class(labeled.y, train_rows, classes))
        train_rows, holdout_rows = map(torch.cat, groups)
    normalization, columns = None, None
    if isinstance(preprocessor, ImagePreprocessor):
        normalization = preprocessor.normalization
    if isinstance(preprocessor, TablePreprocessor):
        columns = preprocessor.column_layout
    if isinstance(preprocessor, FeaturePreprocessor):
        width = x.shape[1]
        columns = ColumnLayout(torch.arange(width), torch.ones(width, dtype=torch.bool), width)
    splits = Splits(
        labeled=labeled.take(train_rows),
        unlabeled=unlabeled,
        holdout=labeled.take(holdout_rows),
        validation=validation,
        test=test,
        classes=classes,
        has_landmarks=source.points,
        normalization=normalization,
        columns=columns,
        vocabulary=vocabulary,
    )
    return PreparedData(source, preprocessor, split_names, x, y, splits, offset)
