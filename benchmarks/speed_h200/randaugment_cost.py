"""Time RandAugment against forward and backward of WRN-28-2 on the same batch.

    python -m benchmarks.speed_h200.randaugment_cost [BATCH [REPETITIONS]]

RandAugment takes little time and is repeated 4 times as often as the step.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from benchmarks.arguments import make_parser
from torch.nn import functional as F

from l2i.data.transforms.randaugment import apply_randaugment
from l2i.models.base import ModelConfig
from l2i.models.resnet import build_wide_resnet


def milliseconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time over repetitions, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times[1:])


def measure(batch: int, repeats: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    generator = torch.Generator(device).manual_seed(0)
    levels = torch.randint(256, (batch, 3, 32, 32), generator=generator, device=device).float()
    model = build_wide_resnet(
        (3, 32, 32), 10, ModelConfig(name="wide-resnet", depth=28, width=2)
    ).to(device)
    y = torch.arange(batch, device=device) % 10
    augmenting = milliseconds(lambda: apply_randaugment(levels, 2, generator), device, 4 * repeats)
    step = milliseconds(lambda: F.cross_entropy(model(levels / 255), y).backward(), device, repeats)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, 1 thread"
    print(f"batch {batch} on {where}, torch {torch.__version__}, medians:")
    print(
        f"RandAugment {augmenting:.2f} ms ({4 * repeats} times), step {step:.1f} ms ({repeats}), "
        f"share {100 * augmenting / step:.1f} %"
    )


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("speed_h200.randaugment_cost", __doc__)
    parser.add_argument("batch", nargs="?", type=int, default=64, metavar="BATCH")
    parser.add_argument("repetitions", nargs="?", type=int, default=5, metavar="REPETITIONS")
    options = parser.parse_args(arguments)
    measure(options.batch, options.repetitions)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
