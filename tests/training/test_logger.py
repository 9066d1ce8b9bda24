"""What a run prints about the time that it takes."""

import re

import pytest

from l2i.files.terminal import escape_controls
from l2i.training.logger import COMPACT_LINE_INTERVAL, ProgressBar, format_duration

STEPS_PER_HOUR = 3600


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "printed"),
    [
        (0.4, "0 s"),
        (45, "45 s"),
        (119, "119 s"),
        (720, "12 min"),
        (12_600, "3.5 hours"),
        (181_440, "2.1 days"),
    ],
)
def test_durations_are_formatted_for_people(seconds: float, printed: str) -> None:
    assert format_duration(seconds) == printed


def train(
    capsys: pytest.CaptureFixture[str], steps: int, *, first: float = 1.0, interval: float = 5.0
) -> list[str]:
    """Return what is printed in 60 steps of one second each; the first may take longer."""
    clock = Clock()
    with ProgressBar(
        "cell seed 0", start=0, steps=steps, quiet=False, line_interval=interval, clock=clock
    ) as bar:
        for step in range(1, 61):
            clock.now += first if step == 1 else 1.0
            bar.advance(step)
    return capsys.readouterr().err.splitlines()


def test_a_long_run_is_announced_once_with_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    lines = train(capsys, steps=48 * STEPS_PER_HOUR)
    (announced,) = [line for line in lines if "will take" in line]
    assert announced.startswith(
        "cell seed 0: 172,800 steps will take about 2.0 days on this machine"
    )
    assert announced.endswith("use --steps N for fewer steps, with scaled schedules")
    assert lines[0] == "cell seed 0: step 5 of 172800, 1.0 steps/s, 48.0 hours left"
    assert len(lines) == 1 + 60 // 5


@pytest.mark.parametrize("first", [1.0, 100.0], ids=["even", "slow at first"])
def test_a_run_of_minutes_is_not_announced(
    capsys: pytest.CaptureFixture[str], first: float
) -> None:
    """By its slow first step alone, the run would take a day."""
    lines = train(capsys, steps=800, first=first)
    assert lines and not [line for line in lines if "will take" in line]


def test_one_of_many_runs_prints_a_line_per_minute(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = train(capsys, steps=800, interval=COMPACT_LINE_INTERVAL)
    assert line.startswith("cell seed 0: step 60 of 800")


def test_the_time_of_evaluations_is_not_that_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ProgressBar("cell seed 0", start=0, steps=800, quiet=False, clock=clock) as bar:
        for step in range(1, 30):
            clock.now += 1.0
            bar.advance(step)
            if step == 6:  # the rate is being measured
                bar.begin_evaluation(100)
                clock.now += 100.0
    assert "will take" not in capsys.readouterr().err


NAMES = ["o[/b]", "[bold]x", "\x1b[31mRED\x07", ":smile:"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(name, start=0, steps=1, quiet=False) as bar:
        bar.print_line(f"{name}: resuming from step 20")
        bar.advance(1)
    assert capsys.readouterr().err == f"{escape_controls(name)}: resuming from step 20\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_bar_on_a_terminal_shows_names_as_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    bar = ProgressBar(name, start=0, steps=1, quiet=False)
    assert bar.console.is_terminal
    with bar.console.capture() as captured:
        bar.console.print(bar.progress.get_renderable())
    assert escape_controls(name) in re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
    assert "\x07" not in captured.get()
