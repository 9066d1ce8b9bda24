"""Step times, memory and the time floor of this machine: `l2i bench`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch

from l2i.experiments.benchmark.cases import Case, make_splits, select_cases
from l2i.experiments.benchmark.report import BenchmarkReport, CaseResult, build_report
from l2i.experiments.benchmark.roofline import Ceilings, Work, count_step_work, measure_ceilings
from l2i.experiments.benchmark.timing import (
    NUM_PAIRS,
    SAVE_EVERY,
    StepTimes,
    get_outer_period,
    measure_checkpointing,
    time_runs,
)
from l2i.experiments.options import BenchOptions
from l2i.training.precision import resolve_precision
from l2i.training.setup import pick_device, use_threads

NUM_BLOCKS = {"cuda": 10, "cpu": 9}
STEPS_PER_BLOCK = {"cuda": 20, "cpu": 3}

__all__ = ["BenchmarkReport", "CaseResult", "Ceilings", "Work", "run_benchmark"]


def run_benchmark(options: BenchOptions, on_progress: Callable[[str], object] = lambda line: None) -> BenchmarkReport:
    """Measure what the options name, a group of cases after another; `told` hears how it goes."""
    device = pick_device(options.device)
    groups = select_cases(options, device)
    precision = resolve_precision(next(iter(groups.values()))[0].run, device)  # the same in all
    device_context = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with use_threads(options.threads), device_context:
        measurements, rows = [measure_ceilings(device, precision)], []
        for cases in groups.values():
            rows += measure_group(cases, options, device, on_progress)
            measurements.append(measure_ceilings(device, precision))  # again and again: the machine may be busy at times
        first_case = next(iter(groups.values()))[0]
        on_progress(f"{first_case.group}: timing {first_case.variant} with checkpoints and without")
        overhead = measure_checkpointing(
            first_case,
            make_splits(first_case.group, device, first_case.run),
            device,
            blocks=options.blocks or NUM_PAIRS,
            steps=options.steps or SAVE_EVERY[device.type],
        )
        peak_ceilings = Ceilings.take_maximum(measurements)
        results = [CaseResult.from_measurements(*row, peak_ceilings) for row in rows]
        return build_report(
            results,
            peak_ceilings,
            overhead,
            device=device,
            precision=precision,
            engine="graph" if device.type == "cuda" and options.engine != "eager" else "eager",
        )


def measure_group(
    cases: list[Case], options: BenchOptions, device: torch.device, on_progress: Callable[[str], object]
) -> list[tuple[Case, StepTimes, Work, StepTimes | None]]:
    """Each case of a group with its times, its work, and the times of the base step."""
    group = cases[0].group
    splits = make_splits(group, device, cases[0].run)
    on_progress(f"{group}: counting operations and bytes")
    # first, for it also lets the libraries set up what they keep, which is no case's memory
    work = [count_step_work(case.run, splits) for case in cases]
    on_progress(f"{group}: timing {', '.join(case.variant for case in cases)}")
    blocks, steps = options.blocks or NUM_BLOCKS[device.type], options.steps or STEPS_PER_BLOCK[device.type]
    outer_period = max(get_outer_period(case.run) for case in cases)
    steps = outer_period * math.ceil(steps / outer_period)  # so that each block has its share of outer steps
    times = time_runs([case.run for case in cases], splits, device, blocks=blocks, steps=steps)
    base = next((time for case, time in zip(cases, times, strict=True) if case.variant == "base"), None)
    return [(case, time, case_work, base) for case, time, case_work in zip(cases, times, work, strict=True)]
