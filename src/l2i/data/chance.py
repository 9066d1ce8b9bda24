"""Random numbers for a batch. Where processes share one, each draws for the whole batch and keeps its own samples'."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from l2i.ranks import here

Shape = tuple[int, ...]


def whole(shape: Shape, dim: int) -> Shape:
    """The shape for the whole batch, of one for the samples here, which are counted in `dim`."""
    return (*shape[:dim], shape[dim] * here().size, *shape[dim + 1 :])


def uniform(shape: Shape, generator: Generator, *, dim: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    """In [0, 1)."""
    drawn = torch.rand(whole(shape, dim), generator=generator, device=generator.device, dtype=dtype)
    return here().share(drawn, dim)


def below(end: int, shape: Shape, generator: Generator, *, dim: int = 0) -> Tensor:
    """Whole numbers from 0."""
    drawn = torch.randint(end, whole(shape, dim), generator=generator, device=generator.device)
    return here().share(drawn, dim)


def normal(shape: Shape, generator: Generator, *, dtype: torch.dtype | None = None) -> Tensor:
    """Of mean 0 and spread 1."""
    drawn = torch.randn(whole(shape, 0), generator=generator, device=generator.device, dtype=dtype)
    return here().share(drawn)
