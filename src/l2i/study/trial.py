"""One run of the study, without a folder: its figure, as `l2i train` would print it, and what happened on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from l2i.config import Run
from l2i.errors import NonFiniteCost
from l2i.training.evaluate import Curve, final_figure, is_evaluated
from l2i.training.state import cpu_threads
from l2i.training.trainer import Trainer

MEASURED = ("c_t", "c_h", "gradient", "outer_ratio", "outer_ratio_raw")
Line = dict[str, Any]
Watch = Callable[[Trainer, int, dict[str, float]], None]


def tried(run: Run, watch: Watch | None = None) -> Line:
    """What a run comes to; a figure of None where it has come to nothing: its costs stopped being numbers."""
    with cpu_threads(run.threads):
        try:
            return finished(run, watch)
        except NonFiniteCost:
            return {"steps": run.steps, "figure": None, "validation": None, "seconds": None}


def finished(run: Run, watch: Watch | None) -> Line:
    """A run to its last step; the time of evaluations counts, that of `watch` does not."""
    trainer, curves, means = Trainer(run), {"validation": Curve(), "test": Curve()}, dict[str, float]()
    begun, left_out = time.perf_counter(), 0.0
    try:
        for step in range(1, run.steps + 1):
            trainer.step(step - 1)
            if is_evaluated(step, run.steps, run.eval_every):
                means = trainer.meter.read()
                for part, figures in trainer.figures().items():
                    curves[part][step] = next(iter(figures.values()))
                paused = time.perf_counter()
                if watch is not None:
                    watch(trainer, step, means)
                left_out += time.perf_counter() - paused
    finally:
        trainer.close()
    final = partial(final_figure, validation=curves["validation"], steps=run.steps, final=run.final)
    return {
        "steps": run.steps,
        "figure": final(curves["test"]),
        "validation": final(curves["validation"]),
        "seconds": round(time.perf_counter() - begun - left_out, 3),
        **{name: means[name] for name in MEASURED if name in means},
    }


def paced(base: Run, imputing: Run, *, blocks: int = 7, steps: int = 40) -> float:
    """How much longer a step takes with L2I than without: the median over blocks that take turns."""
    trainers = [Trainer(base), Trainer(imputing)]
    ratios = []
    with cpu_threads(base.threads):
        for block in range(blocks + 1):
            spent = []
            for trainer in trainers:
                begun = time.perf_counter()
                for t in range(block * steps, (block + 1) * steps):
                    trainer.step(t % trainer.run.steps)
                spent.append(time.perf_counter() - begun)
            ratios.append(spent[1] / spent[0])
    for trainer in trainers:
        trainer.close()
    return sorted(ratios[1:])[blocks // 2]  # the first block warms up
