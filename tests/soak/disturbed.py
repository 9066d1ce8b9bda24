"""A disturbed short run ends as an undisturbed one: the same command, repeated in one folder."""

import fcntl
import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attempts import Attempt, steps_saved
from launch import command

from l2i.training.checkpoint import list_checkpoints, load_checkpoint

STEPS = 80
COMMON = ("--steps", str(STEPS), "--eval-every", "10", "--device", "cpu", "--threads", "1")
RECIPES = {
    "fixmatch-l2i": ("digits",),
    "mean-teacher-l2i-exact": ("digits/mean-teacher-l2i-40", "--l2i.hypergradient", "exact"),
    "supervised": ("digits/sl-40",),
}
CLOSE = 1e-9  # in float64, where the number of processes changes and with it the order of sums
TIMES = ("seconds", "steps_per_second")
DISK = 24 * 2**20  # bytes, of which a run takes a tenth


class Disturbed:
    """A run in a folder, started again and again by the same command."""

    def __init__(
        self,
        folder: Path,
        recipe: str,
        *,
        processes: int,
        save_every: int = 5,
        keep: int = 2,
        moves: bool = False,
    ) -> None:
        self.folder, self.processes, self.moves, self.save_every = (
            folder,
            processes,
            moves,
            save_every,
        )
        self.words = (*RECIPES[recipe], *COMMON, *(("--precision", "float64") if moves else ()))
        self.saves = ("--save-every", str(save_every), "--keep-checkpoints", str(keep))
        self.keep, self.attempts = keep, list[Attempt]()
        self.damaged = dict[tuple[int, int], Path]()
        self.disk = folder / "disk"
        self.disk.mkdir(parents=True, exist_ok=True)
        self.out = self.disk / "run"

    @property
    def done(self) -> bool:
        return (self.out / "result.json").exists()

    def start(self, restarts: int = 0) -> Attempt:
        """The command, on as many processes as it is on now; torchrun restarts them so often."""
        words = ("-m", "l2i", "train", *self.words, *self.saves, "--out", str(self.out))
        line = command(self.processes, *words, options=("--max-restarts", str(restarts)))
        self.attempts.append(
            Attempt(line, self.out, self.folder / f"attempt-{len(self.attempts)}.log")
        )
        return self.attempts[-1]

    def finish(self) -> None:
        """The same command once more, undisturbed."""
        with self.start() as attempt:
            attempt.ended(0)

    def whole(self) -> list[Path]:
        """The checkpoints that nobody has damaged, oldest first."""
        return [
            path
            for path in list_checkpoints(self.out / "checkpoints")
            if mark(path) not in self.damaged
        ]

    def intact(self) -> None:
        """That every checkpoint that nobody has damaged can be read."""
        for path in self.whole():
            assert load_checkpoint(path) is not None, f"{path} is damaged"

    def check(self, reference: Path) -> None:
        """That the run is what the undisturbed one is: all tensors, all metrics, the result."""
        for mine, whole in zip(parts(self.out), parts(reference), strict=True):
            same(mine, whole, CLOSE if self.moves else 0.0)
        if not self.moves:
            assert (self.out / "metrics.jsonl").read_bytes() == (
                reference / "metrics.jsonl"
            ).read_bytes()
        assert len(self.whole()) <= self.keep
        for path in self.damaged.values():
            assert path.with_suffix(".damaged").exists(), f"nothing was said of {path}"
        for attempt in self.attempts:
            attempt.clear()


def mark(path: Path) -> tuple[int, int]:
    """What tells a file from one that takes its name later."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def parts(out: Path) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """The last state, the metrics and the result, without what depends on time or processes."""
    assert steps_saved(out) == STEPS
    loaded = load_checkpoint(out / "checkpoints" / f"{STEPS:010}.safetensors")
    assert loaded is not None
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    return (
        loaded[0],
        rows,
        {name: result[name] for name in result if name not in (*TIMES, "processes")},
    )


def same(mine: Any, whole: Any, tolerance: float, what: str = "") -> None:
    """That all within is equal: bit by bit, or up to a tolerance."""
    assert type(mine) is type(whole), f"{what} is {mine}, not {whole}"
    if isinstance(mine, dict):
        assert mine.keys() == whole.keys(), f"{what}: {mine.keys() ^ whole.keys()}"
        for name in mine:
            same(mine[name], whole[name], tolerance, f"{what} {name}")
    elif isinstance(mine, list):
        for number, pair in enumerate(zip(mine, whole, strict=True)):
            same(*pair, tolerance, f"{what} {number}")
    elif isinstance(mine, torch.Tensor):
        torch.testing.assert_close(
            mine, whole, rtol=tolerance, atol=tolerance, msg=lambda printed: f"{what}: {printed}"
        )
    else:
        near = isinstance(mine, float) and math.isclose(
            mine, whole, rel_tol=tolerance, abs_tol=tolerance
        )
        assert near or mine == whole, f"{what} is {mine}, not {whole}"


def undisturbed(shared: Path, recipe: str, *, processes: int, moves: bool) -> Path:
    """The folder of such a run that nobody disturbs: made once, for all who share the folder."""
    made = Disturbed(
        shared / f"{recipe}-{processes}{'-float64' * moves}",
        recipe,
        processes=processes,
        moves=moves,
    )
    with (made.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.done:
            made.finish()
    return made.out


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of its own for what lies in the folder; False where this user may not have one."""
    folder.mkdir(parents=True, exist_ok=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = (
        shutil.which("mount") is not None
        and subprocess.run(line, capture_output=True).returncode == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
