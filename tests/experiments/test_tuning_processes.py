"""Sweeps by several processes on one storage, killed and started again."""

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

SMALL = [
    "--device",
    "cpu",
    "--steps",
    "300",
    "--eval-every",
    "20",
    "--save-every",
    "20",
    "--model.width",
    "16",
]
STUDY = "runs/tune/digits-seed0"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "l2i", "tune", "digits", *SMALL, *words]
    return subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def query(folder: Path, sql: str, *values: Any) -> list[Any]:
    database = sqlite3.connect(folder / STUDY / "study.db", timeout=60)
    try:
        with database:
            return database.execute(sql, values).fetchall()
    except sqlite3.OperationalError as error:
        assert "no such table" in str(error)
        return []
    finally:
        database.close()


def states(folder: Path) -> dict[int, str]:
    made = (folder / STUDY / "study.db").exists()
    return dict(query(folder, "SELECT number, state FROM trials")) if made else {}


def values(folder: Path) -> dict[int, list[Any]]:
    drawn = "SELECT number, param_name, param_value FROM trials JOIN trial_params USING (trial_id)"
    rows = query(folder, f"{drawn} ORDER BY number, param_name")
    return {number: [row[1:] for row in rows if row[0] == number] for number, *_ in rows}


def checkpointed(folder: Path, number: int) -> bool:
    """Whether a trial has taken steps and can be continued."""
    saved = sorted((folder / STUDY / f"trial-{number:04}" / "checkpoints").glob("*.safetensors"))
    return bool(saved) and int(saved[-1].stem) >= 60


def tampered(folder: Path, number: int) -> bytes:
    """Change a digit of the first evaluation, which only a run that goes on leaves as it is."""
    path = folder / STUDY / f"trial-{number:04}" / "metrics.jsonl"
    first, rest = path.read_bytes().split(b"\n", 1)
    changed = first.replace(b'"lr": 0.', b'"lr": 9.')
    assert changed != first
    path.write_bytes(changed + b"\n" + rest)
    return changed


def trained_once(tmp_path: Path, number: int, *, cut: bool, mark: bytes | None) -> None:
    """A trial was trained whole, in one go or continued, and its result is the study's."""
    folder = tmp_path / STUDY / f"trial-{number:04}"
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(20, 301, 20))
    assert len(list(folder.glob("events.*"))) <= (2 if cut else 1)
    assert mark is None or lines[0] == mark
    (value,) = query(
        tmp_path,
        "SELECT value FROM trial_values JOIN trials USING (trial_id) WHERE number = ?",
        number,
    )
    assert value[0] == json.loads((folder / "result.json").read_text())["validation"]


def test_two_processes_killed_half_way_and_continued_finish_each_trial_once(tmp_path: Path) -> None:
    killed = [start(tmp_path, "--trials", "8", "--no-prune") for _ in range(2)]

    def half_way() -> bool:
        now = states(tmp_path)
        at_work = [number for number, state in now.items() if state == "RUNNING"]
        return (
            list(now.values()).count("COMPLETE") >= 2
            and sum(checkpointed(tmp_path, n) for n in at_work) == 2
        )

    wait_until(half_way, *killed)
    for process in killed:
        process.send_signal(signal.SIGKILL)
    said = [process.communicate()[1] for process in killed]
    before, drawn = states(tmp_path), values(tmp_path)
    cut = [number for number, state in before.items() if state == "RUNNING"]
    assert len(before) == 8 and 1 <= len(cut) <= 2
    marks = {number: tampered(tmp_path, number) for number in cut if checkpointed(tmp_path, number)}

    again = [start(tmp_path, "--trials", "8", "--no-prune") for _ in range(2)]
    ended = [process.communicate(timeout=PATIENCE) for process in again]
    assert [process.returncode for process in again] == [0, 0], ended
    assert states(tmp_path) == dict.fromkeys(range(8), "COMPLETE")
    after = values(tmp_path)
    assert all(set(actual) <= set(after[number]) for number, actual in drawn.items())
    for number in range(8):
        trained_once(tmp_path, number, cut=number in cut, mark=marks.get(number))
    finished = Counter(
        line.split(":")[0] for text in [*said, *(e[1] for e in ended)] for line in printed(text)
    )
    assert set(finished.values()) == {1} and len(finished) >= 8 - 2
    assert any(
        "8 of 8 trials finished: 8 trained" in out and "best: trial" in out for out, _ in ended
    )
    assert query(tmp_path, "SELECT * FROM l2i_claims") == []


def printed(stderr: str) -> list[str]:
    """The lines of finished trials."""
    return [line for line in stderr.splitlines() if " finished, best so far" in line]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_trial_to_the_next_process(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    process = start(tmp_path, "--trials", "2")
    wait_until(lambda: checkpointed(tmp_path, 0), process)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert (
        process.returncode == code
        and "the same command resumes from there" in said
        and "Traceback" not in said
    )
    assert (
        states(tmp_path) == {0: "RUNNING", 1: "WAITING"}
        and query(tmp_path, "SELECT * FROM l2i_claims") == []
    )
    mark = tampered(tmp_path, 0)
    again = start(tmp_path, "--trials", "2")
    _, said = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0 and "trial 0: resuming" in said
    assert set(states(tmp_path).values()) == {"COMPLETE"}
    assert (tmp_path / STUDY / "trial-0000" / "metrics.jsonl").read_bytes().startswith(mark)


@pytest.mark.parametrize(
    ("age", "state"), [("-1 seconds", "WAITING"), ("-600 seconds", "COMPLETE")]
)
def test_a_trial_on_another_machine_is_taken_over_when_it_is_silent_for_long(
    age: str, state: str, tmp_path: Path
) -> None:
    first = start(tmp_path, "--trials", "1", "--steps", "20")
    first.communicate(timeout=PATIENCE)
    claim = (
        "INSERT INTO l2i_claims VALUES ('digits-seed0', 'trial-0001', 'elsewhere/1/1', "
        "datetime('now', ?))"
    )
    query(tmp_path, claim, age)
    process = start(tmp_path, "--trials", "3", "--steps", "20")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and states(tmp_path) == {0: "COMPLETE", 1: state, 2: "COMPLETE"}
    waits = state == "WAITING"
    assert ("other processes are still training trial 1" in out) == waits and (
        "its test error" in out
    ) != waits


def test_a_trial_that_another_machine_took_over_is_left_to_it(tmp_path: Path) -> None:
    process = start(tmp_path, "--trials", "1", "--steps", "600")
    wait_until(lambda: checkpointed(tmp_path, 0), process)
    query(tmp_path, "UPDATE l2i_claims SET owner = 'elsewhere/1/1' WHERE part = 'trial-0000'")
    out, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and printed(said) == [] and "still training trial 0" in out
    assert states(tmp_path) == {0: "RUNNING"}
    assert query(tmp_path, "SELECT owner FROM l2i_claims") == [("elsewhere/1/1",)]
