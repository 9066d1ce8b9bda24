"""The exit code and the line on stderr that every kind of error comes to."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from l2i.cli import USAGE, parsing, report_errors, run_and_exit, run_command
from l2i.errors import DamagedFile, DiskFull, InputError, NonFiniteCost, Stopped

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def failing_with(error: BaseException) -> int:
    """Return the exit code of a command that raises an error."""

    def run(arguments: list[str]) -> int:
        assert arguments == ["a", "b"]
        raise error

    return report_errors(run, ("a", "b"))


@pytest.fixture
def second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the second of two processes that torchrun started, without its wait for the first."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(parsing, "PEER_ERROR_DELAY", 0.0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("wrong"), 2),
        (DamagedFile("wrong"), 1),
        (Stopped(2, "wrong"), 130),
        (Stopped(15, "wrong"), 143),
        (NonFiniteCost("wrong"), 1),
        (DiskFull("wrong"), 1),
        (OSError("wrong"), 1),
    ],
)
def test_an_error_is_one_line_and_has_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing_with(error) == code
    assert capsys.readouterr() == ("", "l2i: wrong\n")


def test_a_command_returns_its_own_exit_code() -> None:
    assert report_errors(len, ("a", "b", "c")) == 3


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing_with(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "l2i: stopped\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9 GiB"),
        RuntimeError("CUDA out of memory. Tried to …"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_says_what_to_do(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing_with(error) == 1
    assert capsys.readouterr().err.startswith("l2i: out of memory; use smaller batches")


@pytest.mark.parametrize(
    "error", [RuntimeError("Connection reset"), KeyError("x"), BrokenPipeError(32, "Broken pipe")]
)
def test_a_fault_of_the_program_is_not_hidden(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        failing_with(error)
    assert raised.value is error


@pytest.mark.usefixtures("second_process")
def test_a_process_that_lost_the_others_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    message = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer. See the log\nof it"
    assert failing_with(RuntimeError(message)) == 1
    line = capsys.readouterr().err
    assert line.startswith(
        "l2i: process 1 lost its connection to the others (Connection closed by peer); the same"
    )
    with pytest.raises(RuntimeError, match="shape"):
        failing_with(RuntimeError("shape mismatch"))


@pytest.mark.usefixtures("second_process")
def test_only_the_first_process_says_that_it_was_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failing_with(Stopped(15, "stopped at step 3")) == 143
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("second_process")
def test_commands_for_one_process_refuse_to_be_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["list"]) == 2
    assert "'l2i list' runs in a single process" in capsys.readouterr().err
    for name in ("train", "tune"):
        assert run_command([name]) == 2
        assert "needs a recipe" in capsys.readouterr().err


def test_usage_goes_to_stdout_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, expected in (
        ([], 2, ("", f"{USAGE}\n")),
        (["-h"], 0, (f"{USAGE}\n", "")),
        (["--help"], 0, (f"{USAGE}\n", "")),
        (["--version"], 0, (f"{version('l2i')}\n", "")),
    ):
        assert run_command(arguments) == code
        assert capsys.readouterr() == expected


def test_a_command_that_is_almost_there_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["reprot"]) == 2
    assert "report" in capsys.readouterr().err


def test_list_takes_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list", "a", "b"], ["list", "--all"], ["list", "no-such-name"]):
        assert run_command(arguments) == 2
        assert capsys.readouterr().out == ""
    assert run_command(["list", "mixmatch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "# methods" in lines and "# models" not in lines  # no heading without names
    assert all("mixmatch" in line for line in lines if not line.startswith("#"))


def test_list_shows_tables_alone_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list", "--tables"], ["list", "--tables", "digits"]):
        assert run_command(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "# tables" and any("digits" in line for line in lines)
        assert not any(line.startswith("# ") for line in lines[1:])


def exit_code_of(run: object, monkeypatch: pytest.MonkeyPatch, stdout: object) -> object:
    monkeypatch.setattr(sys, "argv", ["l2i", "a", "b"])
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as raised:
        run_and_exit(run)  # type: ignore[arg-type]
    return raised.value.code


def test_a_process_ends_with_the_exit_code_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, seen = io.BytesIO(), list[Sequence[str]]()
    stdout = io.TextIOWrapper(raw, encoding="ascii")

    def run(arguments: Sequence[str]) -> int:
        seen.append(arguments)
        print("ä")  # which the locale cannot encode
        return 7

    assert exit_code_of(run, monkeypatch, stdout) == 7
    assert seen == [["a", "b"]]
    assert raw.getvalue() == b"\\xe4\n"


@pytest.mark.usefixtures("second_process")
def test_only_the_first_process_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()

    def run(_: Sequence[str]) -> int:
        print("twice?")
        return 0

    stdout = io.TextIOWrapper(raw, encoding="utf-8")
    assert exit_code_of(run, monkeypatch, stdout) == 0
    sys.stdout.close()  # the null device
    assert raw.getvalue() == b"" and not stdout.closed


def test_a_reader_that_has_seen_enough_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Sequence[str]) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    with (tmp_path / "out").open("w", encoding="utf-8") as stdout:
        assert exit_code_of(run, monkeypatch, stdout) == 0
        print("nobody reads this", file=stdout, flush=True)
    assert (tmp_path / "out").read_text() == ""
