"""The time of a step, the host's part in it, and the memory it takes; the cases of a group take turns."""

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
from typing import Self

import torch

from l2i.config import Run
from l2i.data.split import Splits
from l2i.training.trainer import Trainer

WARM_UP = {"cuda": 12, "cpu": 2}  # steps; on a GPU the first few are taken one by one, then recorded
BURSTS, BURST = 9, 2  # so short that the device's queue does not fill up, which would make the host wait
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
class Times:
    """What was measured of a case."""

    blocks: tuple[float, ...]
    """ms per step, a block a round."""
    host_us: float | None
    """µs that the host takes to issue a step; None on a CPU, which does the step's work itself."""
    memory: Memory

    @property
    def ms(self) -> float:
        return median(self.blocks)

    def ratio(self, base: Times) -> float:
        """To the base step, a round at a time: what slows the machine down for a while slows both."""
        return median(mine / theirs for mine, theirs in zip(self.blocks, base.blocks, strict=True))


def period(run: Run) -> int:
    """Steps from one outer step to the next; 1 where there are none."""
    return 1 if run.l2i.outer_update == "off" else run.l2i.outer_every


class Stepping:
    """A case's trainer, and the step it is at."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.t = trainer, 0

    @classmethod
    def warm(cls, run: Run, splits: Splits) -> Self:
        found = cls(Trainer(run, splits=splits))
        found.take(WARM_UP[found.trainer.device.type] * period(run))
        return found

    def take(self, count: int) -> None:
        for _ in range(count):
            self.trainer.step(self.t)
            self.t += 1

    def close(self) -> None:
        self.trainer.close()


def timed(runs: list[Run], splits: Splits, device: torch.device, *, blocks: int, steps: int) -> list[Times]:
    """Build the runs one after another, then time blocks of steps of each in turn."""
    with ExitStack() as stack:
        memory: list[Memory] = []
        steppings: list[Stepping] = []
        for run in runs:
            stepping, grown = watched(partial(Stepping.warm, run, splits), device)
            steppings.append(stack.enter_context(closing(stepping)))
            memory.append(grown)
        rounds = [[ms_of(partial(s.take, steps), device) / steps for s in steppings] for _ in range(blocks)]
        hosts = [host_us(stepping, device) for stepping in steppings]
    each = zip(zip(*rounds, strict=True), hosts, memory, strict=True)
    return [Times(blocks=tuple(ms), host_us=host, memory=grown) for ms, host, grown in each]


def ms_of(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds from an idle device until the work is done."""
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begun)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    work()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last))


def host_us(stepping: Stepping, device: torch.device) -> float | None:
    """Microseconds until a step is issued, when nothing waits for the device."""
    if device.type != "cuda":
        return None
    found, count = [], max(BURST, period(stepping.trainer.run))
    for _ in range(BURSTS):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        stepping.take(count)
        found.append(1e6 * (time.perf_counter() - begun) / count)
    torch.cuda.synchronize(device)
    return median(found)


def watched(build: Callable[[], Stepping], device: torch.device) -> tuple[Stepping, Memory]:
    """What `build` makes, and by how much the memory held grew at its peak."""
    gc.collect()
    if device.type != "cuda":
        return watched_resident(build)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    made = build()
    torch.cuda.synchronize(device)
    reserved = torch.cuda.max_memory_reserved(device) - reserved
    allocated = torch.cuda.max_memory_allocated(device) - allocated
    return made, Memory(reserved=reserved / MIB, allocated=allocated / MIB)


def watched_resident(build: Callable[[], Stepping]) -> tuple[Stepping, Memory]:
    """The same for the memory of the process, where the system tells it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else the case would fill what an earlier one has left, and not grow
    try:
        before = process_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return build(), Memory()
    made = build()
    return made, Memory(resident=max(0.0, process_mib("VmHWM") - before))


def process_mib(field: str) -> float:
    """A figure of the process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
