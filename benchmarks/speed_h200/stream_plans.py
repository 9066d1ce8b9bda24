"""Measure the time and memory of a step on a GPU, by which of its parts share a stream.

    python -m benchmarks.speed_h200.stream_plans [GROUP [VARIANT]]

Groups and variants are those of `l2i bench`.
"""

import gc
import statistics
import sys
from collections.abc import Sequence

import torch
from benchmarks.arguments import make_parser
from benchmarks.speed_h200.cases import select_gpu_run

from l2i import Run, Splits, Trainer
from l2i.experiments.benchmark.cases import make_splits
from l2i.experiments.benchmark.timing import MIB, BenchTrainer, get_outer_period, measure_ms
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
    run = select_gpu_run(group, variant)
    if run is None:
        return
    splits = make_splits(group, torch.device("cuda"), run)
    measured(run, splits, None)  # lets cuDNN choose its algorithms
    for name, plan in PLANS.items():
        ms, held = measured(run, splits, plan)
        print(f"{group} {variant}, {name}: {ms:.2f} ms, {held:.0f} MiB", flush=True)


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("speed_h200.stream_plans", __doc__)
    parser.add_argument("group", nargs="?", default="mean-teacher", metavar="GROUP")
    parser.add_argument("variant", nargs="?", default="last-layer", metavar="VARIANT")
    options = parser.parse_args(arguments)
    measure_plans(options.group, options.variant)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
