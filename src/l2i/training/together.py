"""Several runs side by side on one GPU: each is a graph on a stream of its own, so together they fill the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

from l2i.config import Run
from l2i.data import STREAMED
from l2i.errors import Stopped
from l2i.training.build import pick_device
from l2i.training.folder import Result, folder_of, read_result
from l2i.training.loop import Training
from l2i.training.run import begun, train
from l2i.training.signals import StopRequest

MOST = 5  # runs at once by default: recording takes up to six streams a run, and torch gives out 32 different ones


def train_together(runs: Sequence[Run], *, at_once: int = 0) -> Iterator[Result]:
    """What the runs come to, in their order; `at_once` of them side by side, by default as many as that makes faster.

    Each run's results are those that it has alone: it shares nothing but the device with the others. Networks with
    dropout, which draw from one generator, take turns.
    """
    count = at_once or min(len(runs), MOST if all(gains(run) for run in runs) else 1)
    count = 1 if any(drops(run) for run in runs) else count
    for first in range(0, len(runs), count):
        group = runs[first : first + count]
        yield from ([train(group[0])] if len(group) == 1 else side_by_side(group))


def gains(run: Run) -> bool:
    """Whether a run goes faster beside others: as a graph on a GPU; on a CPU one run keeps all cores busy."""
    recorded = run.engine != "eager" and run.data.name not in STREAMED and not drops(run)
    return recorded and pick_device(run.device).type == "cuda"


def drops(run: Run) -> bool:
    """Whether the network has dropout; a pretrained encoder has, where the run does not say otherwise."""
    within = run.model.encoder_dropout if run.model.name == "encoder" else 0.0
    return bool(run.model.dropout) or within != 0


def side_by_side(runs: Sequence[Run]) -> list[Result]:
    """Take a step of each in turn until all are done; the first that is not done yet shows its progress."""
    label = f"{runs[0].name} seeds {', '.join(str(run.seed) for run in runs)}"
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        loud = next((run for run in runs if read_result(folder_of(run)) is None), None)
        found = [stack.enter_context(begun(run, stop, quiet=run is not loud, label=label)) for run in runs]
        trainings = [training for training in found if isinstance(training, Training)]
        results = in_rounds(trainings)
        return [results[each] if isinstance(each, Training) else each for each in found]


def in_rounds(trainings: list[Training]) -> dict[Training, Result]:
    """A step of each a round; raises what went wrong first, once all others are done."""
    results: dict[Training, Result] = {}
    failures: list[Exception] = []
    left = [(training, training.going(), on_stream(training)) for training in trainings]
    for training in trainings:
        training.at_once = len(trainings)
    while left:
        for training, steps, stream in list(left):
            try:
                with stream:
                    next(steps)
                continue
            except StopIteration:
                results[training] = training.written()
            except Exception as error:
                failures.append(error)
            left = [each for each in left if each[0] is not training]
    if failures:
        raise next((error for error in failures if isinstance(error, Stopped)), failures[0])
    return results


def on_stream(training: Training) -> AbstractContextManager[object]:
    """A stream of the run's own."""
    device = training.trainer.device
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device, priority=-1)  # from another 32: libraries keep work space by stream
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
