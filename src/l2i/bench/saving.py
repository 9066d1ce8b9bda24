"""What checkpoints cost: the same steps with one being written beside them and with none, in turn."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from l2i.bench.cases import Case
from l2i.bench.timing import MIB, Stepping, ms_of
from l2i.data.split import Splits
from l2i.training.checkpoint import checkpoints
from l2i.training.saver import Saver

EVERY = {"cuda": 500, "cpu": 100}  # steps; the first is what a run does by itself, recipes mostly save more seldom
PAIRS = 7


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Blocks of `every` steps, with a checkpoint begun at the start of each and awaited at its end, and without."""

    group: str
    variant: str
    every: int
    mib: float
    """Size of a checkpoint."""
    ms_with: tuple[float, ...]
    ms_without: tuple[float, ...]

    cost: float
    """The share of steps a second that is lost, a round at a time, the median."""

    def __str__(self) -> str:
        return (
            f"Checkpoints: with one every {self.every} steps, {100 - 100 * self.cost:.1f} % of the steps a second "
            f"({self.group} {self.variant}, {self.mib:.1f} MiB each, written in the background; "
            f"blocks with and without, {len(self.ms_with)} of each, in turn)."
        )


def saving(case: Case, splits: Splits, device: torch.device, *, blocks: int, steps: int) -> Saving:
    """Time the case's steps with and without checkpoints; the folder is a temporary one."""
    with TemporaryDirectory() as name, closing(Stepping.warm(case.run, splits)) as stepping:
        folder = Path(name)
        with closing(Saver()) as saver:
            saved(
                stepping, saver, folder, steps
            )  # memory that copies are pinned in, and the like, is there from now on
            rounds = [
                (
                    ms_of(partial(saved, stepping, saver, folder, steps), device),
                    ms_of(partial(stepping.take, steps), device),
                )
                for _ in range(blocks)
            ]
        size = checkpoints(folder)[-1].stat().st_size / MIB
    with_one, without = zip(*rounds, strict=True)
    return Saving(
        group=case.group,
        variant=case.variant,
        every=steps,
        mib=size,
        ms_with=with_one,
        ms_without=without,
        cost=1 - median(plain / slowed for slowed, plain in rounds),
    )


def saved(stepping: Stepping, saver: Saver, folder: Path, steps: int) -> None:
    """Begin to write a checkpoint, take the steps, and see that it is on disk."""
    saver.save(folder, stepping.t, stepping.trainer.state(), {"step": stepping.t})
    stepping.take(steps)
    saver.wait()
