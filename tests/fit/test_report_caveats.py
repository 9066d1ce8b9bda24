import dataclasses
from typing import Any

import numpy as np
import pytest
from fit_folders import class_rows, fitted_for, target_rows

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.impute import impute
from l2i.fit.report.caveats import find_caveats

CALM = {"labeled": 120, "unlabeled": 600, "validation": 400, "test": 100}


def actual(rows: FitRows, **changes: Any) -> list[str]:
    fitted: FitArtifact = fitted_for(rows, **changes)
    return [caution.finding for caution in find_caveats(fitted, rows, impute(fitted, rows))]


def calm() -> FitRows:
    return class_rows(counts=CALM)


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    assert actual(calm()) == []
    assert (
        actual(target_rows(counts=CALM, noise={"supervised": 2.4, "baseline": 2.0, "l2i": 1.5}))
        == []
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"covariate_shift_auc": 0.71}, "distributed differently from the labelled"),
        ({"mask_rate": 0.09}, "Only 9.0 % of the unlabelled rows"),
        ({"temperature": 0.05}, "The calibrated temperature is"),
        ({"temperature": 19.99}, "The calibrated temperature is"),
    ],
)
def test_a_field_out_of_bounds_is_a_caution(changes: dict[str, Any], words: str) -> None:
    texts = [text for text in actual(calm(), **changes) if "overconfident" not in text]
    assert len(texts) == 1 and words in texts[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"covariate_shift_auc": 0.7},
        {"covariate_shift_auc": None},
        {"mask_rate": 0.1},
        {"mask_rate": None},
        {"temperature": 18.0},
    ],
)
def test_a_field_within_bounds_is_none(changes: dict[str, Any]) -> None:
    assert actual(calm(), **changes) == []


def test_the_scale_of_spreads_has_bounds_too() -> None:
    rows = target_rows(1)
    assert any("scale of the standard deviations" in text for text in actual(rows, std_scale=50.0))
    assert not any(
        "scale of the standard deviations" in text for text in actual(rows, std_scale=2.0)
    )


def labelled_as(rows: FitRows, counts: list[int]) -> FitRows:
    given = rows.given_labels.copy()
    given[rows.split_names == "labeled"] = np.repeat(np.arange(len(counts)), counts)
    return dataclasses.replace(rows, given_labels=given)


@pytest.mark.parametrize(
    ("counts", "uneven"), [([60, 40, 20], False), ([66, 33, 21], True), ([60, 60, 0], True)]
)
def test_uneven_labels_are_told(counts: list[int], uneven: bool) -> None:
    assert any("imbalanced" in text for text in actual(labelled_as(calm(), counts))) is uneven


def imputed_as(rows: FitRows, shares: list[float]) -> FitRows:
    """Rows whose imputed labels have such shares."""
    blank = np.flatnonzero(rows.split_names == "unlabeled")
    labels = np.searchsorted(np.cumsum(shares), (np.arange(len(blank)) + 0.5) / len(blank))
    outputs = {name: values.copy() for name, values in rows.outputs.items()}
    for values in outputs.values():
        values[blank] = 9.0 * (labels[:, None] == np.arange(len(shares)))
    return dataclasses.replace(rows, outputs=outputs)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([0.96, 0.02, 0.02], "collapsed"),
        ([0.7, 0.2, 0.1], "class distribution of the imputed labels differs"),
        ([0.4, 0.3, 0.3], None),
    ],
)
def test_imputed_labels_that_pile_up_are_told(shares: list[float], words: str | None) -> None:
    texts = actual(imputed_as(labelled_as(calm(), [40, 40, 40]), shares))
    assert len(texts) == (words is not None)
    assert words is None or words in texts[0]


def test_one_class_of_labels_is_no_collapse() -> None:
    texts = actual(imputed_as(labelled_as(calm(), [120, 0, 0]), [1.0, 0.0, 0.0]))
    assert not any("collapsed" in text for text in texts)


def test_few_validation_rows_are_told() -> None:
    assert any(
        "29 validation rows, too few" in text
        for text in actual(class_rows(counts={**CALM, "validation": 29}))
    )
    assert any(
        "0 validation rows, too few" in text
        for text in actual(class_rows(counts={"labeled": 9, "unlabeled": 9}))
    )


def test_candidates_that_validation_cannot_tell_apart_are_told() -> None:
    close = {"supervised": 0.3, "baseline": 0.101, "l2i": 0.1}
    assert any(
        "do not separate the best" in text for text in actual(class_rows(counts=CALM, wrong=close))
    )
    assert not any("do not separate the best" in text for text in actual(calm()))


def held_out(right: int, wrong: int, confidence: float) -> FitRows:
    """Test rows of two classes that are all as sure."""
    rows = class_rows(
        classes=3, counts={"labeled": 9, "unlabeled": 30, "validation": 0, "test": right + wrong}
    )
    outputs = {name: values.copy() for name, values in rows.outputs.items()}
    held = rows.split_names == "test"
    said = (rows.given_labels[held] + (np.arange(right + wrong) < wrong)) % 3
    for values in outputs.values():
        values[held] = np.log(
            np.where(said[:, None] == np.arange(3), confidence, (1 - confidence) / 2)
        )
    return dataclasses.replace(rows, outputs=outputs)


@pytest.mark.parametrize(
    ("right", "wrong", "confidence", "bold"),
    [
        (80, 20, 0.95, True),
        (80, 20, 0.87, False),  # 7 points, and under two standard errors
        (955, 45, 0.999, False),  # many standard errors, and under 5 points
        (10, 9, 0.99, False),  # too few rows
        (10, 10, 0.99, True),
        (100, 0, 0.7, False),  # right more often than said
    ],
)
def test_labels_right_less_often_than_they_say_are_told(
    right: int, wrong: int, confidence: float, bold: bool
) -> None:
    texts = [
        text
        for text in actual(held_out(right, wrong, confidence), temperature=1.0)
        if "overconfident" in text
    ]
    assert len(texts) == bold
    assert not bold or f"on {right + wrong} validation and test rows" in texts[0]
