"""Random numbers for a batch.

Processes that share a batch all draw for the whole of it, and each keeps its samples' numbers.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from l2i.distributed import current_group

Shape = tuple[int, ...]


def sample_uniform(
    shape: Shape, generator: Generator, *, dim: int = 0, dtype: torch.dtype | None = None
) -> Tensor:
    """Sample from [0, 1); the samples of the batch are counted in `dim`."""
    shape = _make_global_shape(shape, dim)
    drawn = torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    return current_group().shard(drawn, dim)


def sample_integers(high: int, shape: Shape, generator: Generator, *, dim: int = 0) -> Tensor:
    """Sample from 0 to `high` - 1; the samples of the batch are counted in `dim`."""
    shape = _make_global_shape(shape, dim)
    drawn = torch.randint(high, shape, generator=generator, device=generator.device)
    return current_group().shard(drawn, dim)


def sample_normal(
    shape: Shape, generator: Generator, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Sample from the standard normal distribution."""
    shape = _make_global_shape(shape, 0)
    drawn = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
    return current_group().shard(drawn)


def _make_global_shape(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], shape[dim] * current_group().size, *shape[dim + 1 :])
