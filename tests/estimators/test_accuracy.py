"""Unlabelled rows help on sets that scikit-learn embeds; examples/few_labels.py shows all."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import few_labels

pytestmark = pytest.mark.slow


def metrics(name: str, label: str, seeds: int = 5) -> list[float]:
    make = few_labels.candidates(name)[label]
    return [
        few_labels.measured(name, label, make, seed)[0]
        for seed in range(few_labels.FIRST, few_labels.FIRST + seeds)
    ]


@pytest.mark.parametrize(
    ("name", "ours"), [("wine", "L2IClassifier()"), ("diabetes", "L2IRegressor()")]
)
def test_unlabelled_rows_help_as_the_estimators_come(name: str, ours: str) -> None:
    assert sum(metrics(name, ours)) < sum(metrics(name, "  on the labels alone"))


def test_digits_from_40_labels_are_classified_better_than_by_label_spreading() -> None:
    (error,) = metrics("digits", "L2IClassifier()", seeds=1)
    assert error < 5.8 and error < metrics("digits", "LabelSpreading, kNN", seeds=1)[0]
