"""A run from start to finish: its processes, its folder, and what it came to where it is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from l2i.config import Run, from_json, to_json
from l2i.data.split import Splits
from l2i.errors import InputError
from l2i.ranks import Ranks, joined
from l2i.training import folder as folders
from l2i.training.build import dtype_of, placed
from l2i.training.checkpoint import newest_whole, room
from l2i.training.folder import Result
from l2i.training.loop import Training, Watch
from l2i.training.signals import StopRequest
from l2i.training.state import cpu_threads
from l2i.training.trainer import Trainer
from l2i.validate import validate


def train(
    run: Run,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train, or go on with, `run` in its folder, and return what it came to. A run that is done is not done again.

    `splits` and `model` may be your own; they are then not part of what config.json says. `label` is what the run is
    called while it is trained. `watch` is called with the trainer and the step at every evaluation; in a run that was
    cut and goes on, some steps come twice.
    """
    with StopRequest() as stop, begun(run, stop, splits=splits, model=model, quiet=quiet, label=label) as training:
        if isinstance(training, Result):
            return training
        training.watch = watch
        return training.finish()


@contextmanager
def begun(
    run: Run,
    stop: StopRequest,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
) -> Iterator[Training | Result]:
    """A run ready to take its steps, or its result where it is done."""
    validate(run)
    run, folder = placed(run), folders.folder_of(run)
    with room(folder), joined(run.device) as ranks, cpu_threads(run.threads):
        same_settings(run, ranks)
        done = done_before(run, folder, ranks, splits)
        if done is not None:
            yield done
            return
        trainer = Trainer(run, splits=splits, model=model)  # wrong input is found here, before anything is written
        same_data(trainer)
        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(closing(trainer))
            if ranks.writes:
                stack.enter_context(folders.held(folder))
                folders.claim(folder, run)
            stack.enter_context(torch.random.fork_rng(devices))
            torch.manual_seed(run.seed)
            yield stack.enter_context(closing(Training(trainer, folder, stop, quiet=quiet, label=label)))


def done_before(run: Run, folder: Path, ranks: Ranks, splits: Splits | None) -> Result | None:
    """The result of a run that is done; the process that writes looks for it."""
    done = None
    if ranks.writes:
        folders.check(folder, run)
        done = folders.read_result(folder)
        if done is not None and splits is not None:
            known = splits.to(torch.device("cpu"), dtype_of(run))  # as a checkpoint knows them
            folders.same_data(folder, newest_whole(folder / "checkpoints")[1], known, given=True)
    said = ranks.told(b"" if done is None else json.dumps(asdict(done)).encode())
    return Result(**json.loads(said)) if said else None


def same_settings(run: Run, ranks: Ranks) -> None:
    """That all processes were given the same run: each has its own command line."""
    theirs = from_json(json.loads(ranks.told(json.dumps(to_json(run)).encode())))
    found = folders.differences(to_json(theirs), to_json(run))
    if found:
        raise InputError(f"process {ranks.index} has other settings than process 0 ({'; '.join(found[:4])})")


def same_data(trainer: Trainer) -> None:
    """That all processes have the same samples: each reads its own machine's."""
    mine = trainer.splits.fingerprint()
    if trainer.ranks.told(mine.encode()) != mine.encode():
        raise InputError(
            f"process {trainer.ranks.index} reads other data than process 0; give all machines the same --data.root"
        )
