"""Time one step of several runs with different seeds, each on its own CUDA stream.

    python -m benchmarks.speed_h200.seeds_at_once [GROUP [SEEDS [REPETITIONS]]]

The groups are those of `l2i bench`.
"""

import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count

import torch
from benchmarks.arguments import make_parser

from l2i import Trainer, replace
from l2i.experiments.benchmark.cases import make_case_run, make_splits
from l2i.experiments.benchmark.timing import WARMUP_STEPS, measure_ms
from l2i.experiments.options import BenchOptions

ROUNDS = {"cuda": 200, "cpu": 2}


def stream(device: torch.device) -> AbstractContextManager[object]:
    return (
        torch.cuda.stream(torch.cuda.Stream(device, priority=-1))
        if device.type == "cuda"
        else nullcontext()
    )


def measure(group: str, most: int, repeats: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = make_case_run(group, "base", BenchOptions(), device)
    splits = make_splits(group, device, run)
    trainers = [
        (Trainer(replace(run, seed=seed), splits=splits), stream(device), count())
        for seed in range(most)
    ]

    def rounds(number: int, seeds: int) -> None:
        for _ in range(number):
            for trainer, own, steps in trainers[:seeds]:
                with own:
                    trainer.step(next(steps))
        for _, own, _ in trainers[:seeds]:
            if device.type == "cuda":
                torch.cuda.current_stream(device).wait_stream(own.stream)  # wait for all

    rounds(WARMUP_STEPS[device.type], most)
    times: dict[int, list[float]] = {seeds: [] for seeds in range(1, most + 1)}
    for _ in range(repeats):
        for seeds, actual in times.items():
            number = ROUNDS[device.type]
            actual.append(
                measure_ms(lambda number=number, seeds=seeds: rounds(number, seeds), device)
                / number
            )
    one = statistics.median(times[1])
    for seeds, actual in times.items():
        ms = statistics.median(actual)
        print(
            f"{group}, {seeds} at once: {ms:.2f} ms per round, {ms / seeds:.2f} ms per seed, "
            f"{ms / one:.2f} × one run"
        )


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("speed_h200.seeds_at_once", __doc__)
    parser.add_argument("group", nargs="?", default="mean-teacher", metavar="GROUP")
    parser.add_argument("seeds", nargs="?", type=int, default=5, metavar="SEEDS")
    parser.add_argument("repetitions", nargs="?", type=int, default=3, metavar="REPETITIONS")
    options = parser.parse_args(arguments)
    measure(options.group, options.seeds, options.repetitions)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
