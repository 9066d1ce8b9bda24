"""What a run says of the time that it takes."""

import time

import pytest

from l2i.training import logger as log
from l2i.training.logger import ProgressBar, format_duration


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
def test_a_time_is_told_as_a_person_says_it(seconds: float, printed: str) -> None:
    assert format_duration(seconds) == printed


def said(capsys: pytest.CaptureFixture[str], steps: int, *, slow: float = 0.0) -> list[str]:
    """What is said in steps of a hundredth of a second, of which the first may take longer."""
    with ProgressBar("cell seed 0", start=0, steps=steps, quiet=False) as bar:
        time.sleep(slow)
        for step in range(1, 5):
            time.sleep(0.01)
            bar.advance(step)
    return capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LINE_INTERVAL", 0.0)


def test_a_run_that_will_take_long_says_so_once_and_what_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = said(capsys, steps=10**9)
    printed = [line for line in lines if "will take" in line]
    assert len(printed) == 1 and printed[0].startswith(
        "cell seed 0: 1,000,000,000 steps will take about "
    )
    assert "days on this machine" in printed[0] and printed[0].endswith(
        "use --steps N for fewer steps, with scaled schedules"
    )
    others = [line for line in lines if line not in printed]
    assert len(others) == 4 and all(
        "step" in line and line.endswith("days left") for line in others
    )


@pytest.mark.parametrize("slow", [0.0, 1.5], ids=["even", "slow at first"])
def test_a_run_of_minutes_says_nothing_of_it(
    capsys: pytest.CaptureFixture[str], slow: float
) -> None:
    """1,000 such steps take ten seconds; by the first of them alone, they would take 25 minutes."""
    assert not [line for line in said(capsys, steps=1000, slow=slow) if "will take" in line]


def test_the_time_of_evaluations_is_not_that_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("cell seed 0", start=0, steps=1000, quiet=False) as bar:
        bar.advance(1)
        bar.begin_evaluation(100)
        time.sleep(1.5)
        for step in range(2, 5):
            time.sleep(0.01)
            bar.advance(step)
    assert "will take" not in capsys.readouterr().err
