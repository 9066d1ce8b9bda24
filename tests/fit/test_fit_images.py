"""A user's own images, in folders, tables and arrays, from files to labels, as typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import QUICK, onnx_answers, photos, probabilities, squares, works
from sklearn.datasets import load_digits

from l2i.fit.artifact import read_fit
from l2i.fit.readers.folders import list_image_files
from l2i.fit.readers.image_files import ImageSpec, decode_image_files


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    photos(folder / "photos")
    said = works("fit", "photos", *QUICK, "--steps", "30", "--model.width", "8", cwd=folder)
    assert "l2i: 20 labelled rows, 24 unlabelled" in said.err
    assert "(centre crop), RGB; --size sets another size" in said.err
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
    options, listed = (
        read_fit(images / "runs/photos")[0].source,
        list_image_files(images / "photos/unlabeled"),
    )
    frame = ImageSpec(options["side"], options["channels"], options["whole"])
    raw = decode_image_files(listed, lambda *_: frame, skip_unreadable=False).pixels
    actual = onnx_answers(images / "model.onnx", {"images": raw})
    wanted = pd.read_csv(images / "exported.csv")
    assert wanted["id"].tolist() == listed.names
    np.testing.assert_allclose(actual["probabilities"], probabilities(wanted), atol=1e-4)


def test_a_report_on_images_shows_pictures(images: Path) -> None:
    works("report", "runs/photos", "--out", "page.html", cwd=images)
    assert (images / "page.html").read_text().count("data:image/png;base64,") >= 8


def test_landmarks_come_back_in_pixels_of_the_images_as_they_were(tmp_path: Path) -> None:
    truth, names = squares(tmp_path), ["left", "top", "right", "bottom"]
    options = ("--image", "path", "--target", *names, "--size", "20", "--no-baselines")
    said = works(
        "fit", "squares.csv", *options, *QUICK, "--model.width", "64", "--steps", "80", cwd=tmp_path
    )
    assert "l2i: the targets are 2 landmarks x, y in pixels" in said.err
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
        actual, right = frame.loc[~given, name], truth.loc[~given, name]
        assert np.corrcoef(actual, right)[0, 1] > 0.8
        assert np.sqrt(((actual - right) ** 2).mean()) < 0.6 * right.std()
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
