"""A table's model, chosen by cross-validation: from `l2i fit` to every other command."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import flowers, houses, l2i, refused, works

from l2i.fit import tables
from l2i.fit.artifact import FINAL, read_fit

PLAIN = ("logistic-regression", "extra-trees", "self-training", "imputing", "ridge", "mean")
QUICK = ("--candidates", "majority", *PLAIN, "--threads", "1")
FIT = ("fit", "flowers.csv", "--target", "label", "--id", "name", "--ignore", "kind", *QUICK)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    flowers(400, 60).to_csv(folder / "flowers.csv", index=False)
    said = works(*FIT, cwd=folder)
    (folder / "said.txt").write_text(said.err)
    (folder / "printed.txt").write_text(said.out)
    return folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    houses(300, 80).to_csv(folder / "houses.csv", index=False)
    works("fit", "houses.csv", "--target", "price", "heat", *QUICK, cwd=folder)
    return folder


def test_a_fit_tells_each_candidate_and_leads_with_the_labels(classes: Path) -> None:
    said, printed = (classes / "said.txt").read_text(), (classes / "printed.txt").read_text()
    assert re.search(r"candidate 1 of 5, majority class: error \d+\.\d % \(\d\.\d s\)", said)
    assert re.search(r"candidate 5 of 5, .* \+ imputing: error", said)
    assert "to all 60 labels" in said
    lines = printed.splitlines()
    assert "cross-validation error (%)" in lines[0] and "test" not in lines[0]
    assert sum("  selected" in line for line in lines) == 1
    assert re.search(r"was chosen:\n  error \d+\.\d %, against \d+\.\d % for the major", printed)
    assert re.search(r"On new rows expect an error of \d+\.\d % ± \d\.\d %", printed)
    usable = re.search(r"(\d+) of the 340 imputed labels are usable", printed)
    assert usable is not None and int(usable[1]) > 50
    assert re.search(r"Expect about \d+ of them to be wrong \(", printed)
    assert re.search(r"Label these rows next: 'plant \d+', ", printed)


def test_every_label_is_trained_on_and_measured_out_of_fold(classes: Path) -> None:
    fitted, rows = read_fit(classes / "runs/flowers")
    assert set(rows.split_names) == {"labeled", "unlabeled"}
    assert fitted.num_folds == 5 and fitted.model is not None
    is_labeled = rows.split_names == "labeled"
    for candidate in fitted.candidates:
        outputs = rows.outputs[candidate.name]
        assert np.isnan(outputs[~is_labeled]).all() and np.isfinite(outputs[is_labeled]).all()
        wrong = outputs[is_labeled].argmax(axis=1) != rows.given_labels[is_labeled]
        assert candidate.validation_metric == pytest.approx(100 * wrong.mean())
    assert np.isfinite(rows.outputs[FINAL]).all()


def test_imputed_labels_are_right_as_often_as_they_say(classes: Path) -> None:
    works("impute", "runs/flowers", "--out", "labels.csv", "--overwrite", cwd=classes)
    labels = pd.read_csv(classes / "labels.csv")
    truth = pd.read_csv(classes / "flowers.csv")["kind"]
    assert labels["id"].tolist() == [f"plant {i}" for i in range(400)]
    assert list(labels.columns) == ["id", "label", "source", "confidence", "abstain", "foreign"]
    imputed = labels["source"] == "imputed"
    is_right = (labels["label"] == truth)[imputed]
    assert is_right.mean() > 0.8
    assert labels["confidence"][imputed].mean() == pytest.approx(is_right.mean(), abs=0.06)


def test_predictions_are_those_of_the_model_and_its_export(classes: Path) -> None:
    import onnxruntime

    pd.read_csv(classes / "flowers.csv").drop(columns="label").to_csv(
        classes / "new.csv", index=False
    )
    works("predict", "runs/flowers", "new.csv", "--out", "new_labels.csv", cwd=classes)
    predicted = pd.read_csv(classes / "new_labels.csv")
    works("export", "runs/flowers", "model.onnx", cwd=classes)
    works("export", "runs/flowers", "model.pt2", cwd=classes)
    new = pd.read_csv(classes / "new.csv")
    sizes = new[["size0", "size1", "size2"]].to_numpy("float32")
    feeds = {"numbers": sizes, "categories": new[["colour"]].to_numpy(dtype=object)}
    session = onnxruntime.InferenceSession(classes / "model.onnx")
    probability, _ = session.run(None, feeds)
    columns = [name for name in predicted.columns if name.startswith("p(")]
    np.testing.assert_allclose(probability, predicted[columns], atol=1e-4)


def test_the_report_leads_with_the_labels_and_names_no_networks(classes: Path) -> None:
    works("report", "runs/flowers", cwd=classes)
    page = (classes / "runs/flowers/report.html").read_text(encoding="utf-8")
    first = page[: page.index('id="metrics"')]
    assert first.index("imputed labels are usable") < first.index("was chosen")
    assert not any(cost in page for cost in ("Cᵀ", "Cᴴ", "Training curves", "config.json"))
    assert "Cross-validation" in page and "validation rows" not in page
    assert "labelled rows, out of fold" in page


def test_a_fit_is_only_read_again_and_repeats_exactly_elsewhere(classes: Path) -> None:
    said = works(*FIT, cwd=classes)
    assert "is already fitted" in said.err
    assert said.out == (classes / "printed.txt").read_text()
    works(*FIT, "--out", "again", cwd=classes)
    first, second = (read_fit(classes / name)[1] for name in ("runs/flowers", "again"))
    assert first.outputs.keys() == second.outputs.keys()
    for name, outputs in first.outputs.items():
        np.testing.assert_array_equal(outputs, second.outputs[name])
    models = [
        (classes / name / "model.safetensors").read_bytes() for name in ("runs/flowers", "again")
    ]
    assert models[0] == models[1]


def test_a_killed_fit_resumes_with_the_candidates_that_were_scored(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(classes / "flowers.csv", tmp_path)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "_save_model", interrupt)
    assert l2i(*FIT, cwd=tmp_path).code == 130
    scored = sorted((tmp_path / "runs/flowers/candidates").iterdir())
    assert len(scored) == 5 and not (tmp_path / "runs/flowers/fit.json").exists()
    monkeypatch.undo()
    for path in scored:  # of candidates that depend on others' scores too
        if path.stem in ("imputing", "self-training", scored[-1].stem):
            path.unlink()
    works(*FIT, cwd=tmp_path)
    ours, theirs = (read_fit(place / "runs/flowers") for place in (tmp_path, classes))
    assert ours[0].selected_name == theirs[0].selected_name
    np.testing.assert_array_equal(ours[1].outputs[FINAL], theirs[1].outputs[FINAL])


def test_damaged_files_of_a_fit_are_one_line(classes: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "candidates/majority.safetensors"):
        shutil.copytree(classes / "runs/flowers", tmp_path / "runs/flowers", dirs_exist_ok=True)
        shutil.copy(classes / "flowers.csv", tmp_path)
        path = tmp_path / "runs/flowers" / name
        path.write_bytes(b"123456789" + path.read_bytes()[9:])
        if name == "model.safetensors":
            said = l2i("predict", "runs/flowers", "flowers.csv", cwd=tmp_path)
        else:
            (tmp_path / "runs/flowers/fit.json").unlink()
            said = l2i(*FIT, cwd=tmp_path)
        assert said.code == 1 and f"{path.name} is damaged" in said.err


def test_targets_have_intervals_that_cover_nine_of_ten(numbers: Path) -> None:
    works("impute", "runs/houses", "--out", "labels.csv", "--overwrite", cwd=numbers)
    labels, truth = pd.read_csv(numbers / "labels.csv"), houses(300, 300)
    imputed = labels["source"] == "imputed"
    for name in ("price", "heat"):
        within = labels[f"{name}_low"].le(truth[name]) & truth[name].le(labels[f"{name}_high"])
        assert 0.8 <= within[imputed].mean() <= 1.0
        assert (labels[f"{name}_spread"][imputed] > 0).all()
        assert labels[name][~imputed].tolist() == truth[name][~imputed].tolist()
    predicted = works("predict", "runs/houses", "houses.csv", cwd=numbers).out
    assert predicted.splitlines()[0].startswith("id,price,heat,price_spread,heat_spread,price_low")
    works("report", "runs/houses", cwd=numbers)
    works("export", "runs/houses", "model.onnx", cwd=numbers)


def rare_and_grouped(rows: int = 400, labels: int = 160) -> pd.DataFrame:
    """One class of ten per cent, told by one column; rows of a patient are alike."""
    draw = np.random.default_rng(0)
    patient = np.arange(rows) // 4
    is_ill = draw.random(rows // 4)[patient] < 0.1
    frame = pd.DataFrame({"patient": patient, "age": 40 + draw.normal(size=rows // 4)[patient]})
    frame["marker"] = draw.normal(size=rows) + np.where(is_ill, 2.0, 0.0)
    frame["noise"] = draw.normal(size=rows)
    frame["ill"] = np.where(is_ill, "yes", "no").astype(object)
    frame.loc[frame.index[draw.permutation(rows)[labels:]], "ill"] = None
    return frame


def test_groups_stay_together_and_classes_can_count_the_same(tmp_path: Path) -> None:
    rare_and_grouped().to_csv(tmp_path / "t.csv", index=False)
    plain = ("fit", "t.csv", "--target", "ill", "--group", "patient", *QUICK)
    works(*plain, "--out", "plain", cwd=tmp_path)
    works(*plain, "--balance", "--out", "even", cwd=tmp_path)
    shares = []
    for name in ("plain", "even"):
        assert [
            c["name"]
            for c in json.loads((tmp_path / name / "fit.json").read_text())["inputs"]["columns"]
        ] == ["age", "marker", "noise"]
        works("impute", name, "--out", f"{name}.csv", cwd=tmp_path)
        labels = pd.read_csv(tmp_path / f"{name}.csv").query("source == 'imputed'")
        shares.append((labels["ill"] == "yes").mean())
    assert shares[1] > shares[0]
    choices = json.loads((tmp_path / "plain/fit.json").read_text())["choices"]
    groups = next(choice for choice in choices if choice["name"] == "groups")
    assert groups["value"].startswith("patient, ") and "in the same fold" in groups["reason"]
    pages = works("report", "even", cwd=tmp_path)
    assert pages.out.strip().endswith("report.html")


def test_a_column_that_decides_is_never_hidden(tmp_path: Path) -> None:
    """97 rows of one class, 3 of another far away in one column: every rare row is found."""
    draw = np.random.default_rng(0)
    is_rare = draw.random(1000) < 0.03
    frame = pd.DataFrame(draw.normal(size=(1000, 4)), columns=list("abcd"))
    frame["a"] += 9 * is_rare
    truth = np.where(is_rare, "rare", "usual")
    frame["y"] = truth
    frame.loc[draw.permutation(1000)[150:], "y"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    works("fit", "t.csv", "--target", "y", *QUICK, cwd=tmp_path)
    works("impute", "runs/t", cwd=tmp_path)
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert (labels["y"] == truth).mean() > 0.995
    assert (labels["y"] == "rare")[is_rare].mean() > 0.95


def test_a_model_no_better_than_guessing_is_said_by_fit_impute_and_report(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(200, 3)), columns=list("abc"))
    frame["y"] = draw.choice(["heads", "tails"], 200)
    frame.loc[60:, "y"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = works("fit", "t.csv", "--target", "y", *QUICK, cwd=tmp_path)
    imputed = works("impute", "runs/t", cwd=tmp_path)
    for err in (said.err, imputed.err):
        assert "Do not use these labels; label more rows." in err
    assert " abstain)" in imputed.out
    assert pd.read_csv(tmp_path / "labels.csv").query("source == 'imputed'")["abstain"].mean() > 0.9
    works("report", "runs/t", cwd=tmp_path)
    page = (tmp_path / "runs/t/report.html").read_text(encoding="utf-8")
    assert "Do not use these labels" in page


def test_rows_like_none_of_the_labelled_abstain_and_are_named(tmp_path: Path) -> None:
    frame = flowers(300, 60)
    frame.loc[290:, ["size0", "size1", "size2"]] = 60.0
    frame.loc[290:, "label"] = ""
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*FIT, cwd=tmp_path)
    assert " unlabelled rows are like none of the labelled ones" in said.err
    works("impute", "runs/flowers", cwd=tmp_path)
    labels = pd.read_csv(tmp_path / "labels.csv")
    assert labels["foreign"][290:].all() and labels["foreign"][:290].mean() < 0.05
    assert labels["abstain"][290:].all()


def test_test_rows_are_set_aside_on_request(tmp_path: Path) -> None:
    flowers(300, 60).to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*FIT, "--test", "0.25", cwd=tmp_path)
    assert "test error (%)" in said.out.splitlines()[0]
    fitted, rows = read_fit(tmp_path / "runs/flowers")
    assert (rows.split_names == "test").sum() == 15
    assert fitted.selected.test_metric is not None


def test_a_label_a_class_is_enough_for_the_plainest_model(tmp_path: Path) -> None:
    frame = flowers(100, 30)
    first = frame[frame["label"] != ""].groupby("label").head(1).index
    frame["label"] = frame["label"].where(frame.index.isin(first), "")
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    said = works(
        "fit", "flowers.csv", "--target", "label", "--ignore", "kind", "name", cwd=tmp_path
    )
    assert "fitted, untested:\n  there are too few labels to test it" in said.out
    assert "Do not use the imputed labels. Label more rows first." in said.out
    assert "are usable" not in said.out
    imputed = works("impute", "runs/flowers", cwd=tmp_path)
    assert "untested" in imputed.err and "Do not use these labels" in imputed.err
    works("report", "runs/flowers", cwd=tmp_path)


WRONG = {
    "no time": (("--minutes", "0"), "--minutes 0 must be more than 0, such as 1"),
    "an unknown candidate": (
        ("--candidates", "extratrees"),
        "unknown candidate 'extratrees'; perhaps you meant 'extra-trees'",
    ),
    "candidates of targets": (("--candidates", "ridge"), "none of these candidates suits the data"),
    "one group": (("--group", "one"), "group column 'one' has one group among the labelled rows"),
    "candidates beside networks": (
        ("--candidates", "ridge", "--steps", "5"),
        "--candidates applies to models that are compared by cross-validation; remove it, "
        "or remove --method, --validation and the settings of networks",
    ),
    "no such group": (("--group", "two"), "--group 'two': flowers.csv has no such column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_one_line(name: str, tmp_path: Path) -> None:
    options, message = WRONG[name]
    frame = flowers(60, 30).assign(one="same")
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    columns = ("--target", "label", "--ignore", "kind", "name")
    assert message in refused("fit", "flowers.csv", *columns, *options, cwd=tmp_path)


def test_balance_is_for_classes(tmp_path: Path) -> None:
    houses(60, 30).to_csv(tmp_path / "h.csv", index=False)
    options = ("--target", "price", "--ignore", "heat", "--balance")
    assert "--balance applies to classes" in refused("fit", "h.csv", *options, cwd=tmp_path)


@pytest.mark.slow
def test_networks_are_candidates_like_others(tmp_path: Path) -> None:
    flowers(200, 60).to_csv(tmp_path / "flowers.csv", index=False)
    options = ("--target", "label", "--id", "name", "--ignore", "kind", "--threads", "1")
    names = ("--candidates", "network", "semi-supervised", "l2i")
    works("fit", "flowers.csv", *options, *names, cwd=tmp_path)
    fitted, _ = read_fit(tmp_path / "runs/flowers")
    assert fitted.model is not None
    kinds = [fitted.model["kind"], *(m["kind"] for m in fitted.model.get("members", []))]
    assert set(kinds) <= {"network", "average"}
    for command in ("impute", "report"):
        works(command, "runs/flowers", cwd=tmp_path)
    works("predict", "runs/flowers", "flowers.csv", "--out", "p.csv", cwd=tmp_path)
    works("export", "runs/flowers", "model.onnx", cwd=tmp_path)
