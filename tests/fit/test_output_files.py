"""Places that cannot be written: one line, nothing left behind; and text that the locale lacks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fits import QUICK, files, flowers, photos, refused, small_fit, works

from l2i.files.output import write_atomic

NAME = "dög x"
WITH = {"impute": (), "predict": ("new.csv",), "report": ()}
SUFFIX = {"impute": ".csv", "predict": ".csv", "report": ".html", "export": ".pt2"}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fit in `run`, one class not in ASCII, and new rows with nothing to report."""
    folder = small_fit(tmp_path_factory.mktemp("fitted"), aster=NAME)
    flowers(20, 0).dropna().to_csv(folder / "new.csv", index=False)
    return folder


def asked(command: str, out: str) -> tuple[str, ...]:
    return (
        (command, "run", out)
        if command == "export"
        else (command, "run", *WITH[command], "--out", out)
    )


@pytest.mark.parametrize("command", SUFFIX)
def test_a_place_that_no_file_can_have_is_refused(command: str, fitted: Path) -> None:
    suffix = SUFFIX[command]
    (fitted / f"folder{suffix}").mkdir(exist_ok=True)
    for out, message in {
        "labels.xlsx": "it must end in .",
        "labels": "it must end in .",
        f"nowhere/x{suffix}": "its folder does not exist; create it first",
        f"flowers.csv/x{suffix}": "its folder does not exist; create it first",
        f"folder{suffix}": "it is a folder; add a file name",
        "x" * 256 + suffix: "File name too long; choose a different path",
    }.items():
        assert f"cannot write '{out}': {message}" in refused(*asked(command, out), cwd=fitted)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("command", ["impute", "predict", "report"])
def test_a_folder_that_takes_no_files_is_said(command: str, fitted: Path) -> None:
    out = f"/proc/x{SUFFIX[command]}"
    assert f"cannot write '{out}': " in refused(*asked(command, out), cwd=fitted)


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes there")
def test_a_file_that_does_not_fit_leaves_nothing(fitted: Path) -> None:
    before = files(fitted)
    command = f"ulimit -f 2; exec {sys.executable} -m l2i impute run --out labels.csv"
    done = subprocess.run(
        ["bash", "-c", command], cwd=fitted, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "l2i: the disk is full: cannot write 'labels.csv' (File too large); "
        "free some space, then repeat the command\n"
    )
    assert files(fitted) == before


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_file_that_was_there(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise error

    write_atomic(tmp_path / "kept", b"before")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(type(error)):
        write_atomic(tmp_path / "kept", b"after")
    assert files(tmp_path) == {"kept": b"before"}


def test_a_fit_is_not_written_into_its_images(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", each=6, unlabeled=6)
    quick = (*QUICK, "--steps", "3", "--model.width", "4", "--no-baselines")
    (tmp_path / "link").symlink_to(folder)
    for where, data, out in (
        (folder, ".", ()),
        (folder / "dark", "..", ()),
        (tmp_path, "photos", ("--out", "photos/run")),
        (tmp_path, "photos", ("--out", "photos")),
        (tmp_path, "photos", ("--out", "link/run")),
        (tmp_path, "link", ("--out", "photos/run")),
    ):
        line = refused("fit", data, *out, *quick, cwd=where)
        assert f"is inside the data folder {folder}; choose a different --out" in line
    works("fit", ".", "--out", "../run", *quick, cwd=folder)
    assert (tmp_path / "run" / "fit.json").is_file()
    works("fit", "photos", "--out", "photos run", *quick, cwd=tmp_path)


def in_ascii(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """A command where the locale knows ASCII alone, for files as for streams."""
    locale = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    command = [sys.executable, "-m", "l2i", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | locale, capture_output=True, check=False
    )


def test_predictions_on_stdout_are_utf_8_whatever_the_locale(fitted: Path) -> None:
    done = in_ascii("predict", "run", "new.csv", cwd=fitted)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == works("predict", "run", "new.csv", cwd=fitted).out
    assert f"p({NAME})" in done.stdout.decode().splitlines()[0]


def test_files_and_messages_work_whatever_the_locale(fitted: Path) -> None:
    works("report", "run", "--out", "a.html", cwd=fitted)
    done = in_ascii("report", "run", "--out", "ä.html", cwd=fitted)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and done.stdout.endswith(b".html\n")
    assert (fitted / "ä.html").read_bytes() == (fitted / "a.html").read_bytes()
    done = in_ascii("report", "run", "--out", "ö/b.html", cwd=fitted)
    assert (
        done.returncode == 2
        and b"its folder does not exist" in done.stderr
        and b"Traceback" not in done.stderr
    )


def test_a_fit_is_told_from_a_run(fitted: Path) -> None:
    assert "is a fit, not a run" in refused("evaluate", "run", cwd=fitted)
    assert "is part of the fit run" in refused("evaluate", "run/l2i", cwd=fitted)
