"""The batch of labelled (T), unlabelled (U) and hold-out (H) samples of one step (section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """Configure the sizes of the three mini-batches of a step."""

    labeled: int = 64
    """Labelled samples per step (B^T), drawn with replacement if there are fewer."""
    unlabeled: int = 64
    """Unlabelled samples per step (B^U)."""
    holdout: int = 64
    """Hold-out samples per step (B^H), drawn only if there is an outer step."""


class Labeled(NamedTuple):
    """A mini-batch with labels, as the task encodes them."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B] classes or [B, D] standardised targets


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


class Unlabeled(NamedTuple):
    """The views of an unlabelled mini-batch; only those that the method needs are drawn."""

    views: Mapping[str, Tensor]  # name -> [B, ...]
    affine_map: AffineMap | None = None  # images: takes a label on `weak` to the student's view
    noise: Tensor | None = None  # [B, ...], a random direction for methods that search their inputs

    @property
    def weak(self) -> Tensor:
        return self.views["weak"]

    @property
    def weak2(self) -> Tensor:
        return self.views["weak2"]

    @property
    def strong(self) -> Tensor:
        return self.views["strong"]

    def take_first(self, count: int) -> Unlabeled:
        views = {name: view[:count] for name, view in self.views.items()}
        affine_map = self.affine_map and AffineMap(*(part[:count] for part in self.affine_map))
        return Unlabeled(views, affine_map, None if self.noise is None else self.noise[:count])


class MixupDraws(NamedTuple):
    """MixUp's draws for the labelled and unlabelled rows together."""

    permutation: Tensor  # [N]
    ratio: Tensor  # [N], Beta(alpha, alpha)


class Batch(NamedTuple):
    """Everything random that a step needs, drawn before it."""

    labeled: Labeled
    unlabeled: Unlabeled
    mix: MixupDraws | None = None
    holdout: Labeled | None = None  # drawn only if there is an outer step
    progress: Tensor | None = None  # [], the fraction of the run that is over


def collect_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a nested structure, such as a batch."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
