"""The time of a step, the host's part in it, and the memory it takes; the cases of a group take turns.

MERGED:
What checkpoints cost: the same steps with one being written beside them and with none, in turn.
"""

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
from l2i.experiments.benchmark.cases import Case
from l2i.training.checkpoint import AsyncCheckpointer, list_checkpoints
from l2i.training.trainer import Trainer

WARMUP_STEPS = {"cuda": 12, "cpu": 2}  # steps; on a GPU the first few are taken one by one, then recorded
NUM_BURSTS, STEPS_PER_BURST = 9, 2  # so short that the device's queue does not fill up, which would make the host wait
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Memory:
    """MiB by which the memory held grew at its peak, while a case was built and warmed up; None where not known."""

    reserved: float | None = None
    """On a GPU, held by torch's allocator, a recorded graph's share included."""
    allocated: float | None = None
    """On a GPU, in use by tensors."""
    resident: float | None = None
    """On a CPU, of the process."""

    @property
    def peak(self) -> float | None:
        return self.resident if self.reserved is None else self.reserved


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """What was measured of a case."""

    blocks: tuple[float, ...]
    """ms per step, a block a round."""
    host_us: float | None
    """µs that the host takes to issue a step; None on a CPU, which does the step's work itself."""
    memory: Memory

    @property
    def ms(self) -> float:
        return median(self.blocks)

    def compute_ratio(self, base: StepTimes) -> float:
        """To the base step, a round at a time: what slows the machine down for a while slows both."""
        return median(own_ms / base_ms for own_ms, base_ms in zip(self.blocks, base.blocks, strict=True))


def get_outer_period(run: Run) -> int:
    """Steps from one outer step to the next; 1 where there are none."""
    return 1 if run.l2i.update == "off" else run.l2i.every


class BenchTrainer:
    """A case's trainer, and the step it is at."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.t = trainer, 0

    @classmethod
    def build_warm(cls, run: Run, splits: Splits) -> Self:
        bench_trainer = cls(Trainer(run, splits=splits))
        bench_trainer.run_steps(WARMUP_STEPS[bench_trainer.trainer.device.type] * get_outer_period(run))
        return bench_trainer

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            self.trainer.step(self.t)
            self.t += 1

    def close(self) -> None:
        self.trainer.close()


def time_runs(runs: list[Run], splits: Splits, device: torch.device, *, blocks: int, steps: int) -> list[StepTimes]:
    """Build the runs one after another, then time blocks of steps of each in turn."""
    with ExitStack() as stack:
        memory: list[Memory] = []
        bench_trainers: list[BenchTrainer] = []
        for run in runs:
            bench_trainer, growth = measure_build_memory(partial(BenchTrainer.build_warm, run, splits), device)
            bench_trainers.append(stack.enter_context(closing(bench_trainer)))
            memory.append(growth)
        rounds = [[measure_ms(partial(s.run_steps, steps), device) / steps for s in bench_trainers] for _ in range(blocks)]
        host_times = [measure_host_us(bench_trainer, device) for bench_trainer in bench_trainers]
    measurements = zip(zip(*rounds, strict=True), host_times, memory, strict=True)
    return [StepTimes(blocks=tuple(ms), host_us=host, memory=growth) for ms, host, growth in measurements]


def measure_ms(function: Callable[[], object], device: torch.device) -> float:
    """Milliseconds from an idle device until the work is done."""
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


def measure_host_us(bench_trainer: BenchTrainer, device: torch.device) -> float | None:
    """Microseconds until a step is issued, when nothing waits for the device."""
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


def measure_build_memory(build: Callable[[], BenchTrainer], device: torch.device) -> tuple[BenchTrainer, Memory]:
    """What `build` makes, and by how much the memory held grew at its peak."""
    gc.collect()
    if device.type != "cuda":
        return measure_resident_build(build)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    built = build()
    torch.cuda.synchronize(device)
    reserved = torch.cuda.max_memory_reserved(device) - reserved
    allocated = torch.cuda.max_memory_allocated(device) - allocated
    return built, Memory(reserved=reserved / MIB, allocated=allocated / MIB)


def measure_resident_build(build: Callable[[], BenchTrainer]) -> tuple[BenchTrainer, Memory]:
    """The same for the memory of the process, where the system tells it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else the case would fill what an earlier one has left, and not grow
    try:
        before = read_process_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return build(), Memory()
    built = build()
    return built, Memory(resident=max(0.0, read_process_mib("VmHWM") - before))


def read_process_mib(field: str) -> float:
    """A figure of the process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


SAVE_EVERY = {"cuda": 500, "cpu": 100}  # steps; the first is what a run does by itself, recipes mostly save more seldom
NUM_PAIRS = 7


@dataclass(frozen=True, kw_only=True)
class CheckpointOverhead:
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


def measure_checkpointing(case: Case, splits: Splits, device: torch.device, *, blocks: int, steps: int) -> CheckpointOverhead:
    """Time the case's steps with and without checkpoints; the folder is a temporary one."""
    with TemporaryDirectory() as temp_dir, closing(BenchTrainer.build_warm(case.run, splits)) as bench_trainer:
        folder = Path(temp_dir)
        with closing(AsyncCheckpointer()) as saver:
            run_with_checkpoint(
                bench_trainer, saver, folder, steps
            )  # memory that copies are pinned in, and the like, is there from now on
            rounds = [
                (
                    measure_ms(partial(run_with_checkpoint, bench_trainer, saver, folder, steps), device),
                    measure_ms(partial(bench_trainer.run_steps, steps), device),
                )
                for _ in range(blocks)
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
        cost=1 - median(plain / slowed for slowed, plain in rounds),
    )


def run_with_checkpoint(bench_trainer: BenchTrainer, saver: AsyncCheckpointer, folder: Path, steps: int) -> None:
    """Begin to write a checkpoint, take the steps, and see that it is on disk."""
    saver.save(folder, bench_trainer.t, bench_trainer.trainer.state_dict(), {"step": bench_trainer.t})
    bench_trainer.run_steps(steps)
    saver.wait()
