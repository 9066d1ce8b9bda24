"""Where a point of one crop lies in another, for landmarks (appendix, Experiment 1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AffineMap(NamedTuple):
    """One affine map per sample, p -> scale * p + offset, on points (x, y) in pixels."""

    scale: Tensor  # [B, 2]
    offset: Tensor  # [B, 2]

    @staticmethod
    def from_offset(offset: Tensor) -> AffineMap:
        return AffineMap(torch.ones_like(offset), offset)

    @staticmethod
    def from_flip(flipped: Tensor, x: Tensor) -> AffineMap:
        """Mirror the images of `x` that are flipped left to right."""
        scale, offset = x.new_ones(len(x), 2), x.new_zeros(len(x), 2)
        scale[:, 0] -= 2 * flipped.to(x.dtype)
        offset[:, 0] += (x.shape[3] - 1) * flipped.to(x.dtype)
        return AffineMap(scale, offset)

    def apply(self, points: Tensor) -> Tensor:
        """Map labels [B, 2L], laid out as x, y, x, y and so on."""
        pairs = points.reshape(len(points), -1, 2)  # [B, L, 2]
        return (self.scale.unsqueeze(1) * pairs + self.offset.unsqueeze(1)).flatten(1)

    def inverse(self) -> AffineMap:
        return AffineMap(1 / self.scale, -self.offset / self.scale)

    def then(self, other: AffineMap) -> AffineMap:
        """Compose: apply this map, then `other`."""
        return AffineMap(other.scale * self.scale, other.scale * self.offset + other.offset)
