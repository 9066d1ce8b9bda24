"""A step's time and memory on a GPU, by which of its lanes share a stream: `python lane_plans.py GROUP VARIANT`."""

import gc
import statistics
import sys

import torch

from l2i import Run, Splits, Trainer
from l2i.bench.cases import chosen, splits_of
from l2i.bench.timing import MIB, Stepping, ms_of, period
from l2i.errors import InputError
from l2i.lanes import APART, LAST_LAYER, THROUGH_ALL, Plan
from l2i.options import BenchOptions
from l2i.training.record import Recorder

PLANS: dict[str, Plan | None] = {
    "in turn": None,
    "APART": APART,
    "hold-out with imputing": {**APART, "holdout": 0},
    "LAST_LAYER": LAST_LAYER,
    "outer with labelled": {**LAST_LAYER, "outer": 1},
    "THROUGH_ALL": THROUGH_ALL,
}
BLOCKS, STEPS, WARM_UP = 4, 60, 12


def measured(run: Run, splits: Splits, plan: Plan | None) -> tuple[float, float]:
    """Milliseconds a step, and MiB reserved."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    stepping = Stepping(Trainer(run, splits=splits))
    trainer = stepping.trainer
    trainer.recorder = Recorder(trainer.take, trainer.loader, plan, must=True)
    stepping.take(WARM_UP * period(run))
    held = (torch.cuda.max_memory_reserved() - before) / MIB
    blocks = [ms_of(lambda: stepping.take(STEPS), trainer.device) / STEPS for _ in range(BLOCKS)]
    return statistics.median(blocks), held


def main(group: str = "mean-teacher", variant: str = "last-layer") -> None:
    device = torch.device("cuda")
    try:
        case = chosen(BenchOptions(groups=(group,), variants=(variant,)), device)[group][0]
    except InputError as error:
        sys.exit(str(error))
    if not torch.cuda.is_available():
        print("lanes are streams of a GPU, and there is none")
        return
    run, splits = case.run, splits_of(group, device, case.run)
    measured(run, splits, None)  # so that cuDNN has chosen its algorithms
    for name, plan in PLANS.items():
        ms, held = measured(run, splits, plan)
        print(f"{group} {variant}, {name}: {ms:.2f} ms, {held:.0f} MiB", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
