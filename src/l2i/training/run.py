"""A run from start to finish: its processes, its folder, and what it came to where it is done.

MERGED:
Several runs side by side on one GPU: each is a graph on a stream of its own, so together they fill the device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from l2i.config import Run, from_json, to_json
from l2i.config.validate import validate
from l2i.data import STREAMED_DATASETS
from l2i.data.samples import Splits
from l2i.distributed import ProcessGroup, init_distributed
from l2i.errors import InputError, Stopped
from l2i.training import run_dir as folders
from l2i.training.checkpoint import latest_valid, translate_disk_full
from l2i.training.loop import EvalCallback, TrainingLoop
from l2i.training.run_dir import Result, read_result, resolve_run_dir
from l2i.training.setup import param_dtype, pick_device, use_threads, with_data_root
from l2i.training.signals import StopRequest
from l2i.training.trainer import Trainer


def train(
    run: Run,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
    on_evaluation: EvalCallback | None = None,
) -> Result:
    """Train, or go on with, `run` in its folder, and return what it came to. A run that is done is not done again.

    `splits` and `model` may be your own; they are then not part of what config.json says. `label` is what the run is
    called while it is trained. `watch` is called with the trainer and the step at every evaluation; in a run that was
    cut and goes on, some steps come twice.
    """
    with StopRequest() as stop, open_training(run, stop, splits=splits, model=model, quiet=quiet, label=label) as training:
        if isinstance(training, Result):
            return training
        training.on_evaluation = on_evaluation
        return training.finish()


@contextmanager
def open_training(
    run: Run,
    stop: StopRequest,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
) -> Iterator[TrainingLoop | Result]:
    """A run ready to take its steps, or its result where it is done."""
    validate(run)
    run, folder = with_data_root(run), folders.resolve_run_dir(run)
    with translate_disk_full(folder), init_distributed(run.device) as ranks, use_threads(run.threads):
        check_settings_agree(run, ranks)
        result = read_finished_result(run, folder, ranks, splits)
        if result is not None:
            yield result
            return
        trainer = Trainer(run, splits=splits, model=model)  # wrong input is found here, before anything is written
        check_data_agree(trainer)
        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(closing(trainer))
            if ranks.is_main:
                stack.enter_context(folders.lock_run_dir(folder))
                folders.claim_run_dir(folder, run)
            stack.enter_context(torch.random.fork_rng(devices))
            torch.manual_seed(run.seed)
            yield stack.enter_context(closing(TrainingLoop(trainer, folder, stop, quiet=quiet, label=label)))


def read_finished_result(run: Run, folder: Path, ranks: ProcessGroup, splits: Splits | None) -> Result | None:
    """The result of a run that is done; the process that writes looks for it."""
    result = None
    if ranks.is_main:
        folders.check_available(folder, run)
        result = folders.read_result(folder)
        if result is not None and splits is not None:
            cpu_splits = splits.to(torch.device("cpu"), param_dtype(run))  # as a checkpoint knows them
            folders.check_fingerprint(folder, latest_valid(folder / "checkpoints")[1], cpu_splits, custom_splits=True)
    payload = ranks.broadcast_bytes(b"" if result is None else json.dumps(asdict(result)).encode())
    return Result(**json.loads(payload)) if payload else None


def check_settings_agree(run: Run, ranks: ProcessGroup) -> None:
    """That all processes were given the same run: each has its own command line."""
    main_run = from_json(json.loads(ranks.broadcast_bytes(json.dumps(to_json(run)).encode())))
    mismatches = folders.find_differences(to_json(main_run), to_json(run))
    if mismatches:
        raise InputError(f"process {ranks.rank} has other settings than process 0 ({'; '.join(mismatches[:4])})")


def check_data_agree(trainer: Trainer) -> None:
    """That all processes have the same samples: each reads its own machine's."""
    fingerprint = trainer.splits.fingerprint()
    if trainer.ranks.broadcast_bytes(fingerprint.encode()) != fingerprint.encode():
        raise InputError(
            f"process {trainer.ranks.rank} reads other data than process 0; give all machines the same --data.root"
        )


MAX_CONCURRENT_RUNS = 5  # runs at once by default: recording takes up to six streams a run, and torch gives out 32 different ones


def train_many(runs: Sequence[Run], *, concurrent_runs: int = 0) -> Iterator[Result]:
    """What the runs come to, in their order; `at_once` of them side by side, by default as many as that makes faster.

    Each run's results are those that it has alone: it shares nothing but the device with the others. Networks with
    dropout, which draw from one generator, take turns.
    """
    count = concurrent_runs or min(len(runs), MAX_CONCURRENT_RUNS if all(benefits_from_parallel(run) for run in runs) else 1)
    count = 1 if any(uses_dropout(run) for run in runs) else count
    for first in range(0, len(runs), count):
        group = runs[first : first + count]
        yield from ([train(group[0])] if len(group) == 1 else train_in_parallel(group))


def benefits_from_parallel(run: Run) -> bool:
    """Whether a run goes faster beside others: as a graph on a GPU; on a CPU one run keeps all cores busy."""
    uses_graph = run.engine != "eager" and run.data.name not in STREAMED_DATASETS and not uses_dropout(run)
    return uses_graph and pick_device(run.device).type == "cuda"


def uses_dropout(run: Run) -> bool:
    """Whether the network has dropout; a pretrained encoder has, where the run does not say otherwise."""
    encoder_dropout = run.model.encoder_dropout if run.model.name == "encoder" else 0.0
    return bool(run.model.dropout) or encoder_dropout != 0


def train_in_parallel(runs: Sequence[Run]) -> list[Result]:
    """Take a step of each in turn until all are done; the first that is not done yet shows its progress."""
    label = f"{runs[0].name} seeds {', '.join(str(run.seed) for run in runs)}"
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        visible_run = next((run for run in runs if read_result(resolve_run_dir(run)) is None), None)
        opened = [stack.enter_context(open_training(run, stop, quiet=run is not visible_run, label=label)) for run in runs]
        trainings = [training for training in opened if isinstance(training, TrainingLoop)]
        results = step_round_robin(trainings)
        return [results[entry] if isinstance(entry, TrainingLoop) else entry for entry in opened]


def step_round_robin(trainings: list[TrainingLoop]) -> dict[TrainingLoop, Result]:
    """A step of each a round; raises what went wrong first, once all others are done."""
    results: dict[TrainingLoop, Result] = {}
    failures: list[Exception] = []
    active = [(training, training.steps(), make_stream_context(training)) for training in trainings]
    for training in trainings:
        training.concurrent_runs = len(trainings)
    while active:
        for training, steps, stream in list(active):
            try:
                with stream:
                    next(steps)
                continue
            except StopIteration:
                results[training] = training.write_result()
            except Exception as error:
                failures.append(error)
            active = [entry for entry in active if entry[0] is not training]
    if failures:
        raise next((error for error in failures if isinstance(error, Stopped)), failures[0])
    return results


def make_stream_context(training: TrainingLoop) -> AbstractContextManager[object]:
    """A stream of the run's own."""
    device = training.trainer.device
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device, priority=-1)  # from another 32: libraries keep work space by stream
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
