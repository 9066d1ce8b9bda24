"""A command that is watched while it runs: how far it has come, its processes, and how it ends."""

import contextlib
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from launch import ENVIRONMENT

from waiting import wait_until

LOOK = 0.005  # seconds between two looks
OURS = re.compile(r'File "[^"]*/l2i/[^"]*\.py"|Exception in thread')  # in a traceback


def steps_saved(out: Path) -> int:
    """How far the checkpoints of a run say it is; −1 where there are none."""
    return max((int(path.stem) for path in (out / "checkpoints").glob("*.safetensors")), default=-1)


def processes_of(out: Path) -> dict[int, str]:
    """The commands of all processes given this run folder, by number; torchrun's come first."""
    actual: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if str(out) in words:
                actual[int(folder.name)] = " ".join(words)
    return dict(
        sorted(actual.items(), key=lambda item: ("torch.distributed.run" not in item[1], item[0]))
    )


class Attempt:
    """`line`, which trains the run in `out`; as a context, nothing of it is left behind."""

    def __init__(self, line: list[str], out: Path, log: Path) -> None:
        self.out, self.log, self.line = out, log, line
        with log.open("wb") as printed:
            self.process = subprocess.Popen(
                line, stdout=printed, stderr=subprocess.STDOUT, env=ENVIRONMENT
            )

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()

    def workers(self) -> list[int]:
        """The processes that train."""
        return [
            pid
            for pid, words in processes_of(self.out).items()
            if "torch.distributed.run" not in words
        ]

    def send(self, number: signal.Signals, to: Iterable[int]) -> bool:
        """Send a signal; whether the run was not done yet, and any process was there to take it."""
        there = 0
        for pid in to:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                there += 1
        return there > 0 and not (self.out / "result.json").exists()

    def kill_all(self) -> bool:
        """SIGKILL for torchrun and its workers; whether the run was not done yet."""
        came = self.send(signal.SIGKILL, processes_of(self.out))
        wait_until(
            lambda: not self.send_on(), describe=self.printed
        )  # what torchrun had just begun to start
        self.process.wait()
        return came

    def send_on(self) -> bool:
        """SIGKILL for what is left; whether there was any."""
        left = processes_of(self.out)
        self.send(signal.SIGKILL, left)
        return bool(left)

    def limit(self, size: int) -> None:
        """No file of the run's may be longer from now on."""
        for pid in processes_of(self.out):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def until(self, holds: Callable[[], bool], *, every: float = LOOK) -> bool:
        """Wait until that holds; False where the command has ended before."""
        wait_until(
            lambda: holds() or self.process.poll() is not None, describe=self.printed, every=every
        )
        return holds()

    def reached(self, step: int) -> bool:
        """Wait until that step is saved; False where the command has ended before."""
        return self.until(lambda: steps_saved(self.out) >= step)

    def saving(self, last: int) -> bool:
        """Wait until a checkpoint is being written, or that of a `last` step was.

        False where the command has ended.
        """
        begun = (self.out / "checkpoints").glob
        return self.until(
            lambda: any(begun("*.partial")) or steps_saved(self.out) >= last, every=LOOK / 20
        )

    def ended(self, *codes: int) -> int:
        """Its exit code, once it and what it started have ended: one of these."""
        wait_until(lambda: self.process.poll() is not None, describe=self.printed, every=LOOK)
        wait_until(lambda: not processes_of(self.out), describe=self.printed, every=0.1)
        code = self.process.wait()
        assert code in codes, (
            f"it ended with {code}, not {' or '.join(map(str, codes))}.\n{self.printed()}"
        )
        return code

    def said(self) -> str:
        """All that it has said."""
        return self.log.read_text(errors="replace")

    def printed(self) -> str:
        """The command, and the end of what it said."""
        return f"{' '.join(self.line)}\n{self.said()[-6000:]}"

    def clear(self) -> None:
        """That what it said holds no traceback through our files."""
        assert not OURS.search(self.said()), f"there is a traceback.\n{self.printed()}"
