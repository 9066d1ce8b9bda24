"""Own data from a file to labels, predictions, a report and a model file, as a person types it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fits import QUICK, flowers, houses, l2i, photos, refused, reviews, squares, works
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.datasets import load_digits

from l2i.config import Run
from l2i.config import replace as changed
from l2i.options import FitOptions
from l2i.own.finish import finished
from l2i.own.fit import candidates, made_ready, planned, ready, trained_on
from l2i.own.fitted import read_fit
from l2i.own.imputed import impute
from l2i.own.pictures import Frame, read_pictures
from l2i.own.read_folder import new_files
from l2i.own.source import read_source

READ = ("--target", "label", "--id", "name", "--ignore", "kind")
FIT = ("fit", "flowers.csv", *READ, *QUICK, "--steps", "60", "--optim.lr", "0.005", "--seed", "1")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with flowers.csv, of which 5 % are labelled, fitted in runs/flowers."""
    folder = tmp_path_factory.mktemp("table")
    flowers().to_csv(folder / "flowers.csv", index=False)
    said = works(*FIT, cwd=folder)
    (folder / "said.txt").write_text(said.err)
    (folder / "printed.txt").write_text(said.out)
    return folder


def onnx_answers(path: Path, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def probabilities(frame: pd.DataFrame) -> NDArray[np.float64]:
    return frame[[name for name in frame.columns if name.startswith("p(")]].to_numpy()


def test_a_fit_says_what_it_reads_and_chooses_and_what_came_of_it(table: Path) -> None:
    said, printed = (table / "said.txt").read_text(), (table / "printed.txt").read_text()
    assert "l2i: 30 rows labelled, 570 not" in said
    assert "l2i: read as categories: 'colour'" in said
    assert "blank cells are filled with the mean and marked: 'size1' (60)" in said
    assert "l2i: steps: 60 (as asked)" in said
    assert "l2i: network: mlp, width 16, depth 2 (as asked)" in said
    assert "l2i: optimizer: adam, rate 0.005, constant (as asked)" in said
    assert "l2i: method: pseudo-label, weight 1, threshold 0.95 (classes of a table" in said
    lines = printed.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["supervised", "pseudo-label", "pseudo-label + L2I"]
    assert sum("  chosen" in line for line in lines[:4]) == 1
    assert "help" in lines[4] and "learning to impute" in lines[5].lower()
    assert lines[-1].startswith("in runs/flowers; next: l2i impute runs/flowers --out labels.csv")


def test_what_is_asked_for_arrives_in_every_candidate(table: Path) -> None:
    for name in ("supervised", "baseline", "l2i"):
        config = json.loads((table / "runs/flowers" / name / "config.json").read_text())
        assert (config["steps"], config["seed"]) == (60, 1)
        assert (config["model"]["width"], config["optim"]["lr"]) == (16, 0.005)
        assert config["l2i"]["outer_update"] == ("normalized" if name == "l2i" else "off")
        assert config["method"]["name"] == ("supervised" if name == "supervised" else "pseudo-label")
        snapshots = sorted((table / "runs/flowers" / name / "snapshots").iterdir())
        assert snapshots[-1].name == "000000060.npy" and len(snapshots) == 10


def test_the_choice_is_the_best_on_the_validation_rows(table: Path) -> None:
    fitted, rows = read_fit(table / "runs/flowers")
    assert {part: int((rows.parts == part).sum()) for part in ("labeled", "validation", "test", "unlabeled")} == {
        "labeled": 18,
        "validation": 6,
        "test": 6,
        "unlabeled": 570,
    }
    found, order = {}, ["l2i", "baseline", "supervised"]
    for part in ("validation", "test"):
        held = rows.parts == part
        for c in fitted.candidates:
            logs = log_softmax(rows.outputs[c.name][held].astype(np.float64), axis=1)
            error = 100 * float((logs.argmax(axis=1) != rows.given[held]).mean())
            assert getattr(c, part) == pytest.approx(error)
            if part == "validation":
                found[c.name] = (round(error, 6), order.index(c.name))
    assert fitted.chosen == min(found, key=lambda name: found[name])
    assert set(found) == {"supervised", "baseline", "l2i"}


def test_imputed_labels_are_a_row_for_each_row_in_order(table: Path) -> None:
    said = works("impute", "runs/flowers", "--out", "labels.csv", cwd=table)
    works("impute", "runs/flowers", "--out", "labels.parquet", "--threshold", "0.5", cwd=table)
    frame, loose = pd.read_csv(table / "labels.csv"), pd.read_parquet(table / "labels.parquet")
    truth = flowers()
    for found, threshold in ((frame, 0.9), (loose, 0.5)):
        assert list(found.columns) == ["id", "label", "source", "confidence", "abstain", "changes"]
        assert found["id"].tolist() == truth["name"].tolist()
        given = truth["label"] != ""
        assert (found.loc[given, "label"] == truth.loc[given, "label"]).all()
        assert (found["source"] == np.where(given, "given", "imputed")).all()
        assert set(found["label"]) == {"aster", "lily", "rose"}
        assert found["confidence"].between(1 / 3, 1).all() and (found.loc[given, "confidence"] == 1).all()
        assert (found["abstain"] == (~given & (found["confidence"] < threshold))).all()
        assert pd.api.types.is_bool_dtype(found["abstain"]) and pd.api.types.is_integer_dtype(found["changes"])
        assert (found["changes"] >= 0).all() and found["changes"].max() > 0
        assert (found.loc[given, "changes"] == 0).all()
    assert (frame["label"] == truth["kind"]).mean() > 0.6
    assert loose["abstain"].sum() < frame["abstain"].sum()
    assert said.out == f"600 rows in labels.csv: 570 imputed, {frame['abstain'].sum()} of them abstained\n"
    assert not list(table.glob("*.partial"))


def test_new_rows_are_predicted_with_what_is_new_told(table: Path) -> None:
    new = flowers(20, 0, seed=9).drop(columns=["label", "kind"])
    new.loc[3, "colour"], new.loc[5, "size0"] = "violet", np.nan
    new.to_csv(table / "new.csv", index=False)
    said = works("predict", "runs/flowers", "new.csv", cwd=table)
    assert "l2i: column 'colour': 1 row with 1 new category, such as 'violet', counts as not known" in said.err
    assert "l2i: column 'size0': 1 blank row filled with the mean" in said.err
    lines = said.out.splitlines()
    assert lines[0] == "id,label,confidence,p(aster),p(lily),p(rose)"
    assert [line.split(",")[0] for line in lines[1:]] == new["name"].tolist()
    assert works("predict", "runs/flowers", "new.csv", "--out", "p.parquet", cwd=table).out == "20 rows in p.parquet\n"
    frame = pd.read_parquet(table / "p.parquet")
    np.testing.assert_allclose(probabilities(frame).sum(axis=1), 1, atol=1e-5)
    assert (frame["label"] == np.array(["aster", "lily", "rose"])[probabilities(frame).argmax(axis=1)]).all()
    assert (frame["confidence"] == probabilities(frame).max(axis=1)).all()


def test_predictions_of_the_rows_fitted_to_are_the_labels_imputed(table: Path) -> None:
    works("predict", "runs/flowers", "flowers.csv", "--out", "same.csv", cwd=table)
    works("impute", "runs/flowers", "--out", "same_labels.csv", cwd=table)
    predicted, imputed = pd.read_csv(table / "same.csv"), pd.read_csv(table / "same_labels.csv")
    blank = imputed["source"] == "imputed"
    assert (predicted["label"] == imputed["label"])[blank].all()
    np.testing.assert_allclose(predicted["confidence"][blank], imputed["confidence"][blank], atol=2e-6)


def test_an_exported_table_model_answers_as_predict_does(table: Path) -> None:
    said = works("export", "runs/flowers", "model.onnx", cwd=table)
    assert said.out.startswith("model.onnx: the same as the model's own outputs")
    works("predict", "runs/flowers", "flowers.csv", "--out", "all.csv", cwd=table)
    raw = pd.read_csv(table / "flowers.csv")
    feeds = {
        "numbers": raw[["size0", "size1", "size2"]].to_numpy(dtype=np.float32),
        "categories": raw[["colour"]].to_numpy(dtype=object),
    }
    found = onnx_answers(table / "model.onnx", feeds)
    np.testing.assert_allclose(found["probabilities"], probabilities(pd.read_csv(table / "all.csv")), atol=1e-4)


def test_a_report_is_one_file_with_the_verdict(table: Path) -> None:
    assert works("report", "runs/flowers", cwd=table).out == "runs/flowers/report.html\n"
    page = (table / "runs/flowers/report.html").read_text()
    verdict = (table / "printed.txt").read_text().splitlines()[4]
    assert verdict.split(":")[0] in page
    assert works("report", "runs/flowers", "--out", "page.html", cwd=table).out == "page.html\n"
    assert (table / "page.html").read_text() == page


def test_a_fit_that_is_done_is_not_done_again(table: Path) -> None:
    before = (table / "runs/flowers/fit.json").stat().st_mtime_ns
    begun = time.monotonic()
    said = works(*FIT, cwd=table)
    assert time.monotonic() - begun < 2
    assert "runs/flowers: done before; give another --out to fit again" in said.err
    assert said.out == (table / "printed.txt").read_text()
    assert (table / "runs/flowers/fit.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("other", [("--seed", "2"), ("--steps", "50"), ("--validation", "0.3"), ("--method", "vat")])
def test_other_options_in_the_same_folder_are_refused(table: Path, other: tuple[str, str]) -> None:
    assert "runs/flowers holds a fit of other data or options; give another --out" in refused(*FIT, *other, cwd=table)


def test_other_data_in_the_same_folder_are_refused(table: Path, tmp_path: Path) -> None:
    shutil.copytree(table / "runs", tmp_path / "runs")
    flowers(seed=1).to_csv(tmp_path / "flowers.csv", index=False)
    assert "holds a fit of other data or options" in refused(*FIT, cwd=tmp_path)


def test_a_folder_of_something_else_is_left_alone(table: Path) -> None:
    (table / "mine").mkdir(exist_ok=True)
    (table / "mine" / "thesis.txt").write_text("years of work")
    said = l2i(*FIT, "--out", "mine", cwd=table)
    assert said.code == 2
    assert said.err == "l2i: mine holds something else already; give another --out\n"
    assert (table / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_fit_that_was_cut_goes_on_to_the_same_end(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(table / "runs/flowers", folder)
    (folder / "fit.json").unlink()
    (folder / "l2i" / "result.json").unlink()
    sorted((folder / "l2i" / "checkpoints").iterdir())[-1].unlink()  # as it was at step 45
    assert "is an unfinished fit; the command that began it goes on" in refused("impute", str(folder), cwd=table)
    said = works(*FIT, "--out", str(folder), cwd=table)
    assert "resuming from step 45" in said.err
    (before, first), (after, second) = read_fit(table / "runs/flowers"), read_fit(folder)
    assert (after.chosen, after.temperature, after.samples) == (before.chosen, before.temperature, before.samples)
    assert all((first.outputs[name] == second.outputs[name]).all() for name in first.outputs)
    assert (first.changes == second.changes).all()


def test_a_real_process_stopped_by_a_signal_says_so_and_goes_on(table: Path, tmp_path: Path) -> None:
    command = [*FIT, "--out", str(tmp_path / "run"), "--steps", "300"]
    process = subprocess.Popen(
        [sys.executable, "-m", "l2i", *command], cwd=table, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    saved = tmp_path / "run" / "supervised" / "checkpoints" / "0000000075.safetensors"
    while not saved.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143, err
    assert "the same command goes on from there" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "fit.json").exists()
    for command_on_it in (("impute",), ("report",), ("predict", "flowers.csv"), ("export", "m.onnx")):
        name, *rest = command_on_it
        assert "is an unfinished fit" in refused(name, str(tmp_path / "run"), *rest, cwd=table)
    said = works(*command, cwd=table)
    assert "resuming from step" in said.err
    assert (tmp_path / "run" / "fit.json").exists()


def small(run: Run) -> Run:
    return changed(run, device="cpu", threads=1, steps=20, model={"width": 8}, seed=2)


def test_labels_of_test_rows_play_no_part_in_choice_or_imputation(table: Path, tmp_path: Path) -> None:
    options = FitOptions(target=("label",), id="name", ignore=("kind",), test=0.4)
    source = read_source(str(table / "flowers.csv"), options)
    data = made_ready(source, options, small(Run()))
    measured = data.parts == "test"
    given = source.given.copy()
    given[measured] = (given[measured] + 1) % 3
    lying = ready(replace(source, given=given), data.inputs, data.parts, data.x, small(Run()))
    found = []
    for name, each in (("true", data), ("lying", lying)):
        run, choices = planned(each, options, small, small(Run()))
        runs = candidates(run, options, tmp_path / name, unlabeled=True)
        found.append(finished(each, [trained_on(each, *item) for item in runs.items()], choices, {}))
    (fitted, rows), (other, others) = found
    assert [c.test for c in fitted.candidates] != [c.test for c in other.candidates]
    assert (other.chosen, other.temperature, other.unlike) == (fitted.chosen, fitted.temperature, fitted.unlike)
    assert [c.validation_cost for c in other.candidates] == [c.validation_cost for c in fitted.candidates]
    blank = source.given < 0
    mine, theirs = impute(fitted, rows), impute(other, others)
    assert (mine.labels[blank] == theirs.labels[blank]).all()
    assert (mine.confidence[blank] == theirs.confidence[blank]).all()


def test_without_baselines_one_network_is_trained(table: Path) -> None:
    out = ("--out", "runs/alone")
    said = works(*FIT, *out, "--no-baselines", "--method", "vat", "--method.epsilon", "2", cwd=table)
    assert "l2i: method: vat, weight 1 (as asked)" in said.err
    assert "vat + L2I was the only one trained" in said.out
    assert "was not compared: no network was trained on the labelled rows alone" in said.out
    assert [path.name for path in (table / "runs/alone").iterdir() if path.is_dir()] == ["l2i"]
    config = json.loads((table / "runs/alone/l2i/config.json").read_text())
    assert (config["method"]["name"], config["method"]["epsilon"]) == ("vat", 2.0)
    works("impute", "runs/alone", "--out", "alone.csv", cwd=table)
    works("report", "runs/alone", cwd=table)


def test_imputation_can_be_turned_off(table: Path) -> None:
    said = works(*FIT, "--out", "runs/off", "--l2i.outer-update", "off", cwd=table)
    assert "l2i: L2I: off (as asked)" in said.err
    assert sorted(path.name for path in (table / "runs/off").iterdir() if path.is_dir()) == ["baseline", "supervised"]
    works("report", "runs/off", cwd=table)


def test_without_test_rows_there_is_a_fit_and_no_test_figure(table: Path) -> None:
    works(*FIT, "--out", "runs/untested", "--test", "0", cwd=table)
    fitted, rows = read_fit(table / "runs/untested")
    assert not (rows.parts == "test").any() and all(c.test is None for c in fitted.candidates)
    works("report", "runs/untested", cwd=table)


def test_all_rows_labelled_is_supervised_and_said(tmp_path: Path) -> None:
    flowers(120, 120).to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*FIT, "--method", "vat", cwd=tmp_path)
    assert "l2i: no unlabelled rows: only the supervised model will be trained" in said.err
    assert "l2i: method: supervised (there are no unlabelled rows)" in said.err
    assert "supervised was the only one trained" in said.out
    said = works("impute", "runs/flowers", cwd=tmp_path)
    assert said.out == "120 rows in labels.csv: 0 imputed, 0 of them abstained\n"
    assert (pd.read_csv(tmp_path / "labels.csv")["source"] == "given").all()
    works("report", "runs/flowers", cwd=tmp_path)


def test_a_class_with_one_label_works_and_is_said(tmp_path: Path) -> None:
    frame = flowers(200, 40)
    frame.loc[np.flatnonzero(frame["label"] == "")[0], "label"] = "orchid"
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*FIT, "--steps", "20", cwd=tmp_path)
    assert "with one label, a class cannot be in both training and validation: 'orchid'" in said.err
    fitted, rows = read_fit(tmp_path / "runs/flowers")
    assert fitted.classes == ("aster", "lily", "orchid", "rose")
    assert rows.parts[rows.given == 2].tolist() == ["labeled"]
    works("report", "runs/flowers", cwd=tmp_path)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    photos(folder / "photos")
    said = works("fit", "photos", *QUICK, "--steps", "30", "--model.width", "8", cwd=folder)
    assert "l2i: 20 rows labelled, 24 not" in said.err
    assert "their centre square, of three colours; --size chooses another" in said.err
    assert "l2i: method: fixmatch" in said.err
    return folder


def test_a_folder_of_mixed_images_has_its_unlabelled_ones_labelled(images: Path) -> None:
    works("impute", "runs/photos", "--out", "labels.csv", cwd=images)
    frame = pd.read_csv(images / "labels.csv")
    names = sorted(str(p.relative_to(images / "photos")) for p in (images / "photos").rglob("*.*"))
    assert sorted(frame["id"]) == names
    given = frame["source"] == "given"
    assert (frame["id"].str.split("/").str[0] == frame["class"])[given].all()
    truth = frame["id"][~given].str.extract(r"(\d+)\.")[0].astype(int) % 2
    assert (frame["class"][~given] == np.where(truth, "bright", "dark")).mean() > 0.7


def test_new_images_are_predicted_from_a_folder_or_a_file(images: Path) -> None:
    works("predict", "runs/photos", "photos/unlabeled", "--out", "new.csv", cwd=images)
    frame = pd.read_csv(images / "new.csv")
    assert len(frame) == 24
    alone = works("predict", "runs/photos", "photos/unlabeled/5.png", cwd=images).out.splitlines()
    assert alone[0] == "id,class,confidence,p(bright),p(dark)"
    same = frame[frame["id"] == "5.png"].iloc[0]
    assert alone[1].split(",")[:2] == ["5.png", same["class"]]
    assert float(alone[1].split(",")[2]) == pytest.approx(same["confidence"], abs=1e-5)


def test_an_exported_image_model_answers_as_predict_does(images: Path) -> None:
    works("export", "runs/photos", "model.onnx", cwd=images)
    works("predict", "runs/photos", "photos/unlabeled", "--out", "exported.csv", cwd=images)
    options, listed = read_fit(images / "runs/photos")[0].source, new_files(images / "photos/unlabeled")
    frame = Frame(options["side"], options["channels"], options["whole"])
    raw = read_pictures(listed.paths, listed.names, lambda *_: frame, skip=False).pixels
    found = onnx_answers(images / "model.onnx", {"images": raw})
    wanted = pd.read_csv(images / "exported.csv")
    assert wanted["id"].tolist() == listed.names
    np.testing.assert_allclose(found["probabilities"], probabilities(wanted), atol=1e-4)


def test_a_report_on_images_shows_pictures(images: Path) -> None:
    works("report", "runs/photos", "--out", "page.html", cwd=images)
    assert (images / "page.html").read_text().count("data:image/png;base64,") >= 16


def test_landmarks_come_back_in_pixels_of_the_images_as_they_were(tmp_path: Path) -> None:
    truth, names = squares(tmp_path), ["left", "top", "right", "bottom"]
    options = ("--image", "path", "--target", *names, "--size", "20", "--no-baselines")
    said = works("fit", "squares.csv", *options, *QUICK, "--model.width", "64", "--steps", "80", cwd=tmp_path)
    assert "l2i: the targets are 2 points x, y in pixels" in said.err
    works("impute", "runs/squares", "--out", "labels.csv", cwd=tmp_path)
    frame = pd.read_csv(tmp_path / "labels.csv")
    assert list(frame.columns) == [
        "id", *names, *(f"{n}_spread" for n in names), "source", "abstain", "changes"
    ]  # fmt: skip
    given = frame["source"] == "given"
    assert given.tolist() == [i < 60 for i in range(150)]
    assert (frame.loc[given, names].to_numpy() == truth.loc[given, names].to_numpy()).all()
    spreads = frame[[f"{name}_spread" for name in names]].to_numpy()
    assert (spreads[given] == 0).all() and (spreads[~given] > 0).all()
    for name in names:
        found, right = frame.loc[~given, name], truth.loc[~given, name]
        assert np.corrcoef(found, right)[0, 1] > 0.8
        assert np.sqrt(((found - right) ** 2).mean()) < 0.6 * right.std()
    truth[["path"]].to_csv(tmp_path / "new.csv", index=False)
    works("predict", "runs/squares", "new.csv", "--out", "new_labels.csv", cwd=tmp_path)
    new = pd.read_csv(tmp_path / "new_labels.csv")
    assert list(new.columns) == ["id", *names]
    np.testing.assert_allclose(new.loc[~given, names], frame.loc[~given, names], atol=1e-3)
    works("report", "runs/squares", cwd=tmp_path)
    assert "data:image/png;base64," in (tmp_path / "runs/squares/report.html").read_text()
    works("export", "runs/squares", "model.onnx", cwd=tmp_path)


def test_arrays_of_images_and_classes(tmp_path: Path) -> None:
    digits = load_digits()
    x, y = digits.images[:300].astype(np.uint8) * 15, digits.target[:300].copy()
    y[100:] = -1
    np.savez(tmp_path / "digits.npz", x=x, y=y)
    works("fit", "digits.npz", *QUICK, "--model.width", "8", "--no-baselines", cwd=tmp_path)
    works("impute", "runs/digits", "--out", "labels.parquet", cwd=tmp_path)
    frame = pd.read_parquet(tmp_path / "labels.parquet")
    assert frame["id"].tolist() == [str(i) for i in range(1, 301)]
    assert pd.api.types.is_integer_dtype(frame["y"])
    assert (frame["y"][:100] == y[:100]).all()
    assert (frame["y"][100:] == digits.target[100:300]).mean() > 0.3
    np.savez(tmp_path / "new.npz", x=x[:7])
    assert len(works("predict", "runs/digits", "new.npz", cwd=tmp_path).out.splitlines()) == 8
    works("report", "runs/digits", cwd=tmp_path)


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
    found = onnx_answers(tmp_path / "model.onnx", {"numbers": x.astype(np.float32)})["values"][:, 0]
    np.testing.assert_allclose(found, pd.read_csv(tmp_path / "p.csv")["y"], atol=1e-4 * 500, rtol=1e-6)


def test_text_is_read_by_its_words_and_not_exported(tmp_path: Path) -> None:
    reviews().to_csv(tmp_path / "films.csv", index=False)
    options = ("--text", "review", "--target", "mood")
    said = works("fit", "films.csv", *options, *QUICK, "--optim.lr", "0.01", cwd=tmp_path)
    assert "l2i: read as text: 'review'" in said.err
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
    assert "column 'review' is text, which a model file cannot read; use 'l2i predict" in line


def test_two_targets_of_different_units(tmp_path: Path) -> None:
    frame = houses()
    frame.to_csv(tmp_path / "houses.csv", index=False)
    works("fit", "houses.csv", "--target", "price", "heat", *QUICK, "--steps", "100", cwd=tmp_path)
    works("impute", "runs/houses", "--out", "labels.parquet", "--threshold", "0.7", cwd=tmp_path)
    found = pd.read_parquet(tmp_path / "labels.parquet")
    assert found[["price", "heat"]][:80].equals(frame[["price", "heat"]][:80])
    rest = found[80:]
    assert np.corrcoef(rest["price"], 300_000 + 90_000 * frame["area"][80:] - 20_000 * frame["age"][80:])[0, 1] > 0.7
    assert np.corrcoef(rest["heat"], 0.02 + 0.003 * frame["rooms"][80:])[0, 1] > 0.7
    fitted, _ = read_fit(tmp_path / "runs/houses")
    vague = (rest[["price_spread", "heat_spread"]].to_numpy() / np.array(fitted.target_std)).max(axis=1)
    assert (rest["abstain"].to_numpy() == (vague > 0.7)).all()
    works("report", "runs/houses", cwd=tmp_path)
    said = works("predict", "runs/houses", "houses.csv", cwd=tmp_path)
    assert said.out.splitlines()[0] == "id,price,heat"
