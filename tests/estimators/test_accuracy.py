"""Unlabelled rows help on embedded data sets; benchmarks/estimators_cpu compares all models."""

import pytest
from benchmarks.estimators_cpu.few_labels import FIRST_SEED, measure

pytestmark = pytest.mark.slow


def metrics(name: str, label: str, seeds: int = 5) -> list[float]:
    return [measure(name, label, seed)[0] for seed in range(FIRST_SEED, FIRST_SEED + seeds)]


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_unlabelled_rows_help_as_the_estimators_come(name: str) -> None:
    assert sum(metrics(name, "L2I estimator")) < sum(metrics(name, "network, labels only"))


def test_digits_from_40_labels_are_classified_better_than_by_label_spreading() -> None:
    (error,) = metrics("digits", "L2I estimator", seeds=1)
    assert error < 5.8 and error < metrics("digits", "LabelSpreading, kNN", seeds=1)[0]
