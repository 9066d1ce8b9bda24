"""`torchrun … -m l2i train …` as a user types it: one folder, one voice, one process's result."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from launch import ENVIRONMENT, command, run

from l2i.training.checkpoint import list_checkpoints, load_latest_checkpoint
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

SHORT = [
    "--device",
    "cpu",
    "--precision",
    "float64",
    "--steps",
    "12",
    "--eval-every",
    "4",
    "--save-every",
    "4",
]
SMALL = [
    "--model.width",
    "4",
    "--batch.labeled",
    "8",
    "--batch.unlabeled",
    "8",
    "--batch.holdout",
    "8",
    "--probe-samples",
    "20",
]
TRAIN = ["-m", "l2i", "train", "digits", *SHORT, *SMALL]


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_latest_checkpoint(folder / "checkpoints")[0]


def metrics_of(folder: Path) -> list[dict[str, float]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def shorten(folder: Path) -> None:
    """As if the run had been cut after its last checkpoint but one."""
    (folder / "result.json").unlink()
    list_checkpoints(folder / "checkpoints")[-1].unlink()


def test_two_processes_write_the_run_of_one(tmp_path: Path) -> None:
    run(1, *TRAIN, "--out", tmp_path / "one")
    printed = run(2, *TRAIN, "--out", tmp_path / "two")
    assert printed.count("digits, seed 0: error (%)") == 1 and "on 2 processes" in printed
    one, two = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")
    )
    assert (one["metric"], one["validation"]) == (two["metric"], two["validation"])
    assert (one["processes"], two["processes"]) == (1, 2)
    for mine, theirs in zip(
        metrics_of(tmp_path / "two"), metrics_of(tmp_path / "one"), strict=True
    ):
        assert mine == pytest.approx(theirs, rel=1e-9)
    assert len(list((tmp_path / "two").glob("events*"))) == 1
    assert "already finished" in run(2, *TRAIN, "--out", tmp_path / "two")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_processes(
    tmp_path: Path, before: int, after: int
) -> None:
    run(before, *TRAIN, "--out", tmp_path)
    whole = state_of(tmp_path)
    shorten(tmp_path)
    assert "resuming from step 8" in run(after, *TRAIN, "--out", tmp_path)
    for name, tensor in state_of(tmp_path).items():
        if name.startswith(("model", "teacher")):
            torch.testing.assert_close(tensor, whole[name], rtol=1e-9, atol=1e-9)


def test_processes_with_dropout_go_on_to_the_bit(tmp_path: Path) -> None:
    dropping = [*TRAIN, "--model.dropout", "0.3", "--out", tmp_path]
    run(2, *dropping)
    whole = state_of(tmp_path)
    shorten(tmp_path)
    run(2, *dropping)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in state_of(tmp_path).items())


def test_a_stop_is_agreed_on_and_the_run_goes_on(tmp_path: Path) -> None:
    line = command(2, *TRAIN, "--steps", "3000", "--out", tmp_path)
    with subprocess.Popen(line, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as going:
        wait_until(lambda: len(list_checkpoints(tmp_path / "checkpoints")) >= 2, going)
        going.send_signal(signal.SIGTERM)
        printed = going.communicate(timeout=PATIENCE)[1]
    assert printed.count("the same command resumes from there") == 1
    stopped = load_latest_checkpoint(tmp_path / "checkpoints")[1]["step"]
    assert f"stopped at step {stopped}" in printed


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    printed = run(2, *TRAIN, "--batch.labeled", "7", "--out", tmp_path / "run", code=1)
    assert (
        printed.count(
            "l2i: batch.labeled=7 is not divisible by the 2 processes; use a multiple of 2"
        )
        == 1
    )
    assert not (tmp_path / "run").exists()
    printed = run(2, "-m", "l2i", "list", code=1)
    assert printed.count("'l2i list' runs in a single process; start it without torchrun") == 1
