"""The time floor: a step's operations and fewest bytes, over the machine's measured ceilings."""

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

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}  # more than any cache holds
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
NUM_REPEATS = 8
SDPA_OPS = [f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn")]
SDPA_OPS.append("_scaled_dot_product_flash_attention_for_cpu")
SDPA_FORWARD_OPS = {getattr(torch.ops.aten, name) for name in SDPA_OPS}
SDPA_BACKWARD_OPS = {getattr(torch.ops.aten, f"{name}_backward") for name in SDPA_OPS}


@dataclass(frozen=True)
class Ceilings:
    """The highest rates that the device reached in this process."""

    bytes_per_second: float
    """Read and written by a large copy within the device's memory."""
    operations_per_second: float
    """Of a large matrix product in the precision of the runs; a multiply-add counts as two."""

    @classmethod
    def take_maximum(cls, measurements: list[Self]) -> Self:
        """Return the maximum of each rate."""
        return cls(
            bytes_per_second=max(m.bytes_per_second for m in measurements),
            operations_per_second=max(m.operations_per_second for m in measurements),
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step has to do, whatever the implementation."""

    operations: int
    """Of convolutions, matrix products and attention: forward, backward and tangents."""
    bytes: int
    """Their inputs read once and outputs written once, all else fused; θ, its moments, the EMA."""

    def compute_floor_ms(self, ceilings: Ceilings) -> float:
        """Return the time that no step can beat."""
        return 1e3 * max(
            self.operations / ceilings.operations_per_second, self.bytes / ceilings.bytes_per_second
        )


class WorkCounter(TorchDispatchMode):
    """Count operations by torch's own formulas (those of FlopCounterMode), and their bytes.

    It sees the operations that autograd, forward mode and autocast dispatch, so tangents count and
    element sizes are real. Fused attention is counted here: torch has no formula for a CPU's, and
    those for a GPU's backward count the scores again, which a kernel may recompute or keep. Its
    bytes exclude masks and what a kernel saves for its backward.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call_kwargs = kwargs or {}
        out = func(*args, **call_kwargs)
        operation = getattr(func, "_overloadpacket", None)
        if operation in SDPA_FORWARD_OPS:
            self._add(sdpa_flop_count(*(x.shape for x in args[:3])), *args[:3], out[0])
        elif operation in SDPA_BACKWARD_OPS:
            self._add(2 * sdpa_flop_count(*(x.shape for x in args[1:4])), *args[:4], *out[:3])
        elif operation in flop_registry:
            operations = flop_registry[operation](*args, **call_kwargs, out_val=out)
            self._add(operations, *_select_read_args(operation, args), out)
        return out

    def _add(self, operations: int, *operands: Any) -> None:
        self.operations += operations
        self.bytes += sum(map(_count_bytes, collect_tensors(operands)))


def _select_read_args(operation: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that an operation has to read."""
    if operation is not torch.ops.aten.convolution_backward:
        return args
    gradient, x, weight, *_, (needs_x_grad, needs_weight_grad, _) = args
    return gradient, x if needs_weight_grad else None, weight if needs_x_grad else None


def _count_bytes(tensor: Tensor) -> int:
    """Count bytes, those of an expanded tensor once."""
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in dims if stride)


def count_step_work(run: Run, splits: Splits) -> Work:
    """Count the work of a run's step, the mean over the period of outer steps."""
    with closing(Trainer(replace(run, engine="eager"), splits=splits)) as trainer:
        trainer.step(0)  # creates the optimizer's moments
        outer_period = get_outer_period(run)
        with disable_fused_kernels(), WorkCounter() as counter:  # the mode cannot see our kernels
            for t in range(1, 1 + outer_period):
                trainer.step(t)
        return Work(
            operations=counter.operations // outer_period,
            bytes=counter.bytes // outer_period + _count_update_bytes(run, trainer.model),
        )


def _count_update_bytes(run: Run, model: nn.Module) -> int:
    """Count θ, its moments and its average, each read and written, and the gradients, read."""
    num_moments = 2 if run.optim.name == "adam" else 1
    num_gradients = 1 if run.l2i.update == "off" else 2
    num_averages = int(run.optim.ema_decay > 0)
    num_passes = 2 * (1 + num_moments + num_averages) + num_gradients
    return num_passes * sum(map(_count_bytes, model.parameters()))


def measure_ceilings(device: torch.device, precision: str) -> Ceilings:
    """Measure a large copy and a large matrix product."""
    num_bytes, side = COPY_BYTES[device.type], MATMUL_SIZE[device.type]
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_ms = _measure_best_ms(lambda: target.copy_(source), device)
    a, b = (torch.rand(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
    with use_precision(device):
        matmul_ms = _measure_best_ms(lambda: a @ b, device)
    return Ceilings(
        bytes_per_second=2e3 * num_bytes / copy_ms, operations_per_second=2e3 * side**3 / matmul_ms
    )


def _measure_best_ms(function: Callable[[], object], device: torch.device) -> float:
    function()
    return min(measure_ms(function, device) for _ in range(NUM_REPEATS))
