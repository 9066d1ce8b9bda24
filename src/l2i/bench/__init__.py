"""Step times, memory and the time floor of this machine: `l2i bench`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch

from l2i.bench.cases import Case, chosen, splits_of
from l2i.bench.floor import Ceilings, Work, ceilings, work_of
from l2i.bench.report import Figures, Report, report
from l2i.bench.saving import EVERY, PAIRS, saving
from l2i.bench.timing import Times, period, timed
from l2i.options import BenchOptions
from l2i.training.build import pick_device
from l2i.training.precision import precision_of
from l2i.training.state import cpu_threads

BLOCKS = {"cuda": 10, "cpu": 9}
STEPS = {"cuda": 20, "cpu": 3}

__all__ = ["Ceilings", "Figures", "Report", "Work", "bench"]


def bench(options: BenchOptions, told: Callable[[str], object] = lambda line: None) -> Report:
    """Measure what the options name, a group of cases after another; `told` hears how it goes."""
    device = pick_device(options.device)
    groups = chosen(options, device)
    precision = precision_of(next(iter(groups.values()))[0].run, device)  # the same in all
    current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with cpu_threads(options.threads), current:
        seen, rows = [ceilings(device, precision)], []
        for cases in groups.values():
            rows += measured(cases, options, device, told)
            seen.append(ceilings(device, precision))  # again and again: the machine may be busy at times
        first = next(iter(groups.values()))[0]
        told(f"{first.group}: timing {first.variant} with checkpoints and without")
        kept = saving(
            first,
            splits_of(first.group, device, first.run),
            device,
            blocks=options.blocks or PAIRS,
            steps=options.steps or EVERY[device.type],
        )
        best = Ceilings.highest(seen)
        found = [Figures.of(*row, best) for row in rows]
        return report(
            found,
            best,
            kept,
            device=device,
            precision=precision,
            engine="graph" if device.type == "cuda" and options.engine != "eager" else "eager",
        )


def measured(
    cases: list[Case], options: BenchOptions, device: torch.device, told: Callable[[str], object]
) -> list[tuple[Case, Times, Work, Times | None]]:
    """Each case of a group with its times, its work, and the times of the base step."""
    group = cases[0].group
    splits = splits_of(group, device, cases[0].run)
    told(f"{group}: counting operations and bytes")
    # first, for it also lets the libraries set up what they keep, which is no case's memory
    work = [work_of(case.run, splits) for case in cases]
    told(f"{group}: timing {', '.join(case.variant for case in cases)}")
    blocks, steps = options.blocks or BLOCKS[device.type], options.steps or STEPS[device.type]
    every = max(period(case.run) for case in cases)
    steps = every * math.ceil(steps / every)  # so that each block has its share of outer steps
    times = timed([case.run for case in cases], splits, device, blocks=blocks, steps=steps)
    base = next((time for case, time in zip(cases, times, strict=True) if case.variant == "base"), None)
    return [(case, time, done, base) for case, time, done in zip(cases, times, work, strict=True)]
