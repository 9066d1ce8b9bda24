"""Folders without a whole fit, and new rows that a fit cannot read: one line, nothing left."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from fits import flowers, refused, small_fit


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_fit(tmp_path_factory.mktemp("fitted"))


COMMANDS = {
    "impute": ("--out", "labels.csv"),
    "report": (),
    "predict": ("flowers.csv",),
    "export": ("model.onnx",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_no_fit_is_refused_by_every_command(command: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "flowers.csv").touch()
    for folder in ("photos", "nowhere", "flowers.csv"):
        line = refused(command, folder, *COMMANDS[command], cwd=tmp_path)
        assert f"{folder} is not a fit folder (it has no fit.json)" in line
    assert f"'l2i {command}' needs a fit folder" in refused(command, cwd=tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["outputs.safetensors", "rows.parquet", "fit.json"])
def test_a_damaged_fit_is_refused_by_every_command(
    command: str, name: str, fitted: Path, tmp_path: Path
) -> None:
    shutil.copytree(fitted, tmp_path / "all")
    path = tmp_path / "all" / "run" / name
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\x00\xff" * 50):
        path.write_bytes(content)
        line = refused(command, "run", *COMMANDS[command], cwd=tmp_path / "all", code=1)
        assert f"run/{name} is damaged" in line or (name == "fit.json" and "run is damaged" in line)
        assert "restore it, or fit again with a different --out" in line


@pytest.mark.parametrize("command", ["predict", "export"])
def test_a_fit_without_its_network_is_refused(command: str, fitted: Path, tmp_path: Path) -> None:
    shutil.copytree(fitted, tmp_path / "all")
    for checkpoint in (tmp_path / "all/run/l2i/checkpoints").iterdir():
        checkpoint.write_bytes(b"nothing")
    line = refused(command, "run", *COMMANDS[command], cwd=tmp_path / "all", code=1)
    assert "run/l2i/checkpoints/0000000010.safetensors is damaged or another file" in line


@pytest.mark.parametrize("threshold", ["-0.1", "1.5", "nan", "sure"])
def test_a_threshold_that_is_no_probability_is_refused(threshold: str, fitted: Path) -> None:
    assert "threshold" in refused("impute", "run", f"--threshold={threshold}", cwd=fitted)


def test_new_rows_that_do_not_fit_are_refused(fitted: Path, tmp_path: Path) -> None:
    frame = flowers(10, 0)
    for name, change, message in (
        (
            "short",
            frame.drop(columns="size2"),
            "lacks 1 column that the model was trained with: 'size2'; add it",
        ),
        (
            "words",
            frame.assign(size0="big"),
            "column 'size0' contains 'big' in row 1, not a number",
        ),
        ("infinite", frame.assign(size0=np.inf), "column 'size0' contains infinity"),
        ("double", frame.assign(name="same"), "id 'same' in row 2 is a duplicate"),
    ):
        change.to_csv(tmp_path / f"{name}.csv", index=False)
        line = refused(
            "predict", str(fitted / "run"), f"{name}.csv", "--out", "labels.csv", cwd=tmp_path
        )
        assert message in line
    (tmp_path / "empty.csv").touch()
    assert "is empty" in refused("predict", str(fitted / "run"), "empty.csv", cwd=tmp_path)
    assert "needs a file or folder" in refused("predict", str(fitted / "run"), cwd=tmp_path)
