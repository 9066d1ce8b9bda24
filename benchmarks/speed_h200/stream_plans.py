"""Measure the time and memory of a step on a GPU, by which of its parts share a stream.

    python -m benchmarks.speed_h200.stream_plans [GROUP [VARIANT]]

Groups and variants are those of `l2i bench`.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Sequence

import torch

from l2i import Run, Splits, Trainer
from l2i.errors import InputError
from l2i.experiments.benchmark.cases import make_splits, select_cases
from l2i.experiments.benchmark.timing import MIB, BenchTrainer, get_outer_period, measure_ms
from l2i.experiments.options import BenchOptions
from l2i.training.cuda_graph import (
    FULL_NETWORK_STREAMS,
    LAST_LAYER_STREAMS,
    SEPARATE_STREAMS,
    StepGraph,
    StreamPlan,
)

PLANS: dict[str, StreamPlan | None] = {
    "sequential": None,
    "separate": SEPARATE_STREAMS,
    "hold-out with imputing": {**SEPARATE_STREAMS, "holdout": 0},
    "last layer": LAST_LAYER_STREAMS,
    "outer with labelled": {**LAST_LAYER_STREAMS, "outer": 1},
    "full network": FULL_NETWORK_STREAMS,
}
BLOCKS, STEPS, WARM_UP = 4, 60, 12


def measured(run: Run, splits: Splits, plan: StreamPlan | None) -> tuple[float, float]:
    """Return the milliseconds per step and the MiB reserved."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    stepping = BenchTrainer(Trainer(run, splits=splits))
    trainer = stepping.trainer
    trainer.step_graph = StepGraph(trainer.train_step, trainer.loader, plan, required=True)
    stepping.run_steps(WARM_UP * get_outer_period(run))
    held = (torch.cuda.max_memory_reserved() - before) / MIB
    blocks = [
        measure_ms(lambda: stepping.run_steps(STEPS), trainer.device) / STEPS for _ in range(BLOCKS)
    ]
    return statistics.median(blocks), held


def measure_plans(group: str, variant: str) -> None:
    device = torch.device("cuda")
    try:
        case = select_cases(BenchOptions(groups=(group,), variants=(variant,)), device)[group][0]
    except InputError as error:
        sys.exit(str(error))
    if not torch.cuda.is_available():
        print("CUDA streams need a GPU, and none was found")
        return
    run, splits = case.run, make_splits(group, device, case.run)
    measured(run, splits, None)  # lets cuDNN choose its algorithms
    for name, plan in PLANS.items():
        ms, held = measured(run, splits, plan)
        print(f"{group} {variant}, {name}: {ms:.2f} ms, {held:.0f} MiB", flush=True)


def run_command(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed_h200.stream_plans",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("group", nargs="?", default="mean-teacher", metavar="GROUP")
    parser.add_argument("variant", nargs="?", default="last-layer", metavar="VARIANT")
    options = parser.parse_args(arguments)
    measure_plans(options.group, options.variant)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
