"""A user's own tables, from a file to labels, predictions, a report and a model file, as typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import (
    FIT,
    QUICK,
    fitted_flowers,
    flowers,
    houses,
    onnx_answers,
    probabilities,
    refused,
    reviews,
    works,
)

from l2i.fit.artifact import read_fit
from l2i.fit.candidates import select_by_errors


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted_flowers(tmp_path_factory.mktemp("table"))


def test_a_fit_says_what_it_reads_and_chooses_and_what_came_of_it(table: Path) -> None:
    said, printed = (table / "said.txt").read_text(), (table / "printed.txt").read_text()
    assert "l2i: 30 labelled rows, 570 unlabelled" in said
    assert "l2i: categorical columns: 'colour'" in said
    assert "blank cells are filled with the mean and flagged: 'size1' (60)" in said
    assert "l2i: steps: 60 (set by you)" in said
    assert "l2i: network: mlp, width 16, depth 2 (set by you)" in said
    assert "l2i: optimizer: adam, learning rate 0.005, constant (set by you)" in said
    assert "l2i: method: pseudo-label, weight 1, threshold 0.95 (tabular classification" in said
    (split,) = [line for line in said.splitlines() if line.startswith("l2i: split: ")]
    assert split.startswith("l2i: split: 18 labelled (") and ", 570 unlabelled, 6 valid" in split
    lines = printed.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == [
        "supervised",
        "pseudo-label",
        "pseudo-label + L2I",
    ]
    assert sum("  selected" in line for line in lines[:4]) == 1
    assert "unlabelled rows h" in lines[5] and "learning to impute" in lines[7].lower()
    assert lines[6].startswith("  test error ") and lines[8].startswith("  test error ")
    assert lines[9].startswith("Selected: ")
    assert re.match(r"\d+ of the 570 imputed labels are usable", lines[11])
    assert lines[-4:] == [
        "Saved in runs/flowers. Next:",
        "  l2i report runs/flowers",
        "  l2i impute runs/flowers --out labels.csv",
        "  l2i predict runs/flowers NEW_DATA",
    ]


def test_what_is_asked_for_arrives_in_every_candidate(table: Path) -> None:
    for name in ("supervised", "baseline", "l2i"):
        config = json.loads((table / "runs/flowers" / name / "config.json").read_text())
        assert (config["steps"], config["seed"]) == (60, 1)
        assert (config["model"]["width"], config["optim"]["lr"]) == (16, 0.005)
        assert config["l2i"]["update"] == ("normalized" if name == "l2i" else "off")
        assert config["method"]["name"] == (
            "supervised" if name == "supervised" else "pseudo-label"
        )
        snapshots = sorted((table / "runs/flowers" / name / "snapshots").iterdir())
        assert snapshots[-1].name == "000000060.npy" and len(snapshots) == 10


def test_the_choice_is_by_the_rule_on_the_validation_rows(table: Path) -> None:
    fitted, rows = read_fit(table / "runs/flowers")
    assert {
        part: int((rows.split_names == part).sum())
        for part in ("labeled", "validation", "test", "unlabeled")
    } == {"labeled": 18, "validation": 6, "test": 6, "unlabeled": 570}
    wrong = {
        name: (outputs.argmax(axis=1) != rows.given_labels).astype(float)
        for name, outputs in rows.outputs.items()
    }
    for part in ("validation", "test"):
        for c in fitted.candidates:
            assert getattr(c, f"{part}_metric") == pytest.approx(
                100 * wrong[c.name][rows.split_names == part].mean()
            )
    assert set(wrong) == {"supervised", "baseline", "l2i"}
    assert fitted.selected_name == select_by_errors(
        {name: values[rows.split_names == "validation"] for name, values in wrong.items()}
    )


def test_imputed_labels_are_a_row_for_each_row_in_order(table: Path) -> None:
    said = works("impute", "runs/flowers", "--out", "labels.csv", cwd=table)
    works("impute", "runs/flowers", "--out", "labels.parquet", "--threshold", "0.5", cwd=table)
    frame, loose = pd.read_csv(table / "labels.csv"), pd.read_parquet(table / "labels.parquet")
    truth = flowers()
    for actual, threshold in ((frame, 0.9), (loose, 0.5)):
        assert list(actual.columns) == ["id", "label", "source", "confidence", "abstain", "changes"]
        assert actual["id"].tolist() == truth["name"].tolist()
        given = truth["label"] != ""
        assert (actual.loc[given, "label"] == truth.loc[given, "label"]).all()
        assert (actual["source"] == np.where(given, "given", "imputed")).all()
        assert set(actual["label"]) == {"aster", "lily", "rose"}
        assert (
            actual["confidence"].between(1 / 3, 1).all()
            and (actual.loc[given, "confidence"] == 1).all()
        )
        assert (actual["abstain"] == (~given & (actual["confidence"] < threshold))).all()
        assert pd.api.types.is_bool_dtype(actual["abstain"]) and pd.api.types.is_integer_dtype(
            actual["changes"]
        )
        assert (actual["changes"] >= 0).all() and actual["changes"].max() > 0
        assert (actual.loc[given, "changes"] == 0).all()
    assert (frame["label"] == truth["kind"]).mean() > 0.6
    assert loose["abstain"].sum() < frame["abstain"].sum()
    counts = f"30 given, 570 imputed ({frame['abstain'].sum()} abstain)"
    assert said.out == f"wrote 600 labels to labels.csv: {counts}\n"
    assert not list(table.glob("*.partial"))


def test_new_rows_are_predicted_with_what_is_new_told(table: Path) -> None:
    new = flowers(20, 0, seed=9).drop(columns=["label", "kind"])
    new.loc[3, "colour"], new.loc[5, "size0"] = "violet", np.nan
    new.to_csv(table / "new.csv", index=False)
    said = works("predict", "runs/flowers", "new.csv", cwd=table)
    assert (
        "l2i: column 'colour': 1 row with 1 new category, such as 'violet', treated as unknown"
        in said.err
    )
    assert "l2i: column 'size0': 1 blank cell filled with the mean" in said.err
    lines = said.out.splitlines()
    assert lines[0] == "id,label,confidence,p(aster),p(lily),p(rose)"
    assert [line.split(",")[0] for line in lines[1:]] == new["name"].tolist()
    assert (
        works("predict", "runs/flowers", "new.csv", "--out", "p.parquet", cwd=table).out
        == "wrote 20 predictions to p.parquet\n"
    )
    frame = pd.read_parquet(table / "p.parquet")
    np.testing.assert_allclose(probabilities(frame).sum(axis=1), 1, atol=1e-5)
    assert (
        frame["label"] == np.array(["aster", "lily", "rose"])[probabilities(frame).argmax(axis=1)]
    ).all()
    assert (frame["confidence"] == probabilities(frame).max(axis=1)).all()


def test_predictions_of_the_rows_fitted_to_are_the_labels_imputed(table: Path) -> None:
    works("predict", "runs/flowers", "flowers.csv", "--out", "same.csv", cwd=table)
    works("impute", "runs/flowers", "--out", "same_labels.csv", cwd=table)
    predicted, imputed = pd.read_csv(table / "same.csv"), pd.read_csv(table / "same_labels.csv")
    blank = imputed["source"] == "imputed"
    assert (predicted["label"] == imputed["label"])[blank].all()
    np.testing.assert_allclose(
        predicted["confidence"][blank], imputed["confidence"][blank], atol=2e-6
    )


def test_an_exported_table_model_answers_as_predict_does(table: Path) -> None:
    said = works("export", "runs/flowers", "model.onnx", cwd=table)
    assert said.out == "wrote model.onnx; its outputs match the model's\n"
    works("predict", "runs/flowers", "flowers.csv", "--out", "all.csv", cwd=table)
    raw = pd.read_csv(table / "flowers.csv")
    feeds = {
        "numbers": raw[["size0", "size1", "size2"]].to_numpy(dtype=np.float32),
        "categories": raw[["colour"]].to_numpy(dtype=object),
    }
    actual = onnx_answers(table / "model.onnx", feeds)
    np.testing.assert_allclose(
        actual["probabilities"], probabilities(pd.read_csv(table / "all.csv")), atol=1e-4
    )


def test_a_report_is_one_file_with_the_verdict(table: Path) -> None:
    assert works("report", "runs/flowers", cwd=table).out == "runs/flowers/report.html\n"
    page = (table / "runs/flowers/report.html").read_text()
    verdict = (table / "printed.txt").read_text().splitlines()[5]
    assert verdict in page
    assert works("report", "runs/flowers", "--out", "page.html", cwd=table).out == "page.html\n"
    assert (table / "page.html").read_text() == page


def test_all_rows_labelled_is_supervised_and_said(tmp_path: Path) -> None:
    flowers(120, 120).to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*FIT, "--method", "vat", cwd=tmp_path)
    assert "l2i: no unlabelled rows: there is nothing to impute" in said.err
    assert "l2i: method: supervised (there are no unlabelled rows)" in said.err
    assert "Selected: supervised (validation error " in said.out
    assert "the only candidate" in said.out
    said = works("impute", "runs/flowers", cwd=tmp_path)
    assert said.out == "wrote 120 labels to labels.csv: 120 given, 0 imputed (0 abstain)\n"
    assert (pd.read_csv(tmp_path / "labels.csv")["source"] == "given").all()
    works("report", "runs/flowers", cwd=tmp_path)


def test_a_class_with_one_label_works_and_is_said(tmp_path: Path) -> None:
    frame = flowers(200, 40)
    frame.loc[np.flatnonzero(frame["label"] == "")[0], "label"] = "orchid"
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*FIT, "--steps", "20", cwd=tmp_path)
    note = "classes with one label, too few to judge a model by: 'orchid'"
    assert note in said.err
    fitted, rows = read_fit(tmp_path / "runs/flowers")
    assert fitted.classes == ("aster", "lily", "orchid", "rose")
    assert rows.split_names[rows.given_labels == 2].tolist() == ["labeled"]
    works("report", "runs/flowers", cwd=tmp_path)


def test_arrays_of_numbers_to_be_told(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 4))
    y = 1e4 + 500 * x[:, 0]
    np.savez(tmp_path / "a.npz", x=x, y=np.where(np.arange(200) < 80, y, np.nan))
    said = works("fit", "a.npz", *QUICK, "--steps", "100", cwd=tmp_path)
    assert "validation RMSE" in said.out
    works("impute", "runs/a", cwd=tmp_path)
    frame = pd.read_csv(tmp_path / "labels.csv")
    assert list(frame.columns) == ["id", "y", "y_spread", "source", "abstain", "changes"]
    assert (frame["y"][:80] == y[:80]).all()
    assert np.corrcoef(frame["y"][80:], y[80:])[0, 1] > 0.7
    works("export", "runs/a", "model.onnx", cwd=tmp_path)
    works("predict", "runs/a", "a.npz", "--out", "p.csv", cwd=tmp_path)
    actual = onnx_answers(tmp_path / "model.onnx", {"numbers": x.astype(np.float32)})["values"][
        :, 0
    ]
    np.testing.assert_allclose(
        actual, pd.read_csv(tmp_path / "p.csv")["y"], atol=1e-4 * 500, rtol=1e-6
    )


def test_text_is_read_by_its_words_and_not_exported(tmp_path: Path) -> None:
    reviews().to_csv(tmp_path / "films.csv", index=False)
    options = ("--text", "review", "--target", "mood")
    said = works("fit", "films.csv", *options, *QUICK, "--optim.lr", "0.01", cwd=tmp_path)
    assert "l2i: text columns: 'review'" in said.err
    works("impute", "runs/films", cwd=tmp_path)
    frame = pd.read_csv(tmp_path / "labels.csv")
    assert (frame["mood"] == np.where(frame.index % 2, "good", "bad")).mean() > 0.8
    (tmp_path / "new.csv").write_text('review\n"a lovely, great film"\n"poor, dull, awful"\n""\n')
    lines = works("predict", "runs/films", "new.csv", cwd=tmp_path).out.splitlines()
    assert [line.split(",")[1] for line in lines[1:3]] == ["good", "bad"]
    assert len(lines) == 4
    works("report", "runs/films", cwd=tmp_path)
    assert "lovely" in (tmp_path / "runs/films/report.html").read_text()
    line = refused("export", "runs/films", "model.onnx", cwd=tmp_path)
    assert "column 'review' is text, which cannot be exported; use 'l2i predict" in line


def test_two_targets_of_different_units(tmp_path: Path) -> None:
    frame = houses()
    frame.to_csv(tmp_path / "houses.csv", index=False)
    works("fit", "houses.csv", "--target", "price", "heat", *QUICK, "--steps", "100", cwd=tmp_path)
    works("impute", "runs/houses", "--out", "labels.parquet", "--threshold", "0.7", cwd=tmp_path)
    actual = pd.read_parquet(tmp_path / "labels.parquet")
    assert actual[["price", "heat"]][:80].equals(frame[["price", "heat"]][:80])
    rest = actual[80:]
    assert (
        np.corrcoef(
            rest["price"], 300_000 + 90_000 * frame["area"][80:] - 20_000 * frame["age"][80:]
        )[0, 1]
        > 0.7
    )
    assert np.corrcoef(rest["heat"], 0.02 + 0.003 * frame["rooms"][80:])[0, 1] > 0.7
    fitted, _ = read_fit(tmp_path / "runs/houses")
    vague = (rest[["price_spread", "heat_spread"]].to_numpy() / np.array(fitted.target_std)).max(
        axis=1
    )
    assert (rest["abstain"].to_numpy() == (vague > 0.7)).all()
    works("report", "runs/houses", cwd=tmp_path)
    said = works("predict", "runs/houses", "houses.csv", cwd=tmp_path)
    assert said.out.splitlines()[0] == "id,price,heat"
