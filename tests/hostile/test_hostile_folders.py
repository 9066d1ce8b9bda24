"""A stranger's run folders: links, pipes, nested JSON do no harm; nothing is written elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from confined import TRAIN, said

NESTED = "[" * 100_000 + "]" * 100_000


def unfinished(place: Path) -> None:
    """As a run is that was cut at its first checkpoint."""
    (place / "run" / "result.json").unlink()
    *_, last = sorted((place / "run" / "checkpoints").iterdir())
    last.unlink()


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
@pytest.mark.parametrize("command", ["evaluate", "plot"])
def test_nested_json_in_a_run_ends_in_a_message(name: str, command: str, place: Path) -> None:
    (place / "run" / name).write_text(NESTED)
    done = said(command, "run", cwd=place)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize(
    "command", [("report", "fit"), ("predict", "fit", "data.csv"), ("export", "fit", "m.pt2")]
)
def test_nested_json_in_a_run_of_a_fit_ends_in_a_message(
    name: str, command: tuple[str, ...], place: Path
) -> None:
    (place / "fit" / "l2i" / name).write_text(NESTED)
    done = said(*command, cwd=place)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "metrics.jsonl", "checkpoints/0000000004.safetensors"]
)
@pytest.mark.parametrize("command", ["evaluate", "plot"])
def test_a_pipe_in_a_run_is_not_waited_for(name: str, command: str, place: Path) -> None:
    (place / "run" / name).unlink()
    os.mkfifo(place / "run" / name)
    done = said(command, "run", cwd=place)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "result.json.partial",
        "result.json",
        "metrics.jsonl",
        "checkpoints/0000000004.safetensors.partial",
        "checkpoints/0000000004.safetensors",
    ],
)
def test_training_writes_through_no_link_out_of_the_run(name: str, place: Path) -> None:
    unfinished(place)
    link = place / "run" / name
    link.unlink(missing_ok=True)
    link.symlink_to(place.parent / "precious")
    done = said(*TRAIN, "--out", "run", cwd=place)
    assert "Traceback" not in done.err, done.err
    assert (place.parent / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["checkpoints", "best"])
def test_training_writes_into_no_folder_out_of_the_run(name: str, place: Path) -> None:
    unfinished(place)
    if (place / "run" / name).exists():
        shutil.move(place / "run" / name, place.parent / "elsewhere")
    else:
        (place.parent / "elsewhere").mkdir()
    before = sorted(path.name for path in (place.parent / "elsewhere").iterdir())
    (place / "run" / name).symlink_to(place.parent / "elsewhere")
    done = said(*TRAIN, "--out", "run", cwd=place)
    assert "Traceback" not in done.err, done.err
    assert sorted(path.name for path in (place.parent / "elsewhere").iterdir()) == before


@pytest.mark.parametrize("name", ["report.html.partial", "report.html"])
def test_a_report_is_written_through_no_link(name: str, place: Path) -> None:
    (place / "fit" / name).symlink_to(place.parent / "precious")
    done = said("report", "fit", cwd=place)
    assert done.code in (0, 1, 2)
    assert (place.parent / "precious").read_text() == "precious"


def test_pictures_are_written_through_no_link(place: Path) -> None:
    (place / "run" / "plots").mkdir()
    (place / "run" / "plots" / "error.png").symlink_to(place.parent / "precious")
    done = said("plot", "run", cwd=place)
    assert done.code in (0, 1, 2)
    assert (place.parent / "precious").read_text() == "precious"


def test_pictures_are_written_to_no_folder_elsewhere(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    (place / "run" / "plots").symlink_to(place.parent / "elsewhere")
    done = said("plot", "run", cwd=place)
    assert done.code in (0, 1, 2)
    assert not list((place.parent / "elsewhere").iterdir())
