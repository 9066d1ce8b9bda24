"""Profile a training step on a GPU: the time of its kernels by kind.

    python -m benchmarks.speed_h200.step_profile [GROUP [VARIANT]]

Groups and variants are those of `l2i bench`.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

import torch
from benchmarks.arguments import make_parser
from benchmarks.speed_h200.cases import select_gpu_run
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from l2i import replace
from l2i.experiments.benchmark.cases import make_splits
from l2i.experiments.benchmark.timing import BenchTrainer, measure_ms

# kind of work -> parts of its kernels' names; the first match counts
KINDS = {
    "BatchNorm and activation, forward": ("normalise_kernel", "statistics_kernel"),
    "BatchNorm and activation, backward": ("project_kernel", "products_kernel"),
    "convolutions, backward to weights": ("wgrad", "init_device_workspace"),
    "convolutions, backward to inputs": ("dgrad",),
    "convolutions, forward": ("fprop", "convolve"),
    "residual sums": ("CUDAFunctor_add<c10::BFloat16>",),
}
REST = "everything else: sampling, augmentation, head, costs, optimizer, EMA"
STEPS = 24  # a multiple of every recipe's period of outer steps

Kernel = tuple[str, float, float]  # name, start and end in µs


def kernels_of(stepping: BenchTrainer) -> list[Kernel]:
    """Return the kernels of some steps in order."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as actual:
        stepping.run_steps(STEPS)
        torch.cuda.synchronize()
    events = [event for event in actual.events() or () if event.device_type == DeviceType.CUDA]
    return sorted(
        ((e.name, e.time_range.start, e.time_range.end) for e in events),
        key=lambda kernel: kernel[1],
    )


def kind_of(name: str) -> str:
    return next(
        (kind for kind, words in KINDS.items() if any(word in name for word in words)), REST
    )


def busy(kernels: list[Kernel]) -> float:
    """Return the µs in which at least one kernel runs."""
    total, until = 0.0, 0.0
    for _, first, last in kernels:
        total += max(0.0, last - max(first, until))
        until = max(until, last)
    return total


def one_at_a_time(stepping: BenchTrainer) -> None:
    """Print the time of each kind of work when kernels run one at a time."""
    spent: dict[str, list[float]] = defaultdict(list)
    for name, first, last in kernels_of(stepping):
        spent[kind_of(name)].append(last - first)
    whole = sum(map(sum, spent.values()))
    for kind, times in sorted(spent.items(), key=lambda pair: -sum(pair[1])):
        share = f"{sum(times) / STEPS:7.0f} µs {100 * sum(times) / whole:4.0f} %"
        print(f"{share} {len(times) / STEPS:6.0f} kernels  {kind}")
    print(f"{whole / STEPS:7.0f} µs of kernels per step, one at a time")


def in_streams(stepping: BenchTrainer) -> None:
    """Print how busy the captured step keeps the device."""
    ms = measure_ms(lambda: stepping.run_steps(STEPS), stepping.trainer.device) / STEPS
    kernels = kernels_of(stepping)
    span = max(last for *_, last in kernels) - kernels[0][1]
    at_once = sum(last - first for _, first, last in kernels) / span
    print(f"{1e3 * ms:7.0f} µs per captured step, with concurrent streams and a prefetched batch")
    print(
        f"        a kernel runs {100 * busy(kernels) / span:.0f} % of the time, "
        f"{at_once:.1f} at once on average"
    )


def profile_step(group: str, variant: str) -> None:
    run = select_gpu_run(group, variant)
    if run is None:
        return
    splits = make_splits(group, torch.device("cuda"), run)
    print(f"{group} {variant}")
    for engine, printed in (("eager", one_at_a_time), ("graph", in_streams)):
        with closing(BenchTrainer.build_warm(replace(run, engine=engine), splits)) as stepping:
            printed(stepping)


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("speed_h200.step_profile", __doc__)
    parser.add_argument("group", nargs="?", default="fixmatch-fast", metavar="GROUP")
    parser.add_argument("variant", nargs="?", default="base", metavar="VARIANT")
    options = parser.parse_args(arguments)
    profile_step(options.group, options.variant)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
