"""Exported files against the model itself, through the runtimes that others read them with."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from test_modules import (
    COUNT,
    SMALL,
    make_fit,
    new_rows,
    table,
    table_inputs,
    three_classes,
    two_targets,
)

from l2i import InputError, __version__
from l2i.fit.artifact import read_fit, write_fit
from l2i.fit.export import METADATA_FILE, check_outputs_match, export
from l2i.fit.modules import Predictor, encode_inputs, load_network
from l2i.fit.preprocess import ImagePreprocessor, TablePreprocessor, fit_column
from l2i.models.base import ModelConfig


def answers(path: Path, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def said_by(path: Path) -> dict[str, str]:
    import onnx

    return {item.key: item.value for item in onnx.load(path).metadata_props}


def wanted(folder: Path, raw: Any) -> NDArray[np.float32]:
    """The answers of the model itself."""
    fitted, _ = read_fit(folder)
    with torch.no_grad():
        return Predictor(load_network(folder, fitted), fitted)(encode_inputs(fitted, raw)).numpy()


def fed(frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    words = frame[["colour", "shop"]].astype(object)
    numbers = frame[["height", "price"]].to_numpy(dtype=np.float32)
    return {"numbers": numbers, "categories": words.where(words.notna(), "").to_numpy(dtype=object)}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, frame = tmp_path_factory.mktemp("classifier"), table()
    make_fit(folder, table_inputs(frame), frame, three_classes(), SMALL)
    return folder


def test_onnx_reads_a_raw_table_with_blanks_and_unknown_categories(
    classifier: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = export(classifier, tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    frame = new_rows()
    for rows in (frame, frame[:1], table()):
        actual, right = answers(path, fed(rows)), wanted(classifier, rows)
        np.testing.assert_allclose(actual["probabilities"], right, atol=1e-4)
        assert actual["label"].tolist() == right.argmax(axis=1).tolist()
    assert np.ptp(actual["probabilities"], axis=0).max() > 0.05  # they say something


def test_onnx_says_what_it_takes_and_gives_and_no_folder_of_this_machine(
    classifier: Path, tmp_path: Path
) -> None:
    path = export(classifier, tmp_path / "model.onnx")
    says = said_by(path)
    assert json.loads(says["classes"]) == ["class 0", "class 1", "class 2"]
    assert json.loads(says["targets"]) == ["class"]
    columns = json.loads(says["columns"])
    assert columns["numbers"] == [{"name": "height"}, {"name": "price"}]
    assert columns["categories"][1] == {"name": "shop", "values": ["Bern", "Köln", "x y", "Łódź"]}
    assert json.loads(says["inputs"])["numbers"] == "float32 [N, 2]: raw values, NaN where blank"
    assert says["l2i_version"] == __version__
    assert b".py" not in path.read_bytes()


def test_a_regressor_of_numbers_alone_answers_in_units(tmp_path: Path) -> None:
    frame = table()[["height", "price"]]
    inputs = TablePreprocessor(columns=tuple(fit_column(frame[name], "number") for name in frame))
    make_fit(tmp_path / "fit", inputs, frame, two_targets(), SMALL)
    path = export(tmp_path / "fit", tmp_path / "model.onnx")
    right = wanted(tmp_path / "fit", frame)
    actual = answers(path, {"numbers": frame.to_numpy(dtype=np.float32)})
    assert list(actual) == ["values"]
    np.testing.assert_allclose(actual["values"], right, rtol=1e-4)
    assert np.ptp(right, axis=0).min() > 0.1
    assert json.loads(said_by(path)["targets"]) == ["target 0", "target 1"]


def test_categories_alone_can_be_exported(tmp_path: Path) -> None:
    frame = table()[["colour"]]
    make_fit(
        tmp_path / "fit",
        TablePreprocessor(columns=(fit_column(frame["colour"], "category"),)),
        frame,
        three_classes(),
        SMALL,
    )
    actual = answers(
        export(tmp_path / "fit", tmp_path / "model.onnx"),
        {"categories": frame.to_numpy(dtype=object)},
    )
    np.testing.assert_allclose(actual["probabilities"], wanted(tmp_path / "fit", frame), atol=1e-4)


def test_times_in_seconds_are_read_in_float64(tmp_path: Path) -> None:
    times = pd.DataFrame({"time": 1.7e9 + np.random.default_rng(0).normal(size=COUNT)})
    make_fit(
        tmp_path / "fit",
        TablePreprocessor(columns=(fit_column(times["time"], "number"),)),
        times,
        three_classes(),
        SMALL,
    )
    path = export(tmp_path / "fit", tmp_path / "model.onnx")
    actual = answers(path, {"numbers": times.to_numpy()})
    np.testing.assert_allclose(actual["probabilities"], wanted(tmp_path / "fit", times), atol=1e-4)
    assert np.ptp(actual["probabilities"], axis=0).max() > 0.01
    assert json.loads(said_by(path)["inputs"])["numbers"].startswith("float64")


NETWORKS = {
    "conv": (ModelConfig(name="conv", width=4, depth=2), (3, 8, 8), "uint8"),
    "wide-resnet": (ModelConfig(name="wide-resnet", width=1, depth=10), (3, 8, 8), "uint8"),
    "resnet": (ModelConfig(name="resnet", width=1, depth=8), (1, 8, 8), "float32"),
    "tcdcn": (ModelConfig(name="tcdcn"), (1, 46, 46), "uint8"),
}


def pictures(folder: Path, name: str) -> NDArray[Any]:
    """A fit of random images with the network of that name, and the images."""
    network, shape, dtype = NETWORKS[name]
    raw = np.random.default_rng(0).uniform(0, 256, size=(COUNT, *shape)).astype(dtype)
    y = np.tile(two_targets(), 5) / 1000 if name == "tcdcn" else three_classes()
    make_fit(folder, ImagePreprocessor.fit(raw), raw, y, network, steps=3)
    return raw


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_reads_images_of_every_network(name: str, tmp_path: Path) -> None:
    raw = pictures(tmp_path / "fit", name)
    path = export(tmp_path / "fit", tmp_path / "model.onnx")
    says = said_by(path)
    assert json.loads(says["shape"]) == list(raw.shape[1:])
    assert json.loads(says["inputs"])["images"].startswith(f"{raw.dtype} [N, ")
    actual = answers(path, {"images": raw})
    np.testing.assert_allclose(
        next(iter(actual.values())), wanted(tmp_path / "fit", raw), atol=1e-4
    )


def test_a_program_takes_places_of_categories_and_says_which(
    classifier: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = export(classifier, tmp_path / "model.pt2")
    assert capfd.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    extra = {METADATA_FILE: ""}
    program = torch.export.load(path, extra_files=extra)
    known = [
        column["values"] for column in json.loads(extra[METADATA_FILE])["columns"]["categories"]
    ]
    feeds = fed(new_rows())
    codes = [
        [v.index(w) if w in v else -1 for v, w in zip(known, row, strict=True)]
        for row in feeds["categories"]
    ]
    actual = program.module()(
        numbers=torch.tensor(feeds["numbers"]), categories=torch.tensor(codes)
    )
    np.testing.assert_allclose(actual["probabilities"], wanted(classifier, new_rows()), atol=1e-4)
    assert torch.equal(actual["label"], actual["probabilities"].argmax(dim=1))


def test_a_program_reads_images(tmp_path: Path) -> None:
    raw = pictures(tmp_path / "fit", "conv")
    program = torch.export.load(export(tmp_path / "fit", tmp_path / "model.pt2"))
    actual = program.module()(images=torch.tensor(raw))
    np.testing.assert_allclose(actual["probabilities"], wanted(tmp_path / "fit", raw), atol=1e-4)


def test_an_older_file_is_replaced(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_text("old")
    with pytest.raises(InputError, match="it exists, and l2i has no record of writing it"):
        export(classifier, str(tmp_path / "model.pt2"))
    for overwrite in (True, False):  # after the first, the file is ours
        path = export(classifier, str(tmp_path / "model.pt2"), overwrite=overwrite)
        assert path == tmp_path / "model.pt2"
        assert torch.export.load(path)


def test_a_model_whose_file_cannot_be_checked_leaves_the_older_file(
    classifier: Path, tmp_path: Path
) -> None:
    fitted, rows = read_fit(classifier)
    shutil.copytree(classifier / "l2i", tmp_path / "fit" / "l2i")
    write_fit(tmp_path / "fit", replace(fitted, temperature=1e-46), rows)  # 0 in float32
    (tmp_path / "model.pt2").write_text("old")
    with pytest.raises(
        RuntimeError, match="differ from those of the fitted model; no file was written"
    ):
        export(tmp_path / "fit", tmp_path / "model.pt2", overwrite=True)
    assert (tmp_path / "model.pt2").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fit", "model.pt2"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.bin", r"must end in \.onnx or \.pt2"),
        ("model", r"must end in \.onnx or \.pt2"),
        (
            "nowhere/model.onnx",
            "cannot write '.*nowhere/model.onnx': its folder does not exist; create it first",
        ),
        ("folder.pt2", "it is a folder"),
        ("x" * 252 + ".pt2", "cannot write '.*': .*; choose a different path"),
    ],
)
def test_a_place_that_no_file_can_have_is_refused(
    classifier: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(InputError, match=message):
        export(classifier, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.pt2"]


def test_text_is_refused_with_what_reads_it(classifier: Path, tmp_path: Path) -> None:
    fitted, rows = read_fit(classifier)
    texts = pd.Series(["good film", "bad film"], name="review")
    inputs = TablePreprocessor(columns=(fit_column(texts, "text"),))
    (tmp_path / "fit").mkdir()
    write_fit(tmp_path / "fit", replace(fitted, inputs=inputs.to_json()), rows)
    with pytest.raises(
        InputError, match="column 'review' is text, which cannot be exported; use 'l2i predict"
    ):
        export(tmp_path / "fit", tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_onnx_without_its_packages_says_how_to_install_them(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"run pip install 'l2i\[export\]'"):
        export(classifier, tmp_path / "model.onnx")
    assert export(classifier, tmp_path / "model.pt2").exists()


def test_a_folder_that_is_no_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a fit folder"):
        export(tmp_path / "fit", tmp_path / "model.onnx")


def test_a_file_that_answers_otherwise_is_a_failure(classifier: Path) -> None:
    fitted, _ = read_fit(classifier)
    right = wanted(classifier, new_rows())
    label = right.argmax(axis=1)
    check_outputs_match({"probabilities": right + 9e-5, "label": label}, right, fitted)
    for wrong in (right + 2e-4, right * np.nan, right[:3]):
        with pytest.raises(RuntimeError, match="differ from those of the fitted model"):
            check_outputs_match(
                {"probabilities": wrong, "label": label[: len(wrong)]}, right, fitted
            )
    with pytest.raises(RuntimeError, match="differ from those of the fitted model"):
        check_outputs_match({"probabilities": right, "label": (label + 1) % 3}, right, fitted)
