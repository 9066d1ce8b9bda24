"""Folders that a stranger could have sent: a whole run and a whole fit, and copies to spoil."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from confined import TRAIN

from l2i.cli import run_command

QUICK = [
    "--steps",
    "4",
    "--threads",
    "1",
    "--device",
    "cpu",
    "--model.width",
    "8",
    "--no-baselines",
]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a fit."""
    folder = tmp_path_factory.mktemp("made")
    assert run_command([*TRAIN, "--out", str(folder / "run")]) == 0
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": draw.normal(size=80), "z": draw.normal(size=80), "y": ["a", "b", "", ""] * 20}
    )
    frame.to_csv(folder / "data.csv", index=False)
    assert (
        run_command(
            ["fit", str(folder / "data.csv"), "--target", "y", *QUICK, "--out", str(folder / "fit")]
        )
        == 0
    )
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of it, within a folder of its own, which has something precious beside it."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "precious").write_text("precious")
    return Path(shutil.copytree(made, tmp_path / "inner" / "place"))
