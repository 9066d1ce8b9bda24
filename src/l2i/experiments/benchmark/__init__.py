"""Step times, memory and the time floor of this machine: `l2i bench`."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch

from l2i.experiments.benchmark import timing
from l2i.experiments.benchmark.cases import Case, make_splits, select_cases
from l2i.experiments.benchmark.report import BenchmarkReport, CaseResult, make_notes
from l2i.experiments.benchmark.roofline import Ceilings, Work, count_step_work, measure_ceilings
from l2i.experiments.options import BenchOptions
from l2i.files.output import ProgressCallback, ignore_progress
from l2i.training.precision import resolve_precision
from l2i.training.run_dir import collect_versions, describe_hardware
from l2i.training.setup import pick_device, use_threads

NUM_BLOCKS = {"cuda": 10, "cpu": 9}
STEPS_PER_BLOCK = {"cuda": 20, "cpu": 3}

__all__ = ["BenchmarkReport", "CaseResult", "Ceilings", "Work", "run_benchmark"]


def run_benchmark(
    options: BenchOptions, on_progress: ProgressCallback = ignore_progress
) -> BenchmarkReport:
    """Measure the cases that the options name, one group after another."""
    device = pick_device(options.device)
    groups = select_cases(options, device)
    first_case = next(iter(groups.values()))[0]
    precision = resolve_precision(first_case.run, device)  # the same in all cases
    device_context = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with use_threads(options.threads), device_context:
        ceilings, rows = [measure_ceilings(device, precision)], []
        for cases in groups.values():
            rows += _measure_group(cases, options, device, on_progress)
            ceilings.append(measure_ceilings(device, precision))  # the machine may be busy at times
        on_progress(f"{first_case.group}: timing {first_case.variant} with and without checkpoints")
        overhead = timing.measure_saving(first_case, device, options)
        peak_ceilings = Ceilings.take_maximum(ceilings)
        results = [CaseResult.from_measurements(*row, peak_ceilings) for row in rows]
        return BenchmarkReport(
            hardware=describe_hardware(device),
            versions=collect_versions(),
            device=str(device),
            precision=precision,
            engine="graph" if device.type == "cuda" and options.engine != "eager" else "eager",
            threads=torch.get_num_threads(),
            ceilings=peak_ceilings,
            saving=overhead,
            notes=make_notes(results),
            cases=results,
        )


def _measure_group(
    cases: list[Case], options: BenchOptions, device: torch.device, on_progress: ProgressCallback
) -> list[tuple[Case, timing.StepTimes, Work, timing.StepTimes | None]]:
    """Return each case of a group with its times, its work, and the times of the base step."""
    group = cases[0].group
    splits = make_splits(group, device, cases[0].run)  # shared, so they are in no case's memory
    on_progress(f"{group}: counting operations and bytes")
    # first: libraries then allocate what they keep, which belongs to the memory of no case
    work = [count_step_work(case.run, splits) for case in cases]
    on_progress(f"{group}: timing {', '.join(case.variant for case in cases)}")
    blocks = options.blocks or NUM_BLOCKS[device.type]
    steps = options.steps or STEPS_PER_BLOCK[device.type]
    outer_period = max(timing.get_outer_period(case.run) for case in cases)
    steps = outer_period * math.ceil(steps / outer_period)  # all blocks have as many outer steps
    times = timing.time_runs(
        [case.run for case in cases], splits, device, blocks=blocks, steps=steps
    )
    base = dict(zip((case.variant for case in cases), times, strict=True)).get("base")
    return [(*measured, base) for measured in zip(cases, times, work, strict=True)]
