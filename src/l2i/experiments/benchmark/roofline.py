"""The time floor: a step's operations and fewest bytes, over what the machine was seen to do of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from l2i.config import Run, replace
from l2i.data.batch import collect_tensors
from l2i.data.samples import Splits
from l2i.experiments.benchmark.timing import get_outer_period, measure_ms
from l2i.kernels import disable_fused_kernels
from l2i.training.precision import use_precision
from l2i.training.trainer import Trainer

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32, "float64": torch.float64}
COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}  # bytes, more than any cache holds
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}  # of the matrices
NUM_REPEATS = 8
SDPA_KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
SDPA_FORWARD_OPS = {getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}") for kernel in SDPA_KERNELS}
SDPA_BACKWARD_OPS = {getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_backward") for kernel in SDPA_KERNELS}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The most that the device was seen to do a second, in this very process."""

    bytes_per_second: float
    """Read and written by a large copy within the device's memory."""
    operations_per_second: float
    """Of a large matrix product in the precision of the runs; a multiplication with its addition is two."""

    @classmethod
    def take_maximum(cls, measurements: list[Self]) -> Self:
        """Of each, the most that was seen."""
        return cls(
            bytes_per_second=max(limits.bytes_per_second for limits in measurements),
            operations_per_second=max(limits.operations_per_second for limits in measurements),
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step has to do, however it is done."""

    operations: int
    """Of convolutions and matrix products, those of attention too: forward, backward and tangents."""
    bytes: int
    """Their inputs read once and outputs written once, all else fused away; θ, its moments and the averaged model."""

    def compute_floor_ms(self, limits: Ceilings) -> float:
        """No step is faster."""
        return 1e3 * max(self.operations / limits.operations_per_second, self.bytes / limits.bytes_per_second)


class WorkCounter(TorchDispatchMode):
    """Counts by torch's own formulas (those of FlopCounterMode), and the bytes of the same operations.

    It sees what autograd, forward mode and autocast have come down to, so tangents count and element sizes are real.
    Attention in one kernel is counted here: torch has no formula for a CPU's, and those for a GPU's backward have the
    scores once more, which a kernel may take again or keep. Of its bytes, masks and a kernel's own notes are left out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call_kwargs = kwargs or {}
        out = func(*args, **call_kwargs)
        operation = getattr(func, "_overloadpacket", None)
        if operation in SDPA_FORWARD_OPS:
            self.add_operation(sdpa_flop_count(*(x.shape for x in args[:3])), [*args[:3], out[0]])
        elif operation in SDPA_BACKWARD_OPS:
            self.add_operation(2 * sdpa_flop_count(*(x.shape for x in args[1:4])), [*args[:4], *out[:3]])
        elif operation in flop_registry:
            self.add_operation(flop_registry[operation](*args, **call_kwargs, out_val=out), [*select_read_args(operation, args), out])
        return out

    def add_operation(self, operations: int, operands: list[Any]) -> None:
        self.operations += operations
        self.bytes += sum(map(count_bytes, collect_tensors(operands)))


def select_read_args(operation: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those arguments that an operation has to read."""
    if operation is not torch.ops.aten.convolution_backward:
        return args
    gradient, x, weight, *_, (needs_x_grad, needs_weight_grad, _) = args
    return gradient, x if needs_weight_grad else None, weight if needs_x_grad else None


def count_bytes(tensor: Tensor) -> int:
    """Bytes, those of an expanded tensor once."""
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in dims if stride)


def count_step_work(run: Run, splits: Splits) -> Work:
    """Count a step of a run, operation by operation: the mean of those from one outer step to the next."""
    with closing(Trainer(replace(run, engine="eager"), splits=splits)) as trainer:
        trainer.step(0)  # the moments are made here
        outer_period = get_outer_period(run)
        with disable_fused_kernels(), WorkCounter() as counter:  # the mode sees no kernels of our own
            for t in range(1, 1 + outer_period):
                trainer.step(t)
        update = count_update_bytes(run, trainer.model)
        return Work(operations=counter.operations // outer_period, bytes=counter.bytes // outer_period + update)


def count_update_bytes(run: Run, model: nn.Module) -> int:
    """θ, its moments and the averaged model, where it is another, each read and written, and the gradients, read."""
    num_moments = 2 if run.optim.name == "adam" else int(run.optim.momentum > 0)
    num_gradients = 1 if run.l2i.update == "off" else 2
    num_averages = int(run.optim.ema_decay > 0)
    return (2 * (1 + num_moments + num_averages) + num_gradients) * sum(map(count_bytes, model.parameters()))


def measure_ceilings(device: torch.device, precision: str) -> Ceilings:
    """Measure a copy and a matrix product."""
    num_bytes, side = COPY_BYTES[device.type], MATMUL_SIZE[device.type]
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_ms = measure_best_ms(lambda: target.copy_(source), device)
    a, b = (torch.rand(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
    with use_precision(precision, device):
        matmul_ms = measure_best_ms(lambda: a @ b, device)
    return Ceilings(bytes_per_second=2e3 * num_bytes / copy_ms, operations_per_second=2e3 * side**3 / matmul_ms)


def measure_best_ms(function: Callable[[], object], device: torch.device) -> float:
    """The shortest time of several."""
    function()
    return min(measure_ms(function, device) for _ in range(NUM_REPEATS))
