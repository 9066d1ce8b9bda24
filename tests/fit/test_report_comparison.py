import dataclasses
import itertools
import re

import numpy as np
import pytest
from fit_folders import class_rows, fitted_for, target_rows, without

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.formatting import format_significant
from l2i.fit.report.charts import compute_nice_ticks
from l2i.fit.report.comparison import (
    compute_row_errors,
    estimate_difference,
    estimate_metric,
    mask_known_labels,
)
from l2i.fit.report.confidence import (
    bin_by_confidence,
    bin_by_std,
    build_calibration_section,
    build_confusion_section,
    compute_ece,
    count_confusions,
    draw_scatters,
)
from l2i.fit.report.verdict import build_verdict


def said(rows: FitRows, fitted: FitArtifact | None = None) -> list[str]:
    return [
        str(s)
        for s in build_verdict(fitted_for(rows) if fitted is None else fitted, rows).sentences
    ]


def test_paired_difference_of_classes_is_numpys() -> None:
    draw = np.random.default_rng(0)
    ours, theirs = ((draw.random(200) < p).astype(float) for p in (0.1, 0.25))
    actual = estimate_difference(ours, theirs, is_classification=True)
    gap = 100 * (ours - theirs)
    assert actual.value == pytest.approx(gap.mean())
    assert actual.standard_error == pytest.approx(gap.std(ddof=1) / np.sqrt(200))
    assert actual.is_significant


def test_paired_difference_of_roots_is_the_bootstraps() -> None:
    draw = np.random.default_rng(1)
    common = draw.gamma(2, 1, 400)
    ours, theirs = common * draw.gamma(9, 0.1, 400), common * draw.gamma(9, 0.13, 400)
    actual = estimate_difference(ours, theirs, is_classification=False)
    picks = draw.integers(400, size=(4000, 400))
    drawn = np.sqrt(ours[picks].mean(axis=1)) - np.sqrt(theirs[picks].mean(axis=1))
    assert actual.value == pytest.approx(np.sqrt(ours.mean()) - np.sqrt(theirs.mean()))
    assert actual.standard_error == pytest.approx(drawn.std(), rel=0.06)


def test_a_metrics_own_standard_error_is_the_binomials() -> None:
    errors = np.array([1.0] * 20 + [0.0] * 80)
    actual = estimate_metric(errors, is_classification=True)
    assert actual.value == pytest.approx(20)
    assert actual.standard_error == pytest.approx(100 * np.sqrt(0.2 * 0.8 / 99))


@pytest.mark.parametrize("differing", [0, 1, 4, 5])
def test_a_handful_of_rows_establishes_nothing(differing: int) -> None:
    theirs = np.zeros(200)
    theirs[:differing] = 1
    assert not estimate_difference(np.zeros(200), theirs, is_classification=True).is_significant
    assert not estimate_difference(theirs, np.zeros(200), is_classification=True).is_significant


def test_few_rows_establish_nothing_even_where_all_differ() -> None:
    assert not estimate_difference(np.zeros(6), np.ones(6), is_classification=True).is_significant
    assert not estimate_difference(
        np.full(6, 1.0), np.full(6, 9.0), is_classification=False
    ).is_significant


def test_the_verdict_says_what_helps_and_by_how_much() -> None:
    first, second = said(class_rows())
    pattern = (
        r"The unlabelled rows help: test error (.*) % for fixmatch \+ L2I, (.*) % for supervised "
        r"\(180 rows; (.*) ± (.*) points lower\)\."
    )
    actual = re.fullmatch(pattern, first)
    assert actual
    ours, theirs, gap, _ = map(float, actual.groups())
    assert gap == pytest.approx(theirs - ours, abs=0.11)
    assert second.startswith("Learning to impute helps: ")


def test_the_verdict_says_when_it_hurts() -> None:
    rows = class_rows(wrong={"supervised": 0.05, "baseline": 0.1, "l2i": 0.3})
    first, second = said(rows)
    assert first.startswith("The unlabelled rows hurt: ")
    assert " % for fixmatch, " in first  # the better of the two by validation
    assert "points higher" in first
    assert second.startswith("Learning to impute hurts: ")


def test_equal_candidates_are_not_told_apart() -> None:
    first, second = said(class_rows(wrong={"supervised": 0.1, "baseline": 0.1, "l2i": 0.1}))
    assert first.startswith("It is not clear whether the unlabelled rows help: ")
    assert "no difference" in first
    assert second.startswith("It is not clear whether learning to impute helps: ")
    assert "significant" not in second  # there is no difference to test


@pytest.mark.parametrize(
    ("gone", "which", "words"),
    [
        (("supervised",), 0, "was not measured: no model was trained on the labelled rows alone."),
        (("baseline", "l2i"), 0, "was not measured: no model was trained on the unlabelled rows."),
        (("baseline",), 1, "was not measured: no model was trained without it."),
        (("l2i",), 1, "was not measured: no model was trained with it."),
    ],
)
def test_what_was_not_compared_is_said(gone: tuple[str, ...], which: int, words: str) -> None:
    assert said(without(class_rows(), *gone))[which].endswith(words)


def test_without_test_rows_the_validation_rows_serve_and_that_is_said() -> None:
    rows = class_rows(counts={"labeled": 40, "unlabeled": 100, "validation": 150})
    actual = build_verdict(fitted_for(rows), rows)
    assert ": validation error " in str(actual.sentences[0])
    assert "(150 rows; " in str(actual.sentences[0])
    assert any("also used for model selection" in note for note in actual.footnotes)


def test_without_held_out_rows_nothing_is_claimed() -> None:
    rows = class_rows(counts={"labeled": 40, "unlabeled": 100})
    assert said(rows) == [
        "The candidates cannot be compared: there are no validation or test rows."
    ]
    assert build_calibration_section(fitted_for(rows), rows) is None


def test_a_regression_compares_roots_of_mean_squares() -> None:
    rows = target_rows(2)
    fitted = fitted_for(rows)
    mask = mask_known_labels(fitted, rows, "test")
    unit = np.asarray(fitted.target_std)  # several targets need not have one unit
    gaps = [(rows.outputs[n][mask] - rows.given_labels[mask]) / unit for n in ("supervised", "l2i")]
    roots = [np.sqrt(np.square(gap).mean()) for gap in gaps]
    actual = [
        estimate_metric(compute_row_errors(fitted, rows, n, mask), is_classification=False).value
        for n in ("supervised", "l2i")
    ]
    assert actual == pytest.approx(roots)
    assert f", {format_significant(roots[0])} for supervised (" in said(rows)[0]


def test_ties_go_to_l2i_first_and_that_is_said() -> None:
    rows = class_rows(wrong={"baseline": 0.1, "l2i": 0.1})
    fitted = fitted_for(rows)
    tied = tuple(dataclasses.replace(c, validation_metric=4.0) for c in fitted.candidates)
    tie = dataclasses.replace(fitted, candidates=tied, selected_name="l2i")
    assert build_verdict(tie, rows).selection == (
        "Selected: fixmatch + L2I (validation error 4.0 %, tied with fixmatch; "
        "ties go to L2I first, supervised last)."
    )


def test_a_selection_within_a_standard_error_of_the_best_is_explained() -> None:
    rows = class_rows()
    fitted = fitted_for(rows)
    values = {"supervised": 4.0, "baseline": 6.0, "l2i": 5.0}
    near = tuple(
        dataclasses.replace(c, validation_metric=values[c.name]) for c in fitted.candidates
    )
    changed = dataclasses.replace(fitted, candidates=near, selected_name="l2i")
    assert build_verdict(changed, rows).selection == (
        "Selected: fixmatch + L2I (validation error 5.0 %, within one standard error of supervised "
        "at 4.0 %; ties go to L2I first, supervised last)."
    )
    best = dataclasses.replace(changed, selected_name="supervised")
    assert build_verdict(best, rows).selection == (
        "Selected: supervised (validation error 4.0 %, the lowest of 3)."
    )


def test_expected_calibration_error_is_the_textbooks() -> None:
    draw = np.random.default_rng(2)
    confidence = draw.random(500)
    confidence[:3] = [0.0, 0.1, 1.0]
    right = draw.random(500) < confidence**2
    edges, oracle = np.linspace(0, 1, 11), 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence >= low) & ((confidence < high) | (high == 1))
        oracle += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert compute_ece(bin_by_confidence(confidence, right)) == pytest.approx(oracle)


def test_spreads_that_are_right_lie_on_the_diagonal() -> None:
    draw = np.random.default_rng(3)
    spread = draw.gamma(5, 1, 20_000)
    for bin_ in bin_by_std(spread, np.abs(draw.normal(0, spread))):
        assert bin_.observed == pytest.approx(bin_.predicted, rel=0.06)


def test_shares_within_spreads_are_counted() -> None:
    rows = target_rows(1)
    fitted = fitted_for(rows)
    actual = build_calibration_section(fitted, rows)
    mask = mask_known_labels(fitted, rows, "validation", "test")
    assert rows.predictive_std is not None and actual is not None
    error = np.abs(rows.outputs[fitted.selected_name][mask] - rows.given_labels[mask])
    inside = 100 * (error <= 2 * 1.5 * rows.predictive_std[mask]).mean()
    assert float(actual.table[1][2].removesuffix(" %")) == pytest.approx(inside, abs=0.51)


def test_confusion_counts_every_validation_row() -> None:
    assert count_confusions(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0]), 3).tolist() == [
        [1, 1, 0],
        [0, 1, 0],
        [1, 0, 0],
    ]
    rows = class_rows()
    actual = build_confusion_section(fitted_for(rows), rows)
    assert sum(cell.num_rows for line in actual.matrix for cell in line) == 100


def test_many_classes_are_shown_by_their_most_confused_pairs() -> None:
    rows = class_rows(classes=25)
    actual = build_confusion_section(
        fitted_for(rows, classes=tuple(f"c{i}" for i in range(25))), rows
    )
    assert not actual.matrix
    assert 0 < len(actual.pairs) <= 15
    counts = [int(pair[2]) for pair in actual.pairs]
    assert counts == sorted(counts, reverse=True)


def test_only_some_targets_are_drawn() -> None:
    rows = target_rows(10)
    fitted = fitted_for(rows, targets=tuple(f"t{i}" for i in range(10)))
    assert [chart.title for chart in draw_scatters(fitted, rows)] == [f"t{i}" for i in range(6)]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 7.9), (0, 2e-5), (1e6, 3e6), (0, 0.3)])
def test_ticks_are_few_and_within(low: float, high: float) -> None:
    ticks = compute_nice_ticks(low, high)
    assert 2 <= len(ticks) <= 6
    assert all(low - 1e-9 * high <= t <= high * (1 + 1e-9) for t in ticks)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.5, "1,234"), (0.01234, "0.0123"), (9.87, "9.87"), (3e-9, "3.00e-09")],
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert format_significant(value) == text
