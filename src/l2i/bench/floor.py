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

from l2i.batch import tensors
from l2i.bench.timing import ms_of, period
from l2i.config import Run, replace
from l2i.data.split import Splits
from l2i.models.fused import plain
from l2i.training.precision import numerics
from l2i.training.trainer import Trainer

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32, "float64": torch.float64}
COPIED = {"cuda": 2**30, "cpu": 2**28}  # bytes, more than any cache holds
SIDE = {"cuda": 8192, "cpu": 1024}  # of the matrices
REPEATS = 8
KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
FUSED = {getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}") for kernel in KERNELS}
FUSED_BACKWARD = {getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_backward") for kernel in KERNELS}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The most that the device was seen to do a second, in this very process."""

    bytes_per_second: float
    """Read and written by a large copy within the device's memory."""
    operations_per_second: float
    """Of a large matrix product in the precision of the runs; a multiplication with its addition is two."""

    @classmethod
    def highest(cls, seen: list[Self]) -> Self:
        """Of each, the most that was seen."""
        return cls(
            bytes_per_second=max(limits.bytes_per_second for limits in seen),
            operations_per_second=max(limits.operations_per_second for limits in seen),
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step has to do, however it is done."""

    operations: int
    """Of convolutions and matrix products, those of attention too: forward, backward and tangents."""
    bytes: int
    """Their inputs read once and outputs written once, all else fused away; θ, its moments and the averaged model."""

    def floor_ms(self, limits: Ceilings) -> float:
        """No step is faster."""
        return 1e3 * max(self.operations / limits.operations_per_second, self.bytes / limits.bytes_per_second)


class Counter(TorchDispatchMode):
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
        named = kwargs or {}
        out = func(*args, **named)
        operation = getattr(func, "_overloadpacket", None)
        if operation in FUSED:
            self.add(sdpa_flop_count(*(x.shape for x in args[:3])), [*args[:3], out[0]])
        elif operation in FUSED_BACKWARD:
            self.add(2 * sdpa_flop_count(*(x.shape for x in args[1:4])), [*args[:4], *out[:3]])
        elif operation in flop_registry:
            self.add(flop_registry[operation](*args, **named, out_val=out), [*read(operation, args), out])
        return out

    def add(self, operations: int, moved: list[Any]) -> None:
        self.operations += operations
        self.bytes += sum(map(size_of, tensors(moved)))


def read(operation: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those arguments that an operation has to read."""
    if operation is not torch.ops.aten.convolution_backward:
        return args
    gradient, x, weight, *_, (to_x, to_weight, _) = args
    return gradient, x if to_weight else None, weight if to_x else None


def size_of(tensor: Tensor) -> int:
    """Bytes, those of an expanded tensor once."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(side for side, stride in sides if stride)


def work_of(run: Run, splits: Splits) -> Work:
    """Count a step of a run, operation by operation: the mean of those from one outer step to the next."""
    with closing(Trainer(replace(run, engine="eager"), splits=splits)) as trainer:
        trainer.step(0)  # the moments are made here
        every = period(run)
        with plain(), Counter() as counter:  # the mode sees no kernels of our own
            for t in range(1, 1 + every):
                trainer.step(t)
        update = update_bytes(run, trainer.model)
        return Work(operations=counter.operations // every, bytes=counter.bytes // every + update)


def update_bytes(run: Run, model: nn.Module) -> int:
    """θ, its moments and the averaged model, where it is another, each read and written, and the gradients, read."""
    moments = 2 if run.optim.name == "adam" else int(run.optim.momentum > 0)
    gradients = 1 if run.l2i.outer_update == "off" else 2
    averaged = int(run.optim.ema_decay > 0)
    return (2 * (1 + moments + averaged) + gradients) * sum(map(size_of, model.parameters()))


def ceilings(device: torch.device, precision: str) -> Ceilings:
    """Measure a copy and a matrix product."""
    count, side = COPIED[device.type], SIDE[device.type]
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = best_ms(lambda: target.copy_(source), device)
    a, b = (torch.rand(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
    with numerics(precision, device):
        multiplied = best_ms(lambda: a @ b, device)
    return Ceilings(bytes_per_second=2e3 * count / copied, operations_per_second=2e3 * side**3 / multiplied)


def best_ms(work: Callable[[], object], device: torch.device) -> float:
    """The shortest time of several."""
    work()
    return min(ms_of(work, device) for _ in range(REPEATS))
