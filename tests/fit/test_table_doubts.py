"""What a fit of a table says where it should be doubted, and what it does with odd cells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import flowers, houses, l2i, refused, works
from numpy.testing import assert_allclose

from l2i.fit.artifact import read_fit
from l2i.fit.report.verdict import compute_balanced_error

QUICK = ("--threads", "1", "--candidates")


def blank(frame: pd.DataFrame, target: str, labels: int) -> pd.DataFrame:
    """Keep some labels, drawn at random."""
    order = np.random.default_rng(1).permutation(len(frame))
    frame[target] = frame[target].astype(object)
    frame.loc[frame.index[order[labels:]], target] = None
    return frame


def rare(rows: int = 600) -> pd.DataFrame:
    """A tenth of the rows is of a class that two columns tell apart, but not well."""
    draw = np.random.default_rng(0)
    is_ill = draw.random(rows) < 0.1
    frame = pd.DataFrame(draw.normal(size=(rows, 4)), columns=list("abcd"))
    frame[["a", "b"]] += 1.5 * is_ill[:, None]
    return frame.assign(y=np.where(is_ill, "ill", "well"))


def test_balanced_classes_are_chosen_and_judged_by_the_balanced_error(tmp_path: Path) -> None:
    blank(rare(), "y", 200).to_csv(tmp_path / "t.csv", index=False)
    names = (*QUICK, "logistic-regression", "extra-trees", "label-spreading")
    said = works("fit", "t.csv", "--target", "y", *names, "--balance", cwd=tmp_path)
    assert "balanced error (%)" in said.out.splitlines()[0]
    assert not re.search(r"against (10|9)\.\d %", said.out)  # the error of guessing
    assert re.search(r"balanced error \d+\.\d %, against \d+\.\d % for the majority", said.out)
    assert "--balance" not in said.err and "imbalanced" not in said.err
    assert "label spreading: skipped, it takes no weights of rows" in said.err
    fitted, rows = read_fit(tmp_path / "runs/t")
    for candidate in fitted.candidates:
        expected = compute_balanced_error(fitted, rows, candidate.name)
        assert candidate.validation_metric == pytest.approx(expected)


def test_confidences_of_balanced_classes_are_those_at_their_shares(tmp_path: Path) -> None:
    """The label is the class that explains the row best, its confidence how often that is right."""
    frame = rare(6000)
    truth = frame["y"].copy()
    blank(frame, "y", 1000).to_csv(tmp_path / "t.csv", index=False)
    names = (*QUICK, "logistic-regression")
    works("fit", "t.csv", "--target", "y", *names, "--balance", cwd=tmp_path)
    works("impute", "runs/t", "--out", "labels.csv", cwd=tmp_path)
    labels = pd.read_csv(tmp_path / "labels.csv").loc[frame["y"].isna().to_numpy()]
    is_right = labels["y"].to_numpy() == truth[labels.index].to_numpy()
    for kind in ("ill", "well"):
        chosen = (labels["y"] == kind).to_numpy()
        assert labels["confidence"][chosen].mean() == pytest.approx(
            is_right[chosen].mean(), abs=0.05
        )
    assert (labels["y"] == "ill").mean() > 0.18 > (truth == "ill").mean()
    works("predict", "runs/t", "t.csv", "--out", "p.csv", cwd=tmp_path)
    predicted = pd.read_csv(tmp_path / "p.csv")
    is_ill = predicted["y"] == "ill"
    assert (predicted["confidence"][is_ill] < 0.5).any()
    assert_allclose(predicted["confidence"][is_ill], predicted["p(ill)"][is_ill])
    works("export", "runs/t", "model.onnx", cwd=tmp_path)


def test_imbalance_is_said_with_the_mean_over_the_classes(tmp_path: Path) -> None:
    blank(rare(), "y", 200).to_csv(tmp_path / "t.csv", index=False)
    said = works("fit", "t.csv", "--target", "y", *QUICK, "logistic-regression", cwd=tmp_path)
    assert re.search(r"expect an error of .*, and of \d+\.\d % in the mean over the cl", said.out)
    assert "let every class count the same (--balance)" in said.err
    works("report", "runs/t", cwd=tmp_path)
    page = (tmp_path / "runs/t/report.html").read_text(encoding="utf-8")
    assert "Mean over classes" in page and "Loss" in page


def test_guessing_is_the_measure_whatever_candidates_are_named(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(300, 3)), columns=list("abc"))
    frame["y"] = draw.choice(["heads", "tails"], 300)
    blank(frame, "y", 60).to_csv(tmp_path / "t.csv", index=False)
    limit = ("--minutes", "1", *QUICK, "extra-trees")
    said = works("fit", "t.csv", "--target", "y", *limit, cwd=tmp_path)
    assert "majority class" in said.out and re.search(r"\(\d\.\d s, \d+ s left\)", said.err)
    assert "Do not use the imputed labels." in said.out and "are usable" not in said.out
    assert said.err.count("Do not use these labels") == 1
    works("impute", "runs/t", cwd=tmp_path)
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert labels["abstain"][labels["source"] == "imputed"].all()
    predicted = works("predict", "runs/t", "t.csv", "--out", "p.csv", cwd=tmp_path)
    assert "Do not use these predictions; label more rows." in predicted.err
    works("report", "runs/t", cwd=tmp_path)
    page = (tmp_path / "runs/t/report.html").read_text(encoding="utf-8")
    assert page.index("Do not use the imputed labels.") < page.index('id="metrics"')


def test_no_error_among_few_labels_is_no_promise(tmp_path: Path) -> None:
    frame = flowers(200, 40)
    centre = frame["kind"].map({kind: 40.0 * i for i, kind in enumerate(set(frame["kind"]))})
    frame["size0"] = centre + np.arange(200) % 3
    frame = frame.drop(columns=["size1", "size2", "colour"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = ("--target", "label", "--ignore", "kind", "name")
    said = works("fit", "t.csv", *columns, *QUICK, "logistic-regression", cwd=tmp_path)
    assert "none of 40 rows was wrong; with 95 % confidence at most 7.2 %" in said.out
    assert re.search(
        r"Expect (about \d+|fewer than one) of them to be wrong \(\d\.\d %\)", said.out
    )


def test_whole_groups_are_tested_on(tmp_path: Path) -> None:
    frame = rare(400).assign(patient=np.arange(400) // 10)
    blank(frame, "y", 300).to_csv(tmp_path / "t.csv", index=False)
    options = ("--group", "patient", "--test", "0.3", *QUICK, "logistic-regression")
    works("fit", "t.csv", "--target", "y", *options, cwd=tmp_path)
    fitted, rows = read_fit(tmp_path / "runs/t")
    assert rows.groups is not None
    tested = set(rows.groups[rows.split_names == "test"])
    assert tested and not tested & set(rows.groups[rows.split_names == "labeled"])
    assert 80 <= (rows.split_names == "test").sum() <= 110
    choices = {choice.name: choice.value for choice in fitted.choices}
    assert re.fullmatch(r"patient, \d+ groups", choices["groups"])
    options = ("--group", "patient", "--test", "290", *QUICK, "logistic-regression")
    said = refused("fit", "t.csv", "--target", "y", *options, "--out", "x", cwd=tmp_path)
    assert "40 groups are too few to set 290 rows aside; lower --test" in said


def test_arrays_have_no_groups(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(40, 3)), y=[0, 1] * 20)
    assert "--group applies only to CSV and Parquet files" in refused(
        "fit", "a.npz", "--group", "x0", cwd=tmp_path
    )


@pytest.mark.parametrize("marker", ["-1", "0"])
def test_a_number_that_most_labels_are_may_mark_unlabelled_rows(
    marker: str, tmp_path: Path
) -> None:
    frame = houses(200, 40).drop(columns="heat")
    frame["price"] = frame["price"].where(frame["price"].notna(), float(marker))
    frame.to_csv(tmp_path / "h.csv", index=False)
    said = works("fit", "h.csv", "--target", "price", *QUICK, "ridge", cwd=tmp_path)
    warning = f"160 of 200 labels of 'price' are {marker}; if it means unlabelled, use --missing"
    assert f"{warning} {marker}" in said.err


def test_a_word_that_marks_unlabelled_rows_among_numbers_is_named(tmp_path: Path) -> None:
    frame = houses(200, 40).drop(columns="heat")
    frame["price"] = frame["price"].astype(object).where(frame["price"].notna(), "TBD")
    frame.to_csv(tmp_path / "h.csv", index=False)
    said = refused("fit", "h.csv", "--target", "price", *QUICK, "ridge", cwd=tmp_path)
    assert "mixes numbers and text (160 cells" in said
    assert "use --missing 'TBD' if it means unlabelled" in said
    works("fit", "h.csv", "--target", "price", "--missing", "TBD", *QUICK, "ridge", cwd=tmp_path)


def test_words_for_missing_are_classes_of_a_target(tmp_path: Path) -> None:
    frame = rare(120)
    frame["y"] = np.where(frame["a"] > 1, "none", np.where(frame["b"] > 0, "1", "2"))
    blank(frame, "y", 90).to_csv(tmp_path / "t.csv", index=False)
    said = works("fit", "t.csv", "--target", "y", *QUICK, "logistic-regression", cwd=tmp_path)
    assert "'none' (" in said.err and "3 classes" in said.err


def test_new_rows_may_miss_what_the_fitted_ones_had(tmp_path: Path) -> None:
    frame = rare(120).assign(k=["1", "2", "unknown"] * 40, day=["2024-01-03", "unknown"] * 60)
    frame["day"] = [f"2024-0{1 + i % 9}-03" if i % 7 else "unknown" for i in range(120)]
    blank(frame, "y", 90).to_csv(tmp_path / "t.csv", index=False)
    works("fit", "t.csv", "--target", "y", *QUICK, "logistic-regression", cwd=tmp_path)
    frame.assign(k="unknown", day="unknown").to_csv(tmp_path / "new.csv", index=False)
    said = works("predict", "runs/t", "new.csv", "--out", "p.csv", cwd=tmp_path)
    assert "column 'k': 120 blank cells filled with the mean" in said.err
    assert len(pd.read_csv(tmp_path / "p.csv")) == 120


def test_dates_in_several_formats_are_left_out_and_said(tmp_path: Path) -> None:
    frame = rare(120)
    formats = ("2024-0{1}-{0}", "{0}/{1}/2024", "{0}.{1}.2024")
    frame["day"] = [formats[i % 3].format(13 + i % 15, 1 + i % 9) for i in range(120)]
    blank(frame, "y", 60).to_csv(tmp_path / "t.csv", index=False)
    said = works("fit", "t.csv", "--target", "y", *QUICK, "logistic-regression", cwd=tmp_path)
    assert "dates in several formats; write them as year-month-day): 'day'" in said.err


def test_a_date_that_stands_for_never_is_refused_with_its_row(tmp_path: Path) -> None:
    frame = rare(60)
    frame["day"] = ["9999-12-31", *[f"2024-01-{10 + i % 18}" for i in range(59)]]
    blank(frame, "y", 40).to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", "t.csv", "--target", "y", *QUICK, "logistic-regression")
    assert "holds dates, but '9999-12-31' in row 1 is no date" in refused(*fit, cwd=tmp_path)
    works(*fit, "--missing", "9999-12-31", cwd=tmp_path)


def test_a_constant_target_among_several_has_metrics(tmp_path: Path) -> None:
    frame = houses(120, 60)
    frame["heat"] = frame["heat"].where(frame["heat"].isna(), 7.0)
    frame.to_csv(tmp_path / "h.csv", index=False)
    said = works("fit", "h.csv", "--target", "price", "heat", *QUICK, "ridge", cwd=tmp_path)
    assert re.search(r"RMSE \d\.\d+(e-0\d)?, against 0\.\d+ for the mean", said.out)


def test_a_class_without_labels_is_flagged_and_the_headline_qualified(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    kind = np.repeat(["a", "b", "foreign"], 150)
    centre = {"a": [0, 0, 0], "b": [4, 0, 0], "foreign": [2, 6, 0]}
    x = np.array([centre[k] for k in kind]) + draw.normal(size=(450, 3))
    frame = pd.DataFrame(x, columns=list("xyz")).assign(kind=kind)
    frame.loc[(frame["kind"] == "foreign") | (draw.random(450) > 0.4), "kind"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = works("fit", "t.csv", "--target", "kind", *QUICK, "logistic-regression", cwd=tmp_path)
    assert "if they are like the labelled rows; many are not" in said.out
    works("impute", "runs/t", cwd=tmp_path)
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert labels["foreign"][300:].mean() > 0.9 and labels["foreign"][:300].mean() < 0.05
    assert labels["abstain"][300:].mean() > 0.9


def test_a_report_of_targets_has_no_leftovers_of_a_template(tmp_path: Path) -> None:
    houses(200, 60).to_csv(tmp_path / "h.csv", index=False)
    works("fit", "h.csv", "--target", "price", "heat", *QUICK, "extra-trees", cwd=tmp_path)
    works("report", "runs/h", cwd=tmp_path)
    page = (tmp_path / "runs/h/report.html").read_text(encoding="utf-8")
    assert "{{" not in page and "changed during training" not in page
    assert (
        "90 % interval" in page
        and "within the predicted interval, of labelled rows, out of fold" in page
    )


def test_a_resumed_fit_says_so(tmp_path: Path) -> None:
    flowers(120, 40).to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", "t.csv", "--target", "label", "--ignore", "kind", "name", *QUICK, "extra-trees")
    works(*fit, cwd=tmp_path)
    (tmp_path / "runs/t/fit.json").unlink()
    assert "resuming: 2 candidates done before" in works(*fit, cwd=tmp_path).err
    (tmp_path / "runs/t/fit.json").unlink()
    said = l2i("impute", "runs/t", cwd=tmp_path)
    assert said.code == 2 and "is an unfinished fit" in said.err


def test_untrusted_errors_of_targets_are_checked(tmp_path: Path) -> None:
    from l2i.fit.artifact import write_meta

    houses(120, 60).to_csv(tmp_path / "h.csv", index=False)
    works("fit", "h.csv", "--target", "price", "heat", *QUICK, "ridge", cwd=tmp_path)
    path = tmp_path / "runs/h/fit.json"
    content = json.loads(path.read_text())
    for damage in ({"error_std": []}, {"std_slopes": [99.0, 0.0]}, {"foreign_limit": -1.0}):
        write_meta(path.parent, content | damage)
        said = l2i("predict", "runs/h", "h.csv", cwd=tmp_path)
        assert said.code == 1 and "is damaged" in said.err


def test_untrusted_labels_and_shares_of_classes_are_checked(tmp_path: Path) -> None:
    from l2i.fit.artifact import write_meta

    blank(rare(200), "y", 100).to_csv(tmp_path / "t.csv", index=False)
    works(
        *("fit", "t.csv", "--target", "y", "--balance", *QUICK, "logistic-regression"), cwd=tmp_path
    )
    path = tmp_path / "runs/t/fit.json"
    content = json.loads(path.read_text())
    assert sum(content["class_shares"]) == pytest.approx(1)
    for shares in ([1.0], [0.0, 1.0], [float("nan"), 0.5]):
        write_meta(path.parent, content | {"class_shares": shares})
        said = l2i("impute", "runs/t", cwd=tmp_path)
        assert said.code == 1 and "is damaged" in said.err
    write_meta(path.parent, content | {"source": content["source"] | {"missing": [[1]]}})
    said = l2i("predict", "runs/t", "t.csv", cwd=tmp_path)
    assert said.code == 2 and "no valid missing" in said.err
    write_meta(path.parent, content | {"classes": ["ill"], "class_shares": []})
    said = l2i("impute", "runs/t", cwd=tmp_path)
    assert said.code == 1 and "is damaged" in said.err


def test_labels_of_groups_count_once(tmp_path: Path) -> None:
    """Four groups of ten rows tell apart two classes: no evidence, although 40 rows are right."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"who": np.repeat(np.arange(8), 10), "a": draw.normal(size=80)})
    frame["y"] = np.where(frame["who"] % 2, "odd", "even").astype(object)
    frame["a"] += 30.0 * (frame["who"] % 2)
    frame.loc[frame["who"] > 3, "y"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", "t.csv", "--target", "y", *QUICK, "logistic-regression")
    grouped = works(*fit, "--group", "who", cwd=tmp_path)
    assert "it may be no better than guessing" in grouped.out
    assert re.search(r"none of 40 rows was wrong; with 95 % confidence at most 53 %", grouped.out)
    alone = works(*fit, "--ignore", "who", "--out", "alone", cwd=tmp_path)
    assert "no better than guessing" not in alone.out and "at most 7.2 %" in alone.out


def test_rows_of_new_groups_are_not_foreign(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    who = np.repeat(np.arange(130), 5)
    centre = draw.normal(size=(130, 4))
    frame = pd.DataFrame(centre[who] + 0.1 * draw.normal(size=(650, 4)), columns=list("abcd"))
    frame["who"], frame["y"] = who, np.where(centre[who, 0] > 0, "up", "down").astype(object)
    frame.loc[frame["who"] > 40, "y"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", "t.csv", "--target", "y", "--group", "who", *QUICK, "logistic-regression")
    works(*fit, cwd=tmp_path)
    works("impute", "runs/t", cwd=tmp_path)
    assert pd.read_csv(tmp_path / "labels.csv")["foreign"].mean() < 0.15
