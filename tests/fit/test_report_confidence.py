import dataclasses
from typing import Any

import numpy as np
import pytest
from fit_folders import class_rows, fitted_for, table_samples, target_rows

from l2i.fit.artifact import FitRows
from l2i.fit.impute import impute
from l2i.fit.report.confidence import Card, build_confidence_section, make_cards


def shown(rows: FitRows, **changes: Any) -> tuple[list[Card], list[Card]]:
    fitted = fitted_for(rows, **changes)
    return make_cards(fitted, rows, impute(fitted, rows))


def surely(rows: FitRows, logits: list[list[float]]) -> FitRows:
    """With these logits for the first unlabelled rows."""
    first = np.flatnonzero(rows.split_names == "unlabeled")[: len(logits)]
    outputs = {name: values.copy() for name, values in rows.outputs.items()}
    for values in outputs.values():
        values[first] = logits
    return dataclasses.replace(rows, outputs=outputs)


def test_the_most_sure_are_at_most_three_a_class() -> None:
    logits = (
        [[9.0 - i / 10, 0, 0] for i in range(5)]
        + [[0, 8.0, 0]]
        + [[0, 0, 0.1 * i] for i in range(6)]
    )
    rows = surely(class_rows(), logits)
    most, least = shown(rows, previews=table_samples(rows, 12), temperature=1.0)
    assert [card.labels for card in most] == [["adelie"]] * 3 + [["chinstrap"]]
    assert len(least) == 6  # all of one class, and all shown


@pytest.mark.parametrize(
    ("logit", "said"), [(30.0, "> 0.999"), (8.5, "> 0.999"), (7.8, "0.999"), (2.0, "0.787")]
)
def test_no_probability_is_rounded_to_one(logit: float, said: str) -> None:
    rows = surely(class_rows(), [[logit, 0, 0]])
    (card,), _ = shown(rows, previews=table_samples(rows, 1), temperature=1.0)
    assert card.confidence == f"confidence {said}"


def test_targets_have_a_line_each() -> None:
    rows = target_rows(2)
    most, _ = shown(rows)
    assert [line.split(" ± ")[0].rsplit(" ", 1)[0] for line in most[0].labels] == [
        "body mass",
        "flipper length",
    ]
    assert most[0].confidence.startswith("predicted std 0.")
    assert most[0].confidence.endswith(" × the target's")
    rows = target_rows(6)
    most, _ = shown(rows, targets=tuple("abcdef"))
    assert most[0].labels[4:] == ["and 2 more"]


def test_targets_move_where_classes_change() -> None:
    for rows, words in (
        (class_rows(), "changed during training (20 evaluations)"),
        (target_rows(1), "moved by more than 0.1 std"),
    ):
        moved = dataclasses.replace(rows, change_counts=np.ones(len(rows.ids), dtype=np.int64))
        fitted = fitted_for(moved)
        actual = build_confidence_section(fitted, moved, impute(fitted, moved))
        assert actual is not None
        assert actual.facts[2][0] == "100 %" and words in actual.facts[2][1]
