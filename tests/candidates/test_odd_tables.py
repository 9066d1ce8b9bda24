"""Tables that are tiny, grouped, weighted or wide: nothing raises, and nothing is split apart."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from tables_made_up import class_rows, target_rows
from torch import nn

from l2i.candidates.base import Candidate, Level, Score, Skipped, TableRows, predict
from l2i.candidates.catalog import CANDIDATE_NAMES, MODELS, list_candidates
from l2i.candidates.choice import IMPUTE_FOLDS
from l2i.candidates.cross_validation import draw_folds, predict_unlabeled
from l2i.candidates.models import fit_boosted_trees, fit_extra_trees, make_logistic
from l2i.candidates.predictors import LinearPredictor
from l2i.candidates.selection import _is_clearly_lower, select_candidate
from l2i.candidates.semi_supervised import SPREADING_NEIGHBORS, Spreading
from l2i.candidates.storage import build_model, describe_model
from l2i.data.transforms.image import ColumnLayout
from l2i.errors import DamagedFile, InputError
from l2i.fit import options
from l2i.fit.table_record import FolderRecord

LAYOUT = ColumnLayout(torch.arange(4), torch.ones(4, dtype=torch.bool), 4)


class Raising(Candidate):
    """Fails as scikit-learn does."""

    name = title = "raising"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        raise self.error


class Seeing(Candidate):
    """Notes the groups of unlabelled rows that it was fitted to."""

    name = title = "seeing"
    level = Level.SEMI_SUPERVISED

    def __init__(self) -> None:
        self.groups: list[set[str]] = []

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        assert rows.unlabeled_groups is not None
        self.groups.append(set(rows.unlabeled_groups.tolist()))
        return LinearPredictor(weight=torch.zeros(4, 3), bias=torch.zeros(3))


@pytest.mark.parametrize(("labels", "classes"), [(8, 2), (12, 4), (6, 2)])
def test_groups_with_few_labels_a_class_have_folds(labels: int, classes: int) -> None:
    rows = class_rows(labels, classes=classes)
    rows = dataclasses.replace(rows, groups=np.arange(labels))
    for folds in draw_folds(rows, 0):
        assert sorted(np.concatenate([test for _, test in folds])) == list(range(labels))


def test_the_largest_seed_has_folds() -> None:
    assert len(draw_folds(class_rows(40), 2**32 - 1)) == 3


def test_many_rows_with_a_class_of_one_label_are_boosted() -> None:
    """Early stopping would set rows aside, which a class with one label does not have."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12_000, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    y[0] = 2
    rows = dataclasses.replace(
        class_rows(), x=x, y=y, weight=np.ones(len(x)), unlabeled=x[:0], unlabeled_weight=x[:0, 0]
    )
    outputs = predict(fit_boosted_trees(rows, 0), x)
    assert (outputs.argmax(axis=1) == y)[1:].mean() > 0.99


@pytest.mark.parametrize(("labels", "unlabeled"), [(6, 2), (7, 1), (2, 1)])
def test_labels_spread_over_fewer_rows_than_neighbours(labels: int, unlabeled: int) -> None:
    rows = class_rows(labels, unlabeled, classes=2)
    assert len(rows.x) + unlabeled <= SPREADING_NEIGHBORS + 2
    folds = draw_folds(rows, 0)[:1] or [[(np.arange(labels), np.arange(labels))]]
    for train, test in folds[0]:
        model = Spreading().fit(rows.take(train), 0)
        assert np.isfinite(predict(model, rows.x[test])).all()


def test_a_candidate_that_cannot_be_fitted_is_skipped_and_wrong_settings_are_not() -> None:
    rows, plain = class_rows(40), next(m for m in MODELS if m.name == "majority")
    bad = Raising(ValueError("it was\nnot to be"))
    selection = select_candidate([plain, bad], rows, 0)
    assert selection.chosen == ("majority",)
    assert selection.skipped[0].reason == "it could not be fitted (it was not to be)"
    with pytest.raises(InputError, match="steps"):
        select_candidate([plain, Raising(InputError("steps are wrong"))], rows, 0)


def test_unlabelled_rows_of_a_group_are_imputed_together() -> None:
    rows, names = class_rows(30, 40), np.array([f"patient {i // 4}" for i in range(40)])
    rows = dataclasses.replace(rows, groups=np.arange(30), unlabeled_groups=names)
    seeing = Seeing()
    predict_unlabeled([seeing], rows, 0, IMPUTE_FOLDS)
    assert len(seeing.groups) == IMPUTE_FOLDS
    assert all(len(seen) < 10 for seen in seeing.groups)
    assert [sum(name not in seen for seen in seeing.groups) for name in set(names)] == [1] * 10


def test_a_difference_in_one_group_is_not_clear_although_it_has_many_rows() -> None:
    """Ten rows of one group of five are better: by row three standard errors, by group one."""
    ours, theirs, groups = np.ones(50), np.ones(50), np.arange(50) // 10
    ours[:10] = 0
    assert _is_clearly_lower(ours, theirs, np.ones(50), None)
    assert not _is_clearly_lower(ours, theirs, np.ones(50), groups)
    ours[10:20] = 0
    assert _is_clearly_lower(ours, theirs, np.ones(50), groups)


def test_a_repeated_row_costs_no_candidate_and_many_do() -> None:
    rows = class_rows(60)
    weight = np.ones(60)
    weight[0] = 2
    for repeated, is_weighted in ((weight, False), (np.where(np.arange(60) % 2, 5.0, 1.0), True)):
        some = dataclasses.replace(rows, weight=repeated)
        assert some.is_weighted == is_weighted
        for name in ("nearest-neighbors", "gaussian-process", "label-spreading"):
            model = next(m for m in MODELS if m.name == name)
            assert (model.find_obstacle(some) is not None) == is_weighted


def make_wide(rows: int, columns: int, classes: int) -> TableRows:
    x = np.zeros((rows, columns), dtype=np.float32)
    return dataclasses.replace(
        class_rows(), x=x, y=np.arange(rows) % classes, weight=np.ones(rows), num_classes=classes
    )


def test_no_model_is_begun_that_takes_longer_than_the_time_left() -> None:
    """Trees of wide tables with many classes take minutes, and are known to."""
    models = {m.name: m for m in MODELS}
    seconds = {
        (name, size): models[name].expect_seconds(make_wide(*size), 5, {})
        for name in ("boosted-trees", "extra-trees")
        for size in ((300, 20, 2), (700, 200, 8), (50_000, 200, 20))
    }
    assert seconds["boosted-trees", (300, 20, 2)] < 3 > seconds["extra-trees", (300, 20, 2)]
    assert 10 < seconds["boosted-trees", (700, 200, 8)] < 60
    assert seconds["boosted-trees", (50_000, 200, 20)] > 60
    wide = make_wide(10_000, 2000, 10)
    assert models["nearest-neighbors"].expect_seconds(wide, 5, {}) > 60
    spreading = dataclasses.replace(wide.take(np.arange(200)), unlabeled=wide.x)
    assert models["label-spreading"].expect_seconds(spreading, 5, {}) > 60
    assert models["label-spreading"].expect_seconds(make_wide(5000, 20, 2), 5, {}) < 3
    logistic = Score(models["logistic-regression"], np.zeros(0), np.zeros(0), 20.0, 0.0)
    known = {"logistic-regression": logistic}
    assert models["logistic-regression-weak"].expect_seconds(wide, 5, known) == 20
    assert models["self-training"].expect_seconds(spreading, 5, known) > 60
    assert 60 < models["gaussian-process"].expect_seconds(make_wide(300, 20, 10), 5, {}) < 300
    majority, trees = models["majority"], models["boosted-trees"]
    selection = select_candidate([majority, trees], make_wide(2000, 300, 20), 0, minutes=0.1)
    assert selection.skipped == (
        Skipped("boosted-trees", "it would take longer than the time left"),
    )


def test_guessing_is_always_compared() -> None:
    names = [c.name for c in list_candidates(None, LAYOUT, "classification", ("extra-trees",))]
    assert names == ["majority", "extra-trees"]
    assert [c.name for c in list_candidates(None, LAYOUT, "regression", ("ridge",))] == [
        "mean",
        "ridge",
    ]


def test_the_help_names_every_candidate() -> None:
    text = inspect.getsource(options).partition("all that suit:")[2].partition('"""')[0]
    assert {name.strip() for name in text.rstrip(".").split(",")} == {*CANDIDATE_NAMES}


SIZES = {"num_inputs": 4, "num_outputs": 3, "is_classifier": True}


@pytest.mark.parametrize("fit", [fit_extra_trees, fit_boosted_trees, make_logistic(1.0)])
def test_tensors_that_no_model_has_are_refused(fit) -> None:  # type: ignore[no-untyped-def]
    """Not finite, of another type, or unknown: a fit folder may come from anyone."""
    description, tensors = describe_model(fit(class_rows(), 0))
    damages = [{"bias": tensors["bias"] * float("nan")}, {"other": torch.zeros(1)}]
    damages += [{n: t.long() if t.is_floating_point() else t.double()} for n, t in tensors.items()]
    for damage in damages:
        with pytest.raises(ValueError, match="tensors are not"):
            build_model(description, tensors | damage, **SIZES)


def test_a_network_of_any_depth_is_not_built() -> None:
    model = {"name": "mlp", "width": 8, "depth": 10**7}
    with pytest.raises(InputError, match=r"model\.depth"):
        build_model({"kind": "network", "model": model}, {}, **SIZES)


def test_records_of_other_rows_are_damage(tmp_path: Path) -> None:
    record, rows = FolderRecord(tmp_path), target_rows(40)
    plain = [m for m in MODELS if m.name in ("mean", "ridge")]
    select_candidate(plain, rows, 0, record=record)
    assert record.count() == 2
    again = select_candidate(plain, rows, 0, record=record)
    assert_array_equal(again.scores["ridge"].outputs, _load(record, "ridge"))
    with pytest.raises(DamagedFile, match="record of 'mean' is damaged"):
        select_candidate(plain, target_rows(41), 0, record=record)
    broken = again.scores["ridge"]._replace(outputs=np.full((3, 40, 1), np.nan))
    assert isinstance(broken, Score)
    record.save(broken)
    with pytest.raises(DamagedFile, match=r"ridge\.safetensors is damaged"):
        record.load("ridge")


def _load(record: FolderRecord, name: str) -> np.ndarray:
    found = record.load(name)
    assert found is not None and not isinstance(found, Skipped)
    return np.asarray(found.outputs)
