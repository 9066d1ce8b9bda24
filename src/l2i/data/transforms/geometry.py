"""The geometry of landmark labels: where a point of one crop lies in another (appendix, Experiment 1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AffineMap(NamedTuple):
    """An affine map a sample, p -> scale * p + offset, on points (x, y) in pixels."""

    scale: Tensor  # [B, 2]
    offset: Tensor  # [B, 2]

    @staticmethod
    def from_offset(offset: Tensor) -> AffineMap:
        return AffineMap(torch.ones_like(offset), offset)

    @staticmethod
    def from_flip(flipped: Tensor, x: Tensor) -> AffineMap:
        """Left to right, for the images of `x` that are turned."""
        scale = torch.ones(len(x), 2, device=x.device, dtype=x.dtype)
        offset = torch.zeros(len(x), 2, device=x.device, dtype=x.dtype)
        scale[:, 0] -= 2 * flipped.to(x.dtype)
        offset[:, 0] += (x.shape[3] - 1) * flipped.to(x.dtype)
        return AffineMap(scale, offset)

    def apply(self, points: Tensor) -> Tensor:
        """Map labels [B, 2L], laid out as x, y, x, y, …"""
        pairs = points.reshape(len(points), -1, 2)  # [B, L, 2]
        return (self.scale.unsqueeze(1) * pairs + self.offset.unsqueeze(1)).flatten(1)

    def inverse(self) -> AffineMap:
        return AffineMap(1 / self.scale, -self.offset / self.scale)

    def then(self, other: AffineMap) -> AffineMap:
        """First this map, then `other`."""
        return AffineMap(other.scale * self.scale, other.scale * self.offset + other.offset)
