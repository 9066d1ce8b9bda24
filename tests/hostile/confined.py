"""Commands and loaders in a process with little memory and time: what a hostile file does there."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2  # noqa: F401 (what commands import must not count as theirs)
import matplotlib.backends.backend_agg  # noqa: F401
import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import torch.export  # noqa: F401
import tyro  # noqa: F401

import l2i.experiments.figures
import l2i.fit.export
import l2i.fit.pipeline
import l2i.fit.report  # noqa: F401
from l2i.cli import run_command
from l2i.errors import InputError

ROOM = 1_500_000_000  # bytes of address space beyond what is taken already
SECONDS = 20

TRAIN = [
    "train",
    "digits",
    "--steps",
    "4",
    "--eval-every",
    "2",
    "--save-every",
    "2",
    "--device",
    "cpu",
    "--threads=1",
]


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


def confined(work: Callable[[], Any], *, room: int = ROOM) -> Any:
    """What `work` returns in its own process, which must neither ask for more memory nor hang."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_limited, args=(work, room, there))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads, which the child does not use
        child.start()
    there.close()
    try:
        answered = here.poll(SECONDS)
        assert answered, "it hangs"
        return here.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"it died with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()


def _limited(work: Callable[[], Any], room: int, answer: Any) -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
    answer.send(work())


def message_of(work: Callable[[], Any], *, room: int = ROOM) -> str:
    """The message of the InputError that work ends in; it must not be that the memory was full."""

    def tried() -> str:
        try:
            return f"nothing is wrong: {work()!r}"[:200]
        except InputError as error:
            return f"InputError: {error}"

    actual = str(confined(tried, room=room))
    assert actual.startswith("InputError: "), actual
    assert "MemoryError" not in actual
    return actual.removeprefix("InputError: ")


def said(*arguments: str, cwd: Path, room: int = ROOM) -> Said:
    """A command as it is typed in a folder."""

    def typed() -> Said:
        out, err = (
            io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
        )
        with (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run_command(arguments)
        return Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]

    return Said(*confined(typed, room=room))


def refused(*arguments: str, cwd: Path, room: int = ROOM) -> str:
    """The one line that wrong input comes to; it leaves all files as they were."""
    before = files(cwd)
    done = said(*arguments, cwd=cwd, room=room)
    assert done.code == 2, done
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    assert "MemoryError" not in done.err
    assert files(cwd) == before
    return done.err


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all that is there."""
    actual = ((path, path.lstat()) for path in folder.rglob("*"))
    return {
        str(path.relative_to(folder)): (observed.st_size, observed.st_mtime_ns)
        for path, observed in actual
        if not path.is_dir()
    }
