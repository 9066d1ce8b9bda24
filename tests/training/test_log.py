"""What a run says of the time that it takes."""

import time

import pytest

from l2i.training import log
from l2i.training.log import Bar
from l2i.training.pace import lasting


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.4, "0 s"), (45, "45 s"), (119, "119 s"), (720, "12 min"), (12_600, "3.5 hours"), (181_440, "2.1 days")],
)
def test_a_time_is_told_as_a_person_says_it(seconds: float, told: str) -> None:
    assert lasting(seconds) == told


def said(capsys: pytest.CaptureFixture[str], steps: int) -> list[str]:
    """What is said in three steps of a hundredth of a second."""
    with Bar("cell seed 0", start=0, steps=steps, quiet=False) as bar:
        for step in range(1, 4):
            time.sleep(0.01)
            bar.advance(step)
    return capsys.readouterr().err.splitlines()


def test_a_run_that_will_take_long_says_so_once_and_what_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "EVERY", 0.0)
    first, *lines = said(capsys, steps=10**9)
    assert first.startswith("cell seed 0: 1,000,000,000 steps will take about ") and "days on this machine" in first
    assert first.endswith("--steps N takes fewer, with schedules scaled")
    assert len(lines) == 3 and all("step" in line and line.endswith("days left") for line in lines)


def test_a_run_of_minutes_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "EVERY", 0.0)
    lines = said(capsys, steps=1000)
    assert len(lines) == 3 and all(line.endswith(" s left") for line in lines)
