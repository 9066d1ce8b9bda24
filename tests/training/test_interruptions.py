"""Interruptions at the worst moment: in a rename, of a stopped process, with a clock set back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from l2i import recipes, replace, train
from l2i.errors import DamagedFile
from waiting import wait_until

TRAIN = ["train", "digits/sl-40", "--steps", "60", "--save-every", "20", "--model.width", "8"]
TRAIN += ["--eval-every", "20", "--device", "cpu", "--threads", "1"]
# kill the process itself when the file of that name is renamed, before or after the rename
KILL_IN_RENAME = """
import os, pathlib, signal, sys
name, moment = sys.argv[1:3]
rename = pathlib.Path.replace
def replace(path, target):
    is_last = pathlib.Path(target).name == name
    if is_last and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(path, target)
    if is_last and moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.replace = replace
sys.argv = ["l2i", *sys.argv[3:]]
from l2i.cli import main
main()
"""


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "l2i", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, **pipes)  # type: ignore[call-overload, no-any-return]


def finish(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate()
    assert process.returncode == 0, err
    return err


def outcome(folder: Path) -> tuple[bytes, bytes, float]:
    """The last checkpoint but for its times, the metrics, and the result."""
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    content = newest.read_bytes()
    size = int.from_bytes(content[:8], "little")
    metric = json.loads((folder / "result.json").read_text())["metric"]
    return content[8 + size :], (folder / "metrics.jsonl").read_bytes(), metric


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, float]:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(start(*TRAIN, "--out", "run", cwd=folder))
    return outcome(folder / "run")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "name", ["config.json", "0000000000.safetensors", "0000000040.safetensors", "result.json"]
)
def test_a_run_killed_in_a_rename_ends_as_an_undisturbed_one(
    name: str, moment: str, tmp_path: Path, undisturbed: tuple[bytes, bytes, float]
) -> None:
    command = [sys.executable, "-c", KILL_IN_RENAME, name, moment, *TRAIN, "--out", "run"]
    killed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    finish(start(*TRAIN, "--out", "run", cwd=tmp_path))
    assert outcome(tmp_path / "run") == undisturbed
    assert not list((tmp_path / "run" / "checkpoints").glob("*.partial"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP there")
def test_a_stopped_process_keeps_its_run_and_continues_to_the_same_end(
    tmp_path: Path, undisturbed: tuple[bytes, bytes, float]
) -> None:
    first = start(*TRAIN, "--out", "run", cwd=tmp_path)
    wait_until((tmp_path / "run" / "config.json").exists, first)
    os.kill(first.pid, signal.SIGSTOP)
    second = start(*TRAIN, "--out", "run", cwd=tmp_path)
    _, err = second.communicate()
    os.kill(first.pid, signal.SIGCONT)
    finish(first)
    if second.returncode:  # the first was stopped before it had finished
        assert (second.returncode, err.count("\n")) == (2, 1), err
        assert "another process is using run; wait, or choose a different --out" in err
    assert outcome(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_of_two_that_train_in_one_folder_one_is_refused(
    tmp_path: Path, undisturbed: tuple[bytes, bytes, float]
) -> None:
    both = [start(*TRAIN, "--out", "run", cwd=tmp_path) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]), said  # or one was done before the other began
    assert all("Traceback" not in err for err in said)
    assert codes == [0, 0] or any("another process is using run" in err for err in said)
    assert outcome(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_a_run_whose_folder_has_markup_in_its_name_resumes(
    tmp_path: Path, undisturbed: tuple[bytes, bytes, float]
) -> None:
    folder = tmp_path / "o[/b]"
    process = start(*TRAIN, "--out", "o[/b]", cwd=tmp_path)
    wait_until((folder / "checkpoints" / "0000000020.safetensors").exists, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    newest = max((folder / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(b"torn")
    (folder / "result.json").unlink(missing_ok=True)
    err = finish(start(*TRAIN, "--out", "o[/b]", cwd=tmp_path))
    assert f"o[/b]/checkpoints/{newest.name} is damaged" in err
    assert outcome(folder) == undisturbed


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(recipes.get("digits/sl-40"), device="cpu", steps=6, eval_every=2, save_every=2)
    run = replace(run, model={"width": 4}, out=str(tmp_path / "plain"))
    wanted = train(run, quiet=True)
    days = count(2_000_000_000, -86_400)  # a day earlier at every look
    monkeypatch.setattr(time, "time", lambda: float(next(days)))
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # and always the same name for events
    again = replace(run, out=str(tmp_path / "again"))
    train(again, quiet=True)
    (tmp_path / "again" / "result.json").unlink()
    max((tmp_path / "again" / "checkpoints").iterdir()).unlink()
    result = train(again, quiet=True)
    assert result.metric == wanted.metric and 0 < result.seconds < 1e6
    rows = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("plain", "again")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("cut", [1, 20, None])
def test_truncated_metrics_are_damage_and_nothing_is_lost(cut: int | None, tmp_path: Path) -> None:
    run = replace(recipes.get("digits/sl-40"), device="cpu", steps=6, eval_every=2, save_every=2)
    run = replace(run, model={"width": 4}, out=str(tmp_path / "run"))
    train(run, quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"" if cut is None else whole[:-cut])
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(
        DamagedFile, match=r"metrics\.jsonl is shorter than it was at the checkpoint"
    ):
        train(run, quiet=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    path.write_bytes(whole)
    assert train(run, quiet=True).steps == 6
