"""Numbers of a report that a reader relies on, by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_folders import class_rows, fitted_for, target_rows
from fits import fitted_like

from l2i.fit.artifact import Candidate, FitArtifact, FitRows, RowPreview
from l2i.fit.formatting import (
    align_columns,
    format_first_and_last,
    format_metric,
    format_names,
    format_percent,
    format_significant,
    join_words,
    pluralize,
    truncate_text,
)
from l2i.fit.impute import impute
from l2i.fit.report import _build_metrics
from l2i.fit.report.caveats import find_caveats
from l2i.fit.report.charts import (
    build_curves_section,
    compute_cost_changes,
    draw_histogram,
    format_tick,
    thin_points,
)
from l2i.fit.report.comparison import (
    _format_gap,
    compute_row_errors,
    estimate_difference,
    estimate_metric,
    estimate_metrics,
    mask_known_labels,
)
from l2i.fit.report.confidence import (
    bin_by_confidence,
    bin_by_std,
    build_calibration_section,
    build_confidence_section,
    build_confusion_section,
    compute_confidence,
    compute_ece,
    draw_scatters,
    make_cards,
)
from l2i.fit.report.verdict import build_verdict

SPLIT = np.array(["labeled", "validation", "validation", "test", "unlabeled", "unlabeled"])
GIVEN = np.array([0, 1, 0, 1, -1, -1])


def rows_like(outputs: dict[str, Any], **changes: Any) -> FitRows:
    plain: dict[str, Any] = {
        "ids": [f"r{i}" for i in range(len(SPLIT))],
        "split_names": SPLIT,
        "given_labels": GIVEN,
        "outputs": {name: np.asarray(values, dtype=np.float32) for name, values in outputs.items()},
        "change_counts": np.array([0, 0, 0, 0, 7, 0]),
    }
    return FitRows(**{**plain, **changes})


def candidate(name: str, validation: float, test: float | None = None) -> Candidate:
    return Candidate(
        name=name,
        title=name.upper(),
        validation_metric=validation,
        validation_cost=1.0,
        test_metric=test,
        steps=5,
        seconds=1.0,
    )


def two_classes(**changes: Any) -> FitArtifact:
    return fitted_like(**{"classes": ("no", "yes"), **changes})


LOGITS = [[1, 0], [0, 1], [0, 1], [1, 0], [3, 0], [0, 0.5]]  # validation: one of two is right


def test_known_rows_are_those_of_a_split_that_have_a_label() -> None:
    rows = rows_like({"l2i": LOGITS})
    fitted = two_classes()
    assert mask_known_labels(fitted, rows, "validation").tolist() == [0, 1, 1, 0, 0, 0]
    assert mask_known_labels(fitted, rows, "test", "labeled").tolist() == [1, 0, 0, 1, 0, 0]
    assert not mask_known_labels(fitted, rows, "unlabeled").any()
    targets = np.where(GIVEN[:, None] < 0, np.nan, [[1.0, 2.0]])
    targets[1, 1] = np.nan
    regression = rows_like({"l2i": targets}, given_labels=targets)
    fitted = fitted_like(classes=None, targets=("u", "v"))
    assert mask_known_labels(fitted, regression, "validation").tolist() == [0, 0, 1, 0, 0, 0]


def test_errors_of_rows_are_counted_against_their_own_labels() -> None:
    rows = rows_like({"l2i": LOGITS, "baseline": [[0, 1]] * 6})
    fitted = two_classes(candidates=(candidate("l2i", 50), candidate("baseline", 50)))
    mask = np.isin(SPLIT, ("validation", "test"))
    assert compute_row_errors(fitted, rows, "l2i", mask).tolist() == [0, 1, 1]
    assert compute_row_errors(fitted, rows, "baseline", mask).tolist() == [0, 1, 0]
    metrics = estimate_metrics(fitted, rows, "validation")
    assert {name: m.value for name, m in metrics.items()} == {"l2i": 50.0, "baseline": 50.0}
    assert metrics["l2i"].num_rows == 2
    assert metrics["l2i"].standard_error == pytest.approx(100 * np.sqrt(0.5) / np.sqrt(2))
    assert estimate_metrics(fitted, rows, "nowhere") == {}


def test_one_target_keeps_its_unit_and_several_are_in_stds() -> None:
    given = np.array([[1.0, 100.0]])
    rows = rows_like(
        {"l2i": [[3.0, 500.0]]}, given_labels=given, split_names=np.array(["test"]), ids=["a"]
    )
    fitted = fitted_like(classes=None, targets=("u", "v"), target_std=(2.0, 100.0))
    everything = np.array([True])
    errors = compute_row_errors(fitted, rows, "l2i", everything)
    assert errors.tolist() == [(1.0 + 16.0) / 2]
    points = dataclasses.replace(fitted, has_landmarks=True)
    assert compute_row_errors(points, rows, "l2i", everything).tolist() == [(4 + 160000) / 2]
    single = rows_like({"l2i": [[3.0]]}, given_labels=given[:, :1], split_names=rows.split_names)
    one = fitted_like(classes=None, targets=("u",), target_std=(2.0,))
    assert compute_row_errors(one, single, "l2i", everything).tolist() == [4.0]


def test_metrics_are_per_cent_of_rows_or_roots_of_mean_squares() -> None:
    assert estimate_metric(np.array([1.0, 0, 0, 0]), is_classification=True).value == 25
    root = estimate_metric(np.array([1.0, 7.0]), is_classification=False)
    assert root.value == 2.0
    assert root.standard_error == pytest.approx(0.25 * np.sqrt(18) / np.sqrt(2))
    assert estimate_metric(np.array([1.0]), is_classification=True).standard_error == np.inf


def test_a_difference_is_ours_minus_theirs_and_needs_rows_errors_and_signs() -> None:
    worse, better = np.repeat([1.0, 0.0], [6, 14]), np.zeros(20)
    gap = estimate_difference(better, worse, is_classification=True)
    assert (gap.value, gap.num_rows, gap.is_significant) == (-30.0, 20, True)
    assert estimate_difference(worse, better, is_classification=True).value == 30.0
    five = np.repeat([1.0, 0.0], [5, 95])  # 2.3 standard errors, but a sign test of 0.0625
    assert not estimate_difference(np.zeros(100), five, is_classification=True).is_significant
    six = np.repeat([1.0, 0.0], [6, 94])
    assert estimate_difference(np.zeros(100), six, is_classification=True).is_significant
    mixed = np.repeat([1.0, 0.0], [7, 93])
    other = np.repeat([0.0, 1.0, 0.0], [7, 1, 92])  # 7 against 1: p = 0.07
    assert not estimate_difference(other, mixed, is_classification=True).is_significant


def test_ten_classes_or_thirty_targets_are_the_least_that_prove_anything() -> None:
    assert estimate_difference(np.zeros(10), np.ones(10), is_classification=True).is_significant
    assert not estimate_difference(np.zeros(9), np.ones(9), is_classification=True).is_significant
    for count, proven in ((30, True), (29, False)):
        ours, theirs = np.full(count, 1.0), np.full(count, 4.0)
        gap = estimate_difference(ours, theirs, is_classification=False)
        assert (gap.value, gap.is_significant) == (-1.0, proven)


def test_the_better_semi_supervised_candidate_by_validation_stands_for_the_unlabelled_rows() -> (
    None
):
    rows = class_rows(wrong={"supervised": 0.3, "baseline": 0.02, "l2i": 0.2})
    known = {c.name: c for c in fitted_for(rows).candidates}
    flipped = {"supervised": 30.0, "baseline": 9.0, "l2i": 1.0}  # validation disagrees with test
    candidates = tuple(
        dataclasses.replace(known[n], validation_metric=v) for n, v in flipped.items()
    )
    fitted = fitted_for(rows, candidates=candidates, selected_name="l2i")
    first, second = build_verdict(fitted, rows).sentences
    assert " for fixmatch + L2I, " in first.facts and " for supervised " in first.facts
    assert first.facts.startswith("test error ") and first.tone == "good"
    assert second.claim == "Learning to impute hurts" and second.tone == "bad"


def test_gaps_are_written_with_their_error_and_direction() -> None:
    """Where as many rows are wrong, but others, the difference is nothing and its error is not."""

    def gap(ours: list[float], theirs: list[float], *, classes: bool = True) -> str:
        estimate = estimate_difference(np.array(ours), np.array(theirs), is_classification=classes)
        return _format_gap(estimate, is_classification=classes)

    assert gap([0, 1, 0, 0], [0, 1, 0, 0]) == "no difference on any row"
    assert gap([1, 0, 0, 0], [0, 1, 0, 0]) == "difference 0 ± 40.8 points"
    assert gap([0, 0, 0, 0], [0, 1, 0, 0]) == "25.0 ± 25.0 points lower, not significant"
    assert gap([1] * 20, [0] * 20) == "100.0 ± 0.0 points higher"
    assert gap([4.0] * 30, [1.0] * 30, classes=False) == "1.0 ± 0 higher"
    assert gap([1.0] * 29, [4.0] * 29, classes=False) == "1.0 ± 0 lower, too few rows to test"


def test_confidences_are_of_the_selected_candidate_and_temperature() -> None:
    rows = rows_like({"l2i": LOGITS, "baseline": [[0, 9]] * 6})
    mask = SPLIT == "validation"
    confidence, is_correct = compute_confidence(two_classes(), rows, mask, 0.5)
    np.testing.assert_allclose(confidence, 1 / (1 + np.exp(-2.0)))
    assert is_correct.tolist() == [True, False]


def test_bins_of_confidence_are_tenths_and_one_belongs_to_the_last() -> None:
    confidence = np.array([0.05, 0.61, 0.69, 0.7, 0.95, 1.0])
    correct = np.array([False, True, False, True, True, True])
    bins = bin_by_confidence(confidence, correct)
    assert [b.num_rows for b in bins] == [1, 2, 1, 2]
    assert bins[1].predicted == pytest.approx(0.65) and bins[1].observed == 0.5
    gaps = (0.05 + 2 * 0.15 + 0.3 + 2 * 0.025) / 6
    assert compute_ece(bins) == pytest.approx(gaps)
    assert compute_ece([]) == 0


def test_bins_of_spreads_hold_equally_many_rows_from_small_to_large() -> None:
    spread = np.array([4.0, 1.0, 3.0, 2.0] * 5)
    bins = bin_by_std(spread, 2 * spread)
    assert [b.num_rows for b in bins] == [2] * 10
    assert [b.predicted for b in bins[::3]] == [1.0, 2.0, 3.0, 4.0]
    assert all(b.observed == 2 * b.predicted for b in bins)
    (few,) = bin_by_std(np.array([3.0]), np.array([4.0]))
    assert (few.predicted, few.observed, few.num_rows) == (3.0, 4.0, 1)


def test_calibration_is_shown_before_and_after_on_held_out_rows() -> None:
    rows = class_rows()
    fitted = fitted_for(rows, temperature=2.0)
    section = build_calibration_section(fitted, rows)
    assert section is not None
    for line, splits in zip(section.table, (("validation", "test"), ("test",)), strict=True):
        mask = np.isin(rows.split_names, splits)
        assert line[1] == f"{mask.sum():,}"
        for cell, temperature in zip(line[2:], (1.0, 2.0), strict=True):
            bins = bin_by_confidence(*compute_confidence(fitted, rows, mask, temperature))
            assert cell == f"{100 * compute_ece(bins):.1f} %"
    assert section.header == ["Split", "Rows", "Before", "After"]


def test_intervals_are_counted_before_and_after_scaling() -> None:
    """Errors are 1.5 spreads: within one after doubling, within two before it."""
    values = np.where(GIVEN[:, None] < 0, np.nan, 10.0)
    rows = rows_like(
        {"l2i": np.full((6, 1), 13.0)},
        given_labels=values,
        predictive_std=np.full((6, 1), 2.0, dtype=np.float32),
    )
    fitted = fitted_like(classes=None, targets=("u",), target_std=(5.0,), std_scale=2.0)
    section = build_calibration_section(fitted, rows)
    assert section is not None
    assert section.table == [
        ["± 1 std", "0 %", "100 %", "68 %"],
        ["± 2 std", "100 %", "100 %", "95.4 %"],
    ]
    assert "predicted std 0.40, observed RMSE 0.60" in str(section.charts[0].svg)
    assert "predicted std 0.80, observed RMSE 0.60" in str(section.charts[1].svg)


def test_facts_about_confidence_are_of_imputed_labels_alone() -> None:
    """Of two, one is abstained from, and one changed, more than five times."""
    rows = rows_like({"l2i": LOGITS})
    fitted = two_classes()
    section = build_confidence_section(fitted, rows, impute(fitted, rows))
    assert section is not None
    assert [fact[0] for fact in section.facts] == ["2", "50 %", "50 %"]
    assert section.facts[1][1] == "abstain: confidence below 0.9"
    assert "0: 1 rows; 1: 0 rows; 2: 0 rows; 3: 0 rows; 4: 0 rows; 5+: 1 rows" in str(
        section.charts[1].svg
    )
    assert "2 rows between 0.5 and 1," in str(section.charts[0].svg)
    none = dataclasses.replace(rows, given_labels=np.abs(GIVEN))
    assert build_confidence_section(fitted, none, impute(fitted, none)) is None


def test_cards_are_sorted_from_both_ends_and_say_their_rows() -> None:
    rows = rows_like({"l2i": LOGITS})
    previews = tuple(RowPreview(row=row, fields={"a": f"cell {row}"}) for row in (5, 4, 99))
    fitted = two_classes(previews=previews)
    (most,), (least,) = make_cards(fitted, rows, impute(fitted, rows))
    assert (most.id, most.labels, most.fields) == ("r4", ["no"], [("a", "cell 4")])
    assert (least.id, least.labels, least.abstain) == ("r5", ["yes"], True)
    assert most.confidence == f"confidence {1 / (1 + np.exp(-3.0)):.3f}" and not most.abstain


def test_a_confusion_has_true_classes_as_rows_of_the_validation_rows() -> None:
    rows = rows_like({"l2i": LOGITS})
    section = build_confusion_section(two_classes(), rows)
    assert [[cell.num_rows for cell in line] for line in section.matrix] == [[0, 1], [0, 1]]
    assert [[cell.share for cell in line] for line in section.matrix] == [[0, 1.0], [0, 1.0]]
    assert [[cell.is_correct for cell in line] for line in section.matrix] == [
        [True, False],
        [False, True],
    ]
    assert section.num_rows == 2


def test_scatters_show_truth_and_prediction_of_held_out_rows() -> None:
    truth = np.where(GIVEN[:, None] < 0, np.nan, np.arange(6.0)[:, None])
    rows = rows_like({"l2i": np.arange(6.0)[:, None] * 10}, given_labels=truth)
    (chart,) = draw_scatters(fitted_like(classes=None, targets=("u",)), rows)
    text = str(chart.svg)
    assert "u: predicted against true for 3 rows, between -0.160 and 31.2" in text
    assert (
        draw_scatters(
            fitted_like(classes=None, targets=("u",)),
            dataclasses.replace(rows, split_names=np.full(6, "labeled")),
        )
        == []
    )


def test_metrics_of_each_candidate_are_in_its_own_line() -> None:
    rows = class_rows()
    fitted = fitted_for(rows)
    metrics = _build_metrics(fitted, rows)
    for line, known in zip(metrics["table"], fitted.candidates, strict=True):
        mask = rows.split_names == "test"
        wrong = rows.outputs[known.name][mask].argmax(axis=1) != rows.given_labels[mask]
        assert line["name"] == known.name
        assert line["cells"][1].startswith(f"{100 * wrong.mean():.1f} ± ")
        assert line["cells"][0].startswith(f"{known.validation_metric:.1f} ± ")
    assert [chart.title for chart in metrics["charts"]] == [
        "Test error (%)",
        "Validation error (%)",
    ]


def test_one_wrong_row_in_two_hundred_is_no_wrong_row_less() -> None:
    """The error is 0.5 %, and its standard error is shown; none and all are counted instead."""
    for wrong, text in ((1, "0.5 ± 0.5"), (0, "0.0 (0 of 200 wrong)"), (200, "100.0 (200 of 200")):
        rows = class_rows(counts={"labeled": 9, "test": 200}, wrong={"l2i": 0.0})
        outputs = rows.outputs["l2i"].copy()
        flipped = np.flatnonzero(rows.split_names == "test")[:wrong]
        outputs[flipped] = np.roll(outputs[flipped], 1, axis=1)
        rows = dataclasses.replace(rows, outputs={"l2i": outputs})
        (line,) = _build_metrics(fitted_for(rows), rows)["table"]
        assert line["cells"][1].startswith(text)


def caveats(rows: FitRows, **changes: Any) -> list[str]:
    fitted = fitted_for(rows, **changes)
    return [c.finding for c in find_caveats(fitted, rows, impute(fitted, rows))]


def test_a_candidate_just_a_standard_error_better_is_separated() -> None:
    """The selected one is right everywhere but for 1 of 50: a standard error of 2 points."""
    counts = {"labeled": 30, "unlabeled": 300, "validation": 50, "test": 100}
    rows = class_rows(counts=counts, wrong={"supervised": 0.0, "l2i": 0.0})
    outputs = {name: values.copy() for name, values in rows.outputs.items()}
    validation = np.flatnonzero(rows.split_names == "validation")

    def flip(name: str, count: int) -> None:
        for row in validation[:count]:
            outputs[name][row] = np.roll(outputs[name][row], 1)

    flip("l2i", 1)
    for wrong, separated in ((2, True), (1, False)):
        outputs["supervised"] = rows.outputs["supervised"].copy()
        flip("supervised", wrong)
        changed = dataclasses.replace(rows, outputs=outputs)
        texts = caveats(changed, selected_name="l2i")
        assert any("do not separate" in text for text in texts) is not separated


def labels_as(given: list[int], imputed: list[int]) -> FitRows:
    """So many labelled and so many surely imputed rows of each of three classes."""
    counts = {"labeled": sum(given), "unlabeled": sum(imputed), "validation": 40, "test": 40}
    rows = class_rows(counts=counts)
    labels, blank = rows.given_labels.copy(), rows.split_names == "unlabeled"
    labels[rows.split_names == "labeled"] = np.repeat(np.arange(3), given)
    outputs = {name: values.copy() for name, values in rows.outputs.items()}
    for values in outputs.values():
        values[blank] = 9.0 * np.eye(3)[np.repeat(np.arange(3), imputed)]
    return dataclasses.replace(rows, given_labels=labels, outputs=outputs)


def test_a_collapse_names_the_class_that_is_left() -> None:
    texts = caveats(labels_as([10, 10, 10], [3, 288, 9]))
    (collapse,) = [text for text in texts if "collapsed" in text]
    assert "96.0 % of them are class chinstrap" in collapse
    assert not any("collapsed" in text for text in caveats(labels_as([10] * 3, [6, 285, 9])))


def test_shares_of_classes_differ_by_more_than_so_few_labels_would_make_them() -> None:
    """Of n labels in three equal classes chance makes about sqrt(2 / n) / 2, counted twice.

    That is 0.26 for 30 labels, and below the fixed 0.2 for 300.
    """
    third = [10, 10, 10]
    assert not any("class distribution" in t for t in caveats(labels_as(third, [172, 64, 64])))
    (shift,) = [t for t in caveats(labels_as(third, [184, 58, 58])) if "class distribution" in t]
    assert "class adelie is 61 % of the imputed labels and 33 % of the labelled rows" in shift
    many = [100, 100, 100]
    assert any("class distribution" in t for t in caveats(labels_as(many, [172, 64, 64])))
    assert not any("class distribution" in t for t in caveats(labels_as(many, [157, 72, 71])))


def test_thirty_validation_rows_are_enough_to_select_by() -> None:
    for count, few in ((29, True), (30, False)):
        rows = class_rows(counts={"labeled": 60, "unlabeled": 300, "validation": count})
        assert any("too few to separate" in text for text in caveats(rows)) is few


def test_the_range_of_scales_has_a_margin_at_both_ends() -> None:
    rows = class_rows(counts={"labeled": 60, "unlabeled": 300, "validation": 100, "test": 100})

    def is_limit(temperature: float) -> bool:
        return any("limit of its range" in text for text in caveats(rows, temperature=temperature))

    assert is_limit(0.0525) and not is_limit(0.053)
    assert is_limit(19.05) and not is_limit(19.0)


def test_cost_changes_are_after_minus_before_where_both_are_known() -> None:
    rows = [
        {"step": 1, "c_h_before": 2.0, "c_h_after": 1.5},
        {"step": 2, "c_h_before": None, "c_h_after": 1.0},
        {"step": 3, "c_h_before": 1.0, "c_h_after": None},
        {"step": 4, "c_h_before": 1.0, "c_h_after": 1.25},
    ]
    assert compute_cost_changes(rows, "c_h") == [(1.0, -0.5), (4.0, 0.25)]  # type: ignore[arg-type]


def test_curves_are_of_the_runs_that_left_metrics(tmp_path: Path) -> None:
    fitted = two_classes(candidates=(candidate("supervised", 1), candidate("l2i", 1)))
    (tmp_path / "l2i").mkdir()
    columns = {"c_t": 1.0, "c_u": 2.0, "c_h": 3.0, "validation": 50.0, "test": 25.0}
    lines = [{"step": s, **columns, "c_h_before": 1.0, "c_h_after": 2.0 - s} for s in (1, 2)]
    (tmp_path / "l2i" / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    section = build_curves_section(tmp_path, fitted)
    assert section.legend == [("l2i", "L2I")]
    assert section.missing_note == "No metrics were logged for SUPERVISED."
    labels = [str(chart.svg) for chart in section.charts]
    assert "Validation error (%) over steps: L2I ends at 50.0" in labels[0]
    assert "Test error (%) over steps: L2I ends at 25.0" in labels[1]
    assert section.charts[-1].note == "negative (better) at 1 of 2 evaluations"


def test_thinned_curves_keep_their_last_point() -> None:
    points = [(float(i), float(i)) for i in range(10)]
    assert thin_points(points, 4) == [(0, 0), (3, 3), (6, 6), (9, 9)]
    assert thin_points(points, 10) == points
    assert thin_points(points, 9)[-1] == (9, 9)


def test_a_threshold_beyond_a_histogram_is_not_drawn() -> None:
    def drawn(threshold: float) -> bool:
        chart = draw_histogram(
            "t", [1, 2], (0.5, 1.0), x="x", threshold=threshold, threshold_label="mark me"
        )
        return "mark me" in str(chart.svg)

    assert drawn(0.9) and drawn(0.5) and not drawn(0.4)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 %"), (1.0, "100 %"), (0.1, "10 %"), (0.9, "90 %"), (0.5, "50 %")]
)
def test_shares_near_the_ends_have_a_decimal(value: float, text: str) -> None:
    assert format_percent(value) == text
    assert format_percent(0.0999) == "10.0 %" and format_percent(0.9994) == "99.9 %"


def test_words_and_numbers_are_written_as_people_do() -> None:
    assert format_names([*"abcdefgh"]) == "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"
    assert format_names([*"abcdefghij"]).endswith("'h' and 2 more")
    assert format_first_and_last([*"abcdefghi"]) == "'a', 'b', 'c', 'd', 'e', …, 'g', 'h', 'i'"
    assert (pluralize(1, "row"), pluralize(1000, "row")) == ("1 row", "1,000 rows")
    assert pluralize(2, "category", "categories") == "2 categories"
    assert format_metric(12.345, "error (%)") == "12.3" and format_metric(12.345, "RMSE") == "12.3"
    assert format_metric(None, "RMSE") == format_metric(float("nan"), "error (%)") == "–"
    assert format_significant(0.00001234) == "1.23e-05" and format_significant(-1234567) == (
        "-1,234,567"
    )
    assert join_words(["a"]) == "a" and join_words([*"abc"]) == "a, b and c"
    assert truncate_text("a" * 241) == "a" * 239 + "…" and truncate_text("a" * 240) == "a" * 240
    assert align_columns([["a", "1"], ["bcd", "22"]], "<>") == ["a     1", "bcd  22"]
    assert [format_tick(v) for v in (10_000, 1000, 0.0001, -2)] == ["10k", "1,000", "1e−4", "−2"]


def test_labelled_targets_of_a_report_are_those_given() -> None:
    rows = target_rows(1)
    fitted = fitted_for(rows)
    mask = mask_known_labels(fitted, rows, "test")
    outputs = rows.outputs[fitted.selected_name][mask].astype(np.float64)
    expected = np.sqrt(np.square(outputs - rows.given_labels[mask]).mean())
    actual = estimate_metrics(fitted, rows, "test")[fitted.selected_name]
    assert actual.value == pytest.approx(expected)
