"""From rows to the sets of a run: what preprocessing sees, and which rows go where."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_up import source_of
from numpy.typing import NDArray

from l2i import InputError
from l2i.config import Run
from l2i.data.samples import Samples
from l2i.fit.options import FitOptions
from l2i.fit.preprocess import ImagePreprocessor, TablePreprocessor, TextPreprocessor
from l2i.fit.readers.source import Source
from l2i.fit.split import PreparedData, assign_splits, prepare_data
from tiny_encoder import reviews, tiny_encoder

ROWS = 60
TRUTH = np.arange(ROWS) % 3
GIVEN = np.where(np.arange(ROWS) < 30, TRUTH, -1)
SPLIT = assign_splits(GIVEN, validation=0.2, test=0.2, seed=0)
HELD_OUT = np.isin(SPLIT, ("validation", "test"))
TARGETS = np.where(np.arange(ROWS)[:, None] < 30, np.arange(ROWS)[:, None] * [1.0, -2.0], np.nan)


def prepared(source: Source, **run: Any) -> PreparedData:
    data = prepare_data(source, FitOptions(validation=0.2, test=0.2), Run(**run))
    if source.classes is not None:
        assert (data.split_names == SPLIT).all()
    return data


def mixed_frame() -> pd.DataFrame:
    """Numbers, categories and texts, with values in the held-out rows that no other row has."""
    numbers = np.where(HELD_OUT, 1e6, np.arange(ROWS) / 7)
    words = np.where(HELD_OUT, "secret", np.where(TRUTH == 0, "red", "blue"))
    texts = np.where(HELD_OUT, "whispered words", "plain talk")
    return pd.DataFrame({"n": numbers, "c": words, "t": texts})


MIXED = {"kinds": {"n": "number", "c": "category", "t": "text"}}


def test_scaling_and_vocabulary_are_learned_from_the_rows_trained_on_alone() -> None:
    data = prepared(source_of(mixed_frame(), GIVEN, **MIXED))
    assert isinstance(data.preprocessor, TablePreprocessor)
    number, category, text = data.preprocessor.columns
    seen = np.arange(ROWS)[~HELD_OUT] / 7
    assert (number.mean, number.std) == pytest.approx((seen.mean(), seen.std()))
    assert category.values == ("blue", "red")
    assert text.values == ("plain", "talk")
    unlabelled = np.arange(30, ROWS) / 7  # they are learned from, too
    assert number.mean > unlabelled.min() / 2 and SPLIT[30:].tolist() == ["unlabeled"] * 30


def test_brightness_is_learned_from_the_images_trained_on_alone() -> None:
    levels = np.where(HELD_OUT, 255, np.where(TRUTH == 0, 10, 40)).astype(np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (ROWS, 1, 4, 4)).copy()
    data = prepared(source_of(images, GIVEN))
    assert isinstance(data.preprocessor, ImagePreprocessor)
    seen = levels[~HELD_OUT].astype(float)
    assert data.preprocessor.mean == pytest.approx((seen.mean(),))
    assert data.preprocessor.std == pytest.approx((seen.std(),))
    assert (data.x.numpy() == images).all()
    raw = np.where(HELD_OUT, 9.0, TRUTH / 2)[:, None, None, None] * np.ones((1, 1, 4, 4))
    stretched = prepared(source_of(raw, GIVEN))
    assert isinstance(stretched.preprocessor, ImagePreprocessor)
    assert (stretched.preprocessor.low, stretched.preprocessor.high) == (0.0, 1.0)
    assert set(stretched.x[torch.from_numpy(~HELD_OUT)].unique().tolist()) == {0, 128, 255}


def test_word_statistics_and_length_of_texts_are_those_of_the_rows_trained_on(
    tmp_path: Path,
) -> None:
    tiny_encoder(tmp_path / "bert")
    words = [text for text, _ in reviews(ROWS)]
    frame = pd.DataFrame(
        {"t": [f"{t} " * 30 if HELD_OUT[i] else "the film" for i, t in enumerate(words)]}
    )
    source = source_of(frame, GIVEN, kinds={"t": "text"}, encoder=str(tmp_path / "bert"))
    run = {
        "data": dataclasses.replace(Run().data, text=dataclasses.replace(Run().data.text, length=0))
    }
    data = prepared(source, **run)
    assert isinstance(data.preprocessor, TextPreprocessor)
    assert data.preprocessor.length == 8 == data.x.shape[1]  # four tokens, rounded up
    tokenizer = data.preprocessor.tokenizer
    expected = tokenizer.make_vocabulary(data.x[torch.from_numpy(~HELD_OUT)])
    actual = data.splits.vocabulary
    assert actual is not None
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


def rows_in(samples: Samples) -> list[float]:
    """The row numbers that the only column of some samples holds, standardised."""
    assert isinstance(samples.x, torch.Tensor)
    return samples.x[:, 0].tolist()


def numbered(given: NDArray[Any], **changes: Any) -> Source:
    return source_of(pd.DataFrame({"n": np.arange(len(given), dtype=np.float64)}), given, **changes)


def test_every_set_of_a_run_has_its_own_rows_and_their_labels() -> None:
    data = prepared(numbered(GIVEN))
    all_rows = data.x[:, 0].numpy()
    for name in ("labeled", "unlabeled", "validation", "test"):
        samples, mask = getattr(data.splits, name), data.split_names == name
        assert rows_in(samples) == all_rows[mask].tolist()
        assert samples.y.tolist() == GIVEN[mask].tolist()
    assert rows_in(data.splits.holdout) == rows_in(data.splits.labeled)
    assert not set(rows_in(data.splits.unlabeled)) & set(all_rows[HELD_OUT])
    assert (data.splits.classes, data.splits.has_landmarks) == (3, False)
    assert data.splits.columns is not None and data.splits.normalization is None


def standardized(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values - values.mean(axis=0)) / values.std(axis=0)


def test_every_set_of_a_regression_has_its_own_rows_and_their_targets() -> None:
    data = prepare_data(numbered(TARGETS), FitOptions(validation=5, test=4), Run())
    assert data.splits.classes is None
    for name in ("labeled", "validation", "test"):
        mask, samples = data.split_names == name, getattr(data.splits, name)
        # however they are shifted and scaled for the network
        np.testing.assert_allclose(
            standardized(samples.y.double().numpy()), standardized(TARGETS[mask]), atol=1e-6
        )
        assert rows_in(samples) == data.x[torch.from_numpy(mask), 0].tolist()
    assert len(data.splits.unlabeled.x) == 30
    assert ((data.split_names == "validation").sum(), (data.split_names == "test").sum()) == (5, 4)


def test_a_separate_hold_out_set_shares_no_row_with_the_labelled_ones() -> None:
    together = prepared(numbered(GIVEN))
    l2i = dataclasses.replace(Run().l2i, holdout="separate", update="normalized")
    apart = prepared(numbered(GIVEN), l2i=l2i)
    labeled, holdout = set(rows_in(apart.splits.labeled)), set(rows_in(apart.splits.holdout))
    assert not labeled & holdout
    assert labeled | holdout == set(rows_in(together.splits.labeled))
    assert set(apart.splits.labeled.y.tolist()) == set(apart.splits.holdout.y.tolist()) == {0, 1, 2}
    off = prepared(numbered(GIVEN), l2i=dataclasses.replace(l2i, update="off"))
    assert rows_in(off.splits.labeled) == rows_in(together.splits.labeled)


def test_columns_blank_in_all_rows_trained_on_are_dropped_and_named() -> None:
    frame = mixed_frame().assign(lost=np.where(HELD_OUT, 1.0, np.nan))
    kinds = {**MIXED["kinds"], "lost": "number"}
    data = prepared(source_of(frame, GIVEN, kinds=kinds, notes=("before",)))
    assert isinstance(data.preprocessor, TablePreprocessor)
    assert [column.name for column in data.preprocessor.columns] == ["n", "c", "t"]
    assert list(data.source.kinds) == list(data.source.inputs) == ["n", "c", "t"]
    assert data.source.notes == ("before", "ignored (blank in all training rows): 'lost'")
    some = frame.assign(lost=np.where(np.arange(ROWS) % 2, 1.0, np.nan))
    kept = prepared(source_of(some, GIVEN, kinds=kinds))  # blank in some rows alone
    assert list(kept.source.kinds) == ["n", "c", "t", "lost"] and kept.source.notes == ()
    only = source_of(frame[["lost"]], GIVEN, kinds={"lost": "number"})
    with pytest.raises(InputError, match="every input column is blank in the training rows"):
        prepared(only)


def test_a_fit_without_validation_rows_is_refused() -> None:
    with pytest.raises(InputError, match="no validation rows to select a model on"):
        prepare_data(numbered(GIVEN), FitOptions(validation=0, test=3), Run())


def test_the_split_is_drawn_by_the_seed_of_the_run() -> None:
    options = FitOptions(validation=0.2, test=0.2)
    data = prepare_data(numbered(GIVEN), options, Run(seed=5))
    assert (data.split_names == assign_splits(GIVEN, validation=0.2, test=0.2, seed=5)).all()
    assert (data.split_names != SPLIT).any()


def test_all_rows_are_brought_to_a_device_in_their_order() -> None:
    data = prepared(numbered(GIVEN))
    rows = data.rows_to_device(torch.device("cpu"), torch.float64)
    assert isinstance(rows.x, torch.Tensor) and rows.x.dtype == torch.float64
    assert torch.equal(rows.x.float(), data.x) and torch.equal(rows.y, data.y)


@pytest.mark.parametrize(
    ("labels", "validation", "expected"), [(9, 0.2, 2), (12, 0.01, 1), (30, 0.5, 15), (20, 3, 3)]
)
def test_a_share_is_rounded_and_is_never_nothing(
    labels: int, validation: float, expected: int
) -> None:
    given = np.where(np.arange(40) < labels, np.arange(40) % 2, -1)
    split = assign_splits(given, validation=validation, test=0.0, seed=0)
    assert (split == "validation").sum() == expected
    assert not (split == "test").any()


def test_as_many_classes_as_rows_are_refused_unless_there_are_few() -> None:
    def split(classes: int, rows: int) -> NDArray[np.str_]:
        return assign_splits(np.arange(rows) % classes, validation=1, test=1, seed=0)

    assert set(split(20, 40)) == {"labeled", "validation", "test"}
    assert set(split(30, 40)) == {"labeled", "validation", "test"}
    assert set(split(21, 42)) == {"labeled", "validation", "test"}
    with pytest.raises(InputError, match="22 classes in 42 labelled rows: is it the right column"):
        split(22, 42)


def test_a_row_with_any_target_missing_is_no_labelled_row() -> None:
    given = np.arange(20.0)[:, None] * [1, 1]
    given[3, 1] = given[4, 0] = np.nan
    split = assign_splits(given, validation=3, test=3, seed=0)
    assert np.flatnonzero(split == "unlabeled").tolist() == [3, 4]


def test_regression_keeps_a_row_to_train_on() -> None:
    given = np.arange(6.0)[:, None]
    assert (assign_splits(given, validation=3, test=2, seed=0) == "labeled").sum() == 1
    with pytest.raises(InputError, match="too few"):
        assign_splits(given, validation=3, test=3, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_validation_and_test_rows_both_range_from_small_to_large_targets(seed: int) -> None:
    given = np.random.default_rng(seed).permutation(np.arange(120.0))[:, None]
    split = assign_splits(given, validation=30, test=30, seed=seed)
    for name in ("validation", "test"):
        values = np.sort(given[split == name, 0])
        assert len(values) == 30 and np.diff(values).max() <= 8
        assert values[0] < 8 and values[-1] > 111
