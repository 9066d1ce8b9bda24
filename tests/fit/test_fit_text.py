"""Texts read by a pretrained encoder, from a file to labels, predictions and a report, as typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import flowers, photos, probabilities, refused, works
from scipy.special import softmax

from l2i.fit.artifact import read_fit
from sealing import seal
from tiny_encoder import reviews, tiny_encoder

ROWS, LABELS, BLANK = 120, 50, 70  # of films.csv: rows, labelled ones, and the one without a text
QUICK = (
    "--device",
    "cpu",
    "--threads",
    "1",
    "--steps",
    "120",
    "--optim.lr",
    "0.003",
    "--optim.ema-decay",
    "0.8",
)
CLASSES = (
    "fit",
    "films.csv",
    "--text",
    "review",
    "--target",
    "mood",
    "--ignore",
    "title",
    "stars",
    "--encoder",
    "bert",
)


def films() -> pd.DataFrame:
    """Made-up reviews with a title, a number, a mood and stars; the first rows are labelled."""
    draw = np.random.default_rng(0)
    texts, good = zip(*reviews(ROWS), strict=True)
    frame = pd.DataFrame({"title": [f"the story of {i}" for i in range(ROWS)], "review": texts})
    frame["year"] = draw.integers(1950, 2020, size=ROWS)
    frame["mood"] = [("bad", "good")[g] if i < LABELS else "" for i, g in enumerate(good)]
    frame["stars"] = [
        round(2 + 6 * g + draw.random(), 2) if i < LABELS else None for i, g in enumerate(good)
    ]
    frame.loc[BLANK, ["title", "review"]] = ""
    return frame


def place(folder: Path) -> Path:
    """A folder with films.csv, and weights in `bert`."""
    films().to_csv(folder / "films.csv", index=False)
    tiny_encoder(folder / "bert", map(str, range(1950, 2020)))
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit of classes in runs/films, whose weights are gone since, and what it printed."""
    folder = place(tmp_path_factory.mktemp("films"))
    said = works(*CLASSES, *QUICK, cwd=folder)
    (folder / "said.txt").write_text(said.err)
    shutil.rmtree(folder / "bert")
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films and weights that nothing was fitted to, and weights that lack something."""
    folder = place(tmp_path_factory.mktemp("start"))
    shutil.copytree(
        folder / "bert", folder / "untokenized", ignore=shutil.ignore_patterns("tokenizer*")
    )
    shutil.copytree(
        folder / "bert", folder / "weightless", ignore=shutil.ignore_patterns("*.safetensors")
    )
    (folder / "empty").mkdir()
    return folder


def test_a_fit_says_what_it_reads_and_chooses(fitted: Path) -> None:
    said = (fitted / "said.txt").read_text()
    for line in (
        "text columns: 'review'",
        "ignored (--encoder uses text columns only): 'year'",
        "1 row without text, treated as empty",
        "method: uda, weight 1, threshold 0, temperature 1 (text classification",
        "network: encoder bert, dropout 0.1 before the head (the pretrained network you "
        "named, fine-tuned",
        "texts: 32 tokens, the end of longer texts (the longest training text",
        "weak view: none (the unchanged text)",
        "strong view: replace 0.3 (UDA's replacement of uninformative words",
        "batch: 8 labelled + 24 unlabelled",
        "optimizer: adam, learning rate 0.003, linear with warm-up (set by you)",
    ):
        assert f"l2i: {line}" in said
    assert "TF-IDF" not in said
    assert not any(noise in said for noise in ("Loading weights", "Warning", "MISSING", "it/s"))


def test_the_fit_folder_holds_what_texts_are_read_with_and_no_weights_twice(fitted: Path) -> None:
    held = {path.name for path in (fitted / "runs/films/encoder").iterdir()}
    assert {"config.json", "tokenizer.json"} <= held
    assert not any(name.endswith((".safetensors", ".bin")) for name in held)
    inputs = read_fit(fitted / "runs/films")[0].inputs
    assert inputs == {
        "kind": "text",
        "names": ["review"],
        "length": 32,
        "keep": "end",
        "weights": "bert",
    }


def test_imputed_labels_are_a_row_for_each_row_and_mostly_right(fitted: Path) -> None:
    works("impute", "runs/films", "--out", "labels.csv", cwd=fitted)
    actual = pd.read_csv(fitted / "labels.csv")
    assert list(actual.columns) == ["id", "mood", "source", "confidence", "abstain", "changes"]
    assert (actual["source"] == np.where(np.arange(ROWS) < LABELS, "given", "imputed")).all()
    truth = np.array([("bad", "good")[good] for _, good in reviews(ROWS)])
    assert (actual["mood"] == truth)[LABELS:].mean() > 0.8


def test_predictions_without_the_weights_are_what_the_fit_says_of_its_rows(fitted: Path) -> None:
    said = works("predict", "runs/films", "films.csv", "--out", "same.csv", cwd=fitted)
    assert "l2i: 1 row without text, treated as empty" in said.err
    fit, rows = read_fit(fitted / "runs/films")
    wanted = softmax(rows.outputs[fit.selected_name].astype(float) / fit.temperature, axis=1)
    np.testing.assert_allclose(probabilities(pd.read_csv(fitted / "same.csv")), wanted, atol=1e-4)
    assert np.ptp(wanted[:, 0]) > 0.1


def test_new_texts_are_predicted_and_a_missing_column_is_said(fitted: Path) -> None:
    (fitted / "new.csv").write_text(
        "review,x\nthis film was great and witty,1\nit was dull and awful,2\n42,3\n"
    )
    said = works("predict", "runs/films", "new.csv", cwd=fitted)
    lines = said.out.splitlines()
    assert lines[0] == "id,mood,confidence,p(bad),p(good)" and said.err == ""
    assert [line.split(",")[1] for line in lines[1:3]] == ["good", "bad"] and len(lines) == 4
    (fitted / "other.csv").write_text("text,x\ngreat,1\n")
    assert "lacks 1 column that the model was trained with: 'review'; add it" in refused(
        "predict", "runs/films", "other.csv", cwd=fitted
    )


def test_the_report_shows_texts(fitted: Path) -> None:
    works("report", "runs/films", "--out", "page.html", cwd=fitted)
    page = (fitted / "page.html").read_text()
    fit, _ = read_fit(fitted / "runs/films")
    shown = [
        sample.fields["review"]
        for sample in fit.previews
        if sample.fields and sample.fields["review"]
    ]
    assert sum(text[:40] in page for text in shown) >= 8
    assert "encoder bert, dropout 0.1" in page


def test_an_encoder_is_not_exported(fitted: Path) -> None:
    for out in ("model.onnx", "model.pt2"):
        line = refused("export", "runs/films", out, cwd=fitted)
        assert (
            "column 'review' is text, which cannot be exported; use 'l2i predict runs/films'"
            in line
        )


def test_a_fit_without_its_tokenizer_is_refused_where_that_is_needed(
    fitted: Path, tmp_path: Path
) -> None:
    shutil.copytree(fitted / "runs/films", tmp_path / "run")
    (tmp_path / "new.csv").write_text("review,x\ngreat,1\n")
    predict = ("predict", "run", "new.csv")
    (tmp_path / "run/encoder/tokenizer.json").unlink()
    line = refused(*predict, cwd=tmp_path, code=1)
    assert "run/encoder/tokenizer.json is missing or cannot be read; restore it" in line
    seal(tmp_path / "run")
    assert "run/encoder has no tokenizer" in refused(*predict, cwd=tmp_path)
    (tmp_path / "run/encoder/config.json").write_text("nothing")
    line = refused(*predict, cwd=tmp_path, code=1)
    assert "run/encoder/config.json is damaged or another file" in line
    seal(tmp_path / "run")
    assert "run/encoder cannot be read" in refused(*predict, cwd=tmp_path)
    shutil.rmtree(tmp_path / "run/encoder")
    seal(tmp_path / "run")
    line = refused(*predict, cwd=tmp_path)
    assert (
        "run/encoder is missing or damaged; restore it, or fit again with a different --out" in line
    )
    works("impute", "run", cwd=tmp_path)
    works("report", "run", cwd=tmp_path)


def test_numbers_are_told_from_two_columns_of_text_joined_in_the_order_named(start: Path) -> None:
    options = (
        "--text",
        "review",
        "title",
        "--target",
        "stars",
        "--ignore",
        "mood",
        "year",
        "--encoder",
        "bert",
    )
    asked = ("--data.text.length", "20", "--data.text.keep-side", "start", "--steps", "120")
    said = works(
        "fit", "films.csv", *options, *QUICK, *asked, "--no-baselines", "--out", "stars", cwd=start
    )
    assert "l2i: text columns: 'review', 'title', joined in this order" in said.err
    assert "l2i: method: mean-teacher, weight 1 (regression" in said.err
    assert "l2i: texts: 20 tokens, the start of longer texts (set by you)" in said.err
    assert "texts reach the limit of 20 tokens; only the start of longer ones is used" in said.err
    config = json.loads((start / "stars/l2i/config.json").read_text())
    assert config["data"]["text"]["length"] == 20 and config["method"]["student_view"] == "strong"
    fit, rows = read_fit(start / "stars")
    assert fit.shape == (20,) and fit.inputs["names"] == ["review", "title"]
    assert rows.predictive_std is not None and (rows.predictive_std > 0).all()
    works("impute", "stars", "--out", "stars.csv", cwd=start)
    good = [good for _, good in reviews(ROWS)]
    assert (
        np.corrcoef(pd.read_csv(start / "stars.csv")["stars"][LABELS:], good[LABELS:])[0, 1] > 0.5
    )
    works("predict", "stars", "films.csv", "--out", "again.csv", cwd=start)
    np.testing.assert_allclose(
        pd.read_csv(start / "again.csv")["stars"], rows.outputs["l2i"][:, 0], atol=1e-4
    )
    works("report", "stars", cwd=start)
    films()[["review"]].to_csv(start / "short.csv", index=False)
    assert "lacks 1 column that the model was trained with: 'title'; add it" in refused(
        "predict", "stars", "short.csv", cwd=start
    )


def test_a_text_of_numbers_is_a_text_and_how_tokens_are_pooled_is_kept(start: Path) -> None:
    (start / "bert/1_Pooling").mkdir()
    (start / "bert/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    options = (
        "--text",
        "year",
        "--target",
        "mood",
        "--encoder",
        "bert",
        "--steps",
        "2",
        "--device",
        "cpu",
    )
    frozen = ("--model.freeze", "embeddings", "--no-baselines")
    said = works("fit", "films.csv", *options, *frozen, "--out", "years", cwd=start)
    assert (
        "l2i: network: encoder bert, dropout 0.1 before the head, "
        "word embeddings frozen (set by you)" in said.err
    )
    shutil.move(start / "bert/1_Pooling", start / "pooling")
    works("predict", "years", "films.csv", "--out", "years.csv", cwd=start)
    fit, rows = read_fit(start / "years")
    wanted = softmax(rows.outputs["l2i"].astype(float) / fit.temperature, axis=1)
    np.testing.assert_allclose(probabilities(pd.read_csv(start / "years.csv")), wanted, atol=1e-4)
    assert fit.shape == (8,)


def test_words_alone_are_read_without_an_encoder_and_another_way_is_named(start: Path) -> None:
    options = (
        "--text",
        "review",
        "--target",
        "mood",
        "--ignore",
        "title",
        "stars",
        "--device",
        "cpu",
        "--steps",
        "2",
    )
    said = works("fit", "films.csv", *options, "--no-baselines", "--out", "words", cwd=start)
    hint = "text becomes TF-IDF features; for a pretrained network, use --encoder bert-base-uncased"
    assert f"l2i: {hint}\n" in said.err and "l2i: network: mlp" in said.err
    assert read_fit(start / "words")[0].inputs["kind"] == "table"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--encoder", "./nowhere"), "folder ./nowhere does not exist; check --encoder"),
        (("--encoder", "films.csv"), "films.csv is a file; pass its folder to --encoder"),
        (("--encoder", ""), "set --encoder to a folder, or a name such as bert-base-uncased"),
        (("--encoder", "untokenized"), "untokenized has no tokenizer"),
        (("--encoder", "weightless"), "weightless has no weights (model.safetensors)"),
        (("--encoder", "empty"), "empty has no config.json"),
        (
            ("--data.text.length", "65"),
            "data.text.length=65 exceeds the maximum of bert; use at most 64",
        ),
        (("--data.text.length", "0"), "data.text.length=0 must be at least 1"),
        (
            ("--data.text.length", "2"),
            "data.text.length=2 leaves no room for words; use at least 3",
        ),
        (("--data.text.paraphrases", "x"), "does not apply to 'l2i fit'; use --data.words.replace"),
        (("--model.weights", "bert"), "--model.weights does not apply to 'l2i fit'; use --encoder"),
        (
            ("--model.name", "mlp"),
            "--model.name mlp does not take text; remove it, or remove --encoder",
        ),
        (
            ("--data.weak.noise", "0.1"),
            "texts are augmented by data.words; leave out data.weak and data.strong",
        ),
        (
            ("--category", "year"),
            "--category applies only to tables without --encoder, not to this data; remove it",
        ),
        (("--method", "mixmatch"), "mixmatch"),
        (("--method", "vat"), "vat"),
    ],
)
def test_what_is_wrong_with_an_encoder_is_one_line(
    flags: tuple[str, ...], message: str, start: Path
) -> None:
    assert message in refused(*CLASSES, "--device", "cpu", "--out", "wrong", *flags, cwd=start)


def test_an_encoder_needs_texts_and_a_table(tmp_path: Path) -> None:
    films().assign(review="").to_csv(tmp_path / "films.csv", index=False)
    assert "'review' is blank in every row; choose a different --text" in refused(
        *CLASSES, cwd=tmp_path
    )
    flowers(60, 30).to_csv(tmp_path / "flowers.csv", index=False)
    plain = ("fit", "flowers.csv", "--target", "label", "--id", "name", "--ignore", "kind")
    for flags, message in {
        ("--encoder", "bert"): "--encoder needs text columns; name them with --text",
        (
            "--model.name",
            "encoder",
        ): "--model.name encoder needs text; name the columns with --text",
        (
            "--data.text.length",
            "20",
        ): "--data.text applies only with --encoder; remove it, or add --encoder",
    }.items():
        assert message in refused(*plain, *flags, cwd=tmp_path)
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), y=np.arange(9) % 2)
    assert "--encoder applies only to text columns and images" in refused(
        "fit", "a.npz", "--encoder", "bert", cwd=tmp_path
    )
    photos(tmp_path / "photos", each=2, unlabeled=2)
    (tmp_path / "bert").mkdir()
    assert "bert has no weights" in refused("fit", "photos", "--encoder", "bert", cwd=tmp_path)
