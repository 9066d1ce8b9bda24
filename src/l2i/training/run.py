"""Train a run from start to finish, or several at once on one GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import nn

from l2i.config import Run, from_json, to_json
from l2i.config.validate import validate
from l2i.data import STREAMED_DATASETS
from l2i.data.samples import Splits, describe_changes
from l2i.distributed import ProcessGroup, init_distributed
from l2i.errors import InputError, Stopped
from l2i.training import run_dir
from l2i.training.checkpoint import list_checkpoints, load_latest_checkpoint, translate_disk_full
from l2i.training.loop import EvalCallback, StopRequest, TrainingLoop
from l2i.training.run_dir import Result, parse_result, read_result, resolve_run_dir
from l2i.training.setup import (
    get_param_dtype,
    load_splits,
    pick_device,
    use_threads,
    with_data_root,
)
from l2i.training.trainer import Trainer

# by default: capturing takes up to six streams per run, and torch has 32 distinct ones
MAX_CONCURRENT_RUNS = 5


def train(
    run: Run,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
    compact: bool = False,
    on_evaluation: EvalCallback | None = None,
) -> Result:
    """Train or resume a run in its folder; a finished run is not trained again.

    Args:
        run: The configuration.
        splits: Your own data, in place of the dataset that the run names; config.json does not
            describe it.
        model: Your own network, trained in place.
        quiet: Print nothing.
        label: Name of the run in the progress bar.
        compact: Do not describe the data, and print progress once per minute: for one of many runs.
        on_evaluation: Called with the trainer and the step at every evaluation. In a resumed run,
            some steps come twice.

    Returns:
        The result.

    Raises:
        InputError: If the configuration or the data is wrong, or the folder holds another run.
        NonFiniteCost: If a cost or gradient is not finite.
        Stopped: If a signal stopped the run; its state is saved.

    """
    with (
        StopRequest() as stop,
        _open_training(
            run, stop, splits=splits, model=model, quiet=quiet, label=label, compact=compact
        ) as training,
    ):
        if isinstance(training, Result):
            return training
        training.on_evaluation = on_evaluation
        return training.finish()


@contextmanager
def _open_training(
    run: Run,
    stop: StopRequest,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
    compact: bool = False,
) -> Iterator[TrainingLoop | Result]:
    """Yield a run that is ready to take its steps, or its result if it is finished."""
    validate(run)
    run, folder = with_data_root(run), resolve_run_dir(run)
    with ExitStack() as stack:
        stack.enter_context(translate_disk_full(folder))
        group = stack.enter_context(init_distributed(run.device))
        stack.enter_context(use_threads(run.threads))
        _check_settings_agree(run, group)
        result = _read_finished_result(run, folder, group, splits)
        if result is not None:
            yield result
            return
        trainer = Trainer(run, splits=splits, model=model)  # finds wrong input before any writing
        stack.enter_context(closing(trainer))
        _check_data_agree(trainer)
        if group.is_main:
            stack.enter_context(run_dir.lock_run_dir(folder))
            run_dir.claim_run_dir(folder, run)
        devices = [trainer.device] if trainer.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))
        torch.manual_seed(run.seed)
        loop = TrainingLoop(trainer, folder, stop, quiet=quiet, label=label or "", compact=compact)
        yield stack.enter_context(closing(loop))


def _read_finished_result(
    run: Run, folder: Path, group: ProcessGroup, splits: Splits | None
) -> Result | None:
    """Return the result of a finished run, which the main process reads for all."""
    payload = b""
    if group.is_main:
        run_dir.check_available(folder, run)
        result = read_result(folder)
        payload = b"" if result is None else json.dumps(asdict(result)).encode()
        if result is not None:
            _check_finished_data(run, folder, splits)
    payload = group.broadcast_bytes(payload)
    return parse_result(payload) if payload else None


def _check_finished_data(run: Run, folder: Path, splits: Splits | None) -> None:
    """Check that a finished run was trained on the given splits, or on another data folder's."""
    custom_splits = splits is not None
    if splits is None:
        if run_dir.read_run(folder).data.root == run.data.root:
            return
        if not list_checkpoints(folder / "checkpoints"):
            problem = (
                f"{folder} has no checkpoints left to tell whether {run.data.root} is its data"
            )
            raise InputError(f"{problem}; use the --data.root that it was trained with")
        splits = load_splits(run)
    meta = load_latest_checkpoint(folder / "checkpoints")[1]
    converted = splits.to(torch.device("cpu"), get_param_dtype(run))  # as in a trainer
    run_dir.check_fingerprint(folder, meta, converted.fingerprint(), custom_splits=custom_splits)


def _check_settings_agree(run: Run, group: ProcessGroup) -> None:
    """Check that all processes, which have their own command lines, were given the same run."""
    main_run = from_json(json.loads(group.broadcast_bytes(json.dumps(to_json(run)).encode())))
    mismatches = run_dir.find_differences(to_json(main_run), to_json(run))
    if mismatches:
        listed = "; ".join(mismatches[:4])
        problem = f"process {group.rank} has different settings from process 0 ({listed})"
        raise InputError(f"{problem}; start all processes with the same command")


def _check_data_agree(trainer: Trainer) -> None:
    """Check that all processes, which read their own machine's files, have the same samples."""
    if trainer.group.size == 1:
        return
    own = {k: v for k, v in trainer.splits.fingerprint().items() if not k.endswith(".times")}
    changes = describe_changes(
        json.loads(trainer.group.broadcast_bytes(json.dumps(own).encode())), own
    )
    if changes is not None:
        problem = f"process {trainer.group.rank} has different data from process 0 ({changes})"
        raise InputError(f"{problem}; use the same files in --data.root on all machines")


def train_many(runs: Sequence[Run], *, concurrent_runs: int = 0) -> Iterator[Result]:
    """Yield the results of runs in order, training several at once if that is faster.

    A run shares only the device with the others, so its result is the one it has alone. Networks
    with dropout, which draw from one generator, are trained one after the other.
    """
    count = concurrent_runs
    if not count:
        is_faster = all(benefits_from_parallel(run) for run in runs)
        count = min(len(runs), MAX_CONCURRENT_RUNS if is_faster else 1)
    count = 1 if any(_uses_dropout(run) for run in runs) else count
    for first in range(0, len(runs), count):
        group = runs[first : first + count]
        is_alone = len(group) == 1
        yield from [train(group[0], compact=True)] if is_alone else _train_in_parallel(group)


def benefits_from_parallel(run: Run) -> bool:
    """Return whether a run is faster beside others: as a graph on a GPU, unlike on a busy CPU."""
    is_eager = run.engine == "eager" or run.data.name in STREAMED_DATASETS or _uses_dropout(run)
    return not is_eager and pick_device(run.device).type == "cuda"


def _uses_dropout(run: Run) -> bool:
    """Return whether the network has dropout; a pretrained encoder does by default."""
    encoder_dropout = run.model.encoder_dropout if run.model.name == "encoder" else 0.0
    return bool(run.model.dropout) or encoder_dropout != 0


def _train_in_parallel(runs: Sequence[Run]) -> list[Result]:
    """Train runs in parallel; the first unfinished one shows its progress."""
    label = f"{runs[0].name} seeds {', '.join(str(run.seed) for run in runs)}"
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        visible_run = next((run for run in runs if read_result(resolve_run_dir(run)) is None), None)
        open_run = partial(_open_training, stop=stop, label=label, compact=True)
        opened = [stack.enter_context(open_run(run, quiet=run is not visible_run)) for run in runs]
        trainings = [training for training in opened if isinstance(training, TrainingLoop)]
        results = _step_round_robin(trainings)
        return [results[entry] if isinstance(entry, TrainingLoop) else entry for entry in opened]


def _step_round_robin(trainings: list[TrainingLoop]) -> dict[TrainingLoop, Result]:
    """Take a step of each run in turn; raise the first error once all the others are done."""
    results: dict[TrainingLoop, Result] = {}
    failures: list[Exception] = []
    active = {training: (training.steps(), _make_stream(training)) for training in trainings}
    for training in trainings:
        training.concurrent_runs = len(trainings)
    while active:
        for training, (steps, stream) in list(active.items()):
            try:
                with stream:
                    next(steps)
                continue
            except StopIteration:
                results[training] = training.write_result()
            except Exception as error:
                failures.append(error)
            del active[training]
    if failures:
        raise next((error for error in failures if isinstance(error, Stopped)), failures[0])
    return results


def _make_stream(training: TrainingLoop) -> AbstractContextManager[object]:
    """Return a context in which a run has its own CUDA stream."""
    device = training.trainer.device
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device, priority=-1)  # another pool: libraries cache per stream
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
