"""Random numbers for a batch. Where processes share one, each draws for the whole batch and keeps its own samples'."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from l2i.distributed import current_group

Shape = tuple[int, ...]


def make_global_shape(shape: Shape, dim: int) -> Shape:
    """The shape for the whole batch, of one for the samples here, which are counted in `dim`."""
    return (*shape[:dim], shape[dim] * current_group().size, *shape[dim + 1 :])


def sample_uniform(shape: Shape, generator: Generator, *, dim: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """In [0, 1)."""
    drawn = torch.rand(make_global_shape(shape, dim), generator=generator, device=generator.device, dtype=dtype)
    return current_group().shard(drawn, dim)


def sample_integers(high: int, shape: Shape, generator: Generator, *, dim: int = 0) -> Tensor:
    """Whole numbers from 0."""
    drawn = torch.randint(high, make_global_shape(shape, dim), generator=generator, device=generator.device)
    return current_group().shard(drawn, dim)


def sample_normal(shape: Shape, generator: Generator, *, dtype: torch.dtype | None = None) -> Tensor:
    """Of mean 0 and spread 1."""
    drawn = torch.randn(make_global_shape(shape, 0), generator=generator, device=generator.device, dtype=dtype)
    return current_group().shard(drawn)
