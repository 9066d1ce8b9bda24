"""Run folders of a stranger that ask for more than their checkpoint holds."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from confined import said

from l2i.cli import run

TRAIN = [
    *["train", "digits", "--steps", "4", "--eval-every", "2", "--save-every", "2", "--threads", "1", "--device", "cpu"]
]
QUICK = ["--steps", "4", "--threads", "1", "--device", "cpu", "--model.width", "8", "--no-baselines"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    assert run([*TRAIN, "--out", str(folder / "run")]) == 0
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.normal(size=80), "z": draw.normal(size=80), "y": ["a", "b", "", ""] * 20})
    frame.to_csv(folder / "data.csv", index=False)
    assert run(["fit", str(folder / "data.csv"), "--target", "y", *QUICK, "--out", str(folder / "fit")]) == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "place"))


@pytest.mark.parametrize("field", ["model.width", "model.depth"])
@pytest.mark.parametrize("command", [("evaluate", "run"), ("predict", "fit", "data.csv")])
def test_a_network_larger_than_its_checkpoint_is_not_built(field: str, command: tuple[str, ...], place: Path) -> None:
    path = place / ("run" if command[0] == "evaluate" else "fit/l2i") / "config.json"
    plain = json.loads(path.read_text())
    plain["model"][field.partition(".")[2]] = 100_000 if field.endswith("width") else 10_000
    path.write_text(json.dumps(plain))
    done = said(*command, cwd=place)
    assert done.code == 2, done
    assert "memory" not in done.err


@pytest.mark.parametrize(
    ("field", "value"), [("batch.labeled", 10**9), ("data.workers", 1024), ("threads", 1024), ("probe", 10**9)]
)
def test_a_run_that_asks_for_much_is_looked_at(field: str, value: int, place: Path) -> None:
    path = place / "run" / "config.json"
    plain = json.loads(path.read_text())
    section, _, name = field.rpartition(".")
    (plain[section] if section else plain)[name] = value
    path.write_text(json.dumps(plain))
    done = said("evaluate", "run", cwd=place)
    assert done.code in (0, 2), done
