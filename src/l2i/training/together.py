"""Several runs side by side on one GPU: each is a graph on a stream of its own, so together they fill the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

from l2i.config import Run
from l2i.data import STREAMED
from l2i.errors import Stopped
from l2i.training.build import pick_device
from l2i.training.folder import Result
from l2i.training.run import Training, begun, train
from l2i.training.signals import StopRequest

MOST = 8  # runs at once by default: more have nothing left to fill, and need their memory


def train_together(runs: Sequence[Run], *, at_once: int = 0) -> Iterator[Result]:
    """What the runs come to, in their order; `at_once` of them side by side, by default as many as that makes faster.

    Each run's results are those that it has alone: it shares nothing but the device with the others.
    """
    count = at_once or min(len(runs), MOST if all(gains(run) for run in runs) else 1)
    for first in range(0, len(runs), count):
        group = runs[first : first + count]
        yield from ([train(group[0])] if len(group) == 1 else side_by_side(group))


def gains(run: Run) -> bool:
    """Whether a run goes faster beside others: as a graph on a GPU; on a CPU one run keeps all cores busy."""
    recorded = run.engine != "eager" and run.data.name not in STREAMED and not run.model.dropout
    return recorded and pick_device(run.device).type == "cuda"


def side_by_side(runs: Sequence[Run]) -> list[Result]:
    """Take a step of each in turn until all are done; a signal stops them all, each after saving."""
    label = f"{runs[0].name} seeds {', '.join(str(run.seed) for run in runs)}"
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        begin = [begun(run, stop, quiet=run is not runs[0], label=label) for run in runs]
        found = [stack.enter_context(each) for each in begin]
        trainings = [training for training in found if isinstance(training, Training)]
        for training in trainings:
            training.at_once = len(trainings)
        lanes = [on_stream(training) for training in trainings]
        left = [(training.going(), lane) for training, lane in zip(trainings, lanes, strict=True)]
        stopped: Stopped | None = None
        while left:
            for steps, lane in list(left):
                try:
                    with lane:
                        next(steps)
                except StopIteration:
                    left.remove((steps, lane))
                except Stopped as error:
                    stopped = error
                    left.remove((steps, lane))
        if stopped is not None:
            raise stopped
        return [each.written() if isinstance(each, Training) else each for each in found]


def on_stream(training: Training) -> AbstractContextManager[object]:
    """A stream of the run's own."""
    device = training.trainer.device
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
