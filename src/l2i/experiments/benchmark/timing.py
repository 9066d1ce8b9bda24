"""Time and memory of a step, its host time, and the cost of checkpoints; cases take turns."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Self

import torch

from l2i.config import Run
from l2i.data.samples import Splits
from l2i.experiments.benchmark.cases import Case, make_splits
from l2i.experiments.options import BenchOptions
from l2i.training.checkpoint import AsyncCheckpointer, list_checkpoints
from l2i.training.trainer import Trainer

WARMUP_STEPS = {"cuda": 12, "cpu": 2}  # on a GPU some run eagerly before a graph is captured
# bursts so short that the device's queue does not fill up, which would make the host wait
NUM_BURSTS, STEPS_PER_BURST = 9, 2
SAVE_EVERY = {"cuda": 500, "cpu": 100}  # the first is a run's default; most recipes save less often
NUM_PAIRS = 7
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak growth in MiB while a case was built and warmed up; None if unknown."""

    reserved: float | None = None
    """On a GPU, held by torch's allocator, a captured graph's pool included."""
    allocated: float | None = None
    """On a GPU, in use by tensors."""
    resident: float | None = None
    """On a CPU, of the process."""

    @property
    def peak(self) -> float | None:
        return self.resident if self.reserved is None else self.reserved


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The measurements of a case."""

    blocks: tuple[float, ...]
    """ms per step, one block per round."""
    host_us: float | None
    """µs that the host takes to issue a step; None on a CPU, which does the work itself."""
    memory: Memory

    @property
    def ms(self) -> float:
        return median(self.blocks)

    def compute_ratio(self, base: StepTimes) -> float:
        """Return the ratio to the base step, by rounds: a busy machine slows down both."""
        return median(ms / base_ms for ms, base_ms in zip(self.blocks, base.blocks, strict=True))


def get_outer_period(run: Run) -> int:
    """Return the number of steps from one outer step to the next; 1 if there are none."""
    return 1 if run.l2i.update == "off" else run.l2i.every


class BenchTrainer:
    """A case's trainer and its current step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.t = trainer, 0

    @classmethod
    def build_warm(cls, run: Run, splits: Splits) -> Self:
        built = cls(Trainer(run, splits=splits))
        built.run_steps(WARMUP_STEPS[built.trainer.device.type] * get_outer_period(run))
        return built

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            self.trainer.step(self.t)
            self.t += 1

    def close(self) -> None:
        self.trainer.close()


def time_runs(
    runs: list[Run], splits: Splits, device: torch.device, *, blocks: int, steps: int
) -> list[StepTimes]:
    """Build the runs one after another, then time blocks of steps of each in turn."""
    with ExitStack() as stack:
        memory: list[Memory] = []
        trainers: list[BenchTrainer] = []
        for run in runs:
            trainer, growth = _build_measured(run, splits, device)
            trainers.append(stack.enter_context(closing(trainer)))
            memory.append(growth)
        calls = [partial(trainer.run_steps, steps) for trainer in trainers]
        rounds = [[measure_ms(call, device) / steps for call in calls] for _ in range(blocks)]
        host_times = [_measure_host_us(trainer, device) for trainer in trainers]
    return [
        StepTimes(blocks=tuple(ms), host_us=host_us, memory=growth)
        for *ms, host_us, growth in zip(*rounds, host_times, memory, strict=True)
    ]


def measure_ms(function: Callable[[], object], device: torch.device) -> float:
    """Measure the time from an idle device until the work is done."""
    if device.type != "cuda":
        start_time = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start_time)
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start_event.record()
    function()
    end_event.record()
    torch.cuda.synchronize(device)
    return float(start_event.elapsed_time(end_event))


def _measure_host_us(bench_trainer: BenchTrainer, device: torch.device) -> float | None:
    """Measure the time to issue a step when nothing waits for the device."""
    if device.type != "cuda":
        return None
    times_us, count = [], max(STEPS_PER_BURST, get_outer_period(bench_trainer.trainer.run))
    for _ in range(NUM_BURSTS):
        torch.cuda.synchronize(device)
        start_time = time.perf_counter()
        bench_trainer.run_steps(count)
        times_us.append(1e6 * (time.perf_counter() - start_time) / count)
    torch.cuda.synchronize(device)
    return median(times_us)


def _build_measured(run: Run, splits: Splits, device: torch.device) -> tuple[BenchTrainer, Memory]:
    """Build a warm trainer, and measure the peak growth of memory."""
    gc.collect()
    if device.type != "cuda":
        before = _reset_resident_peak()
        built = BenchTrainer.build_warm(run, splits)
        growth = None if before is None else max(0.0, _read_process_mib("VmHWM") - before)
        return built, Memory(resident=growth)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    built = BenchTrainer.build_warm(run, splits)
    torch.cuda.synchronize(device)
    reserved = torch.cuda.max_memory_reserved(device) - reserved
    allocated = torch.cuda.max_memory_allocated(device) - allocated
    return built, Memory(reserved=reserved / MIB, allocated=allocated / MIB)


def _reset_resident_peak() -> float | None:
    """Return the process's memory in MiB, and start its peak anew; None if the system cannot."""
    with suppress(OSError, AttributeError):
        # otherwise the case would reuse memory that an earlier one has freed, and not grow
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        before = _read_process_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        return before
    return None


def _read_process_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


@dataclass(frozen=True, kw_only=True)
class CheckpointOverhead:
    """Blocks of `every` steps, with and without a checkpoint written in the background."""

    group: str
    variant: str
    every: int
    mib: float
    """Size of a checkpoint."""
    ms_with: tuple[float, ...]
    ms_without: tuple[float, ...]
    cost: float
    """The fraction of steps per second that is lost: the median over rounds."""

    def __str__(self) -> str:
        return (
            f"Checkpoints: one every {self.every} steps leaves "
            f"{100 - 100 * self.cost:.1f} % of the throughput "
            f"({self.group} {self.variant}, {self.mib:.1f} MiB each, written in the background; "
            f"{len(self.ms_with)} alternating blocks with and without)."
        )


def measure_saving(case: Case, device: torch.device, options: BenchOptions) -> CheckpointOverhead:
    """Time the case's steps with and without checkpoints, written to a temporary folder."""
    splits = make_splits(case.group, device, case.run)
    blocks, steps = options.blocks or NUM_PAIRS, options.steps or SAVE_EVERY[device.type]
    with (
        TemporaryDirectory() as temp_dir,
        closing(BenchTrainer.build_warm(case.run, splits)) as bench_trainer,
        closing(AsyncCheckpointer()) as saver,
    ):
        folder, run_plain = Path(temp_dir), partial(bench_trainer.run_steps, steps)

        def run_saving() -> None:
            t = bench_trainer.t
            saver.save(folder, t, bench_trainer.trainer.state_dict(), {"step": t})
            run_plain()
            saver.wait()

        run_saving()  # allocates pinned buffers, among others
        rounds = [
            (measure_ms(run_saving, device), measure_ms(run_plain, device)) for _ in range(blocks)
        ]
        checkpoint_mib = list_checkpoints(folder)[-1].stat().st_size / MIB
    ms_saving, ms_plain = zip(*rounds, strict=True)
    return CheckpointOverhead(
        group=case.group,
        variant=case.variant,
        every=steps,
        mib=checkpoint_mib,
        ms_with=ms_saving,
        ms_without=ms_plain,
        cost=1 - median(plain / saving for saving, plain in rounds),
    )
