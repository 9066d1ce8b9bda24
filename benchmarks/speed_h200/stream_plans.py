"""Measure the time and memory of a step on a GPU, by which of its parts share a stream.

    python -m benchmarks.speed_h200.stream_plans [GROUP [VARIANT]]

Groups and variants are those of `l2i bench`.
"""

import gc
import statistics
import sys

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


def main(group: str = "mean-teacher", variant: str = "last-layer") -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
