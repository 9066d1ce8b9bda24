import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
import torch

from l2i import recipes, replace, train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SPEED = "benchmarks.speed_h200"


def run(script: Path | str, folder: Path, *arguments: str) -> str:
    """Run a file, or a module by its name, and return what it prints."""
    target = [str(script)] if isinstance(script, Path) else ["-m", script]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *target, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_own_loop_runs_and_is_short(tmp_path: Path) -> None:
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) <= 40
    assert float(run(EXAMPLES / "own_loop.py", tmp_path).split()[2]) < 25


def test_own_data_runs_and_tells_methods_apart(tmp_path: Path) -> None:
    *errors, imputed = run(EXAMPLES / "own_data.py", tmp_path).splitlines()
    assert [line.split(":")[0] for line in errors] == [
        "cancer-supervised-off",
        "cancer-fixmatch-off",
        "cancer-fixmatch-normalized",
    ]
    assert all(float(line.split()[-2]) < 20 for line in errors)
    assert set(imputed.partition("[")[2].strip("]").split(", ")) <= {"0", "1"}


def test_the_cost_of_randaugment_is_printed(tmp_path: Path) -> None:
    printed = run(f"{SPEED}.randaugment_cost", tmp_path, "32", "2")
    assert float(printed.split()[-2]) > 0  # % of a training step


def test_the_contact_sheet_is_drawn(tmp_path: Path) -> None:
    run(EXAMPLES / "contact_sheet.py", tmp_path, "sheet.png")
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_at_once_are_set_against_one(tmp_path: Path) -> None:
    printed = run(f"{SPEED}.seeds_at_once", tmp_path, "landmarks", "2", "1").splitlines()
    assert [line.partition(":")[0] for line in printed] == [
        "landmarks, 1 at once",
        "landmarks, 2 at once",
    ]
    assert printed[0].endswith("1.00 × one run") and float(printed[1].split()[-4]) > 0


def test_unseen_hold_out_samples_are_set_against_the_labelled_ones(tmp_path: Path) -> None:
    settings = {"device": "cpu", "steps": 60, "out": str(tmp_path / "run"), "threads": 1}
    train(replace(recipes.get("digits/mean-teacher-40"), **settings), quiet=True)
    script = "benchmarks.cifar-wrn10-1_cpu.unseen_holdout"
    arguments = ("run", "--probes", "3", "--save-results", "found.jsonl")
    printed = run(script, tmp_path, *arguments).splitlines()
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    kinds = [f"hold-out {line['holdout']}, through {line['through']}" for line in lines]
    assert kinds == [
        f"hold-out {h}, through {t}"
        for h in ("labeled", "unseen")
        for t in ("labels", "parameters")
    ]
    for kind, line, sentence in zip(kinds, lines, printed, strict=True):
        assert sentence.startswith(f"digits/mean-teacher-40, {kind}: C^H {mean(line['C^H']):.3f} ±")
        assert len(line["C^H"]) == len(line["test cost"]) == 3
    labeled, unseen = (line["C^H"] for line in lines if line["through"] == "parameters")
    assert max(labeled) < 0 and max(unseen) < 0 and labeled != unseen  # a gradient of C^H lowers it


def test_the_profile_of_a_step_is_for_a_gpu(tmp_path: Path) -> None:
    assert ("at once" if torch.cuda.is_available() else "none was found") in run(
        f"{SPEED}.step_profile", tmp_path
    )


def test_stream_plans_are_for_a_gpu(tmp_path: Path) -> None:
    assert ("MiB" if torch.cuda.is_available() else "none was found") in run(
        f"{SPEED}.stream_plans", tmp_path, "landmarks"
    )
