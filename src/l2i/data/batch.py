"""What flows through a step: the batch of T, U and H, the imputed labels Z, and their student (section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves

from l2i.data.transforms.geometry import AffineMap


class Labeled(NamedTuple):
    """A mini-batch with labels, as the task encodes them."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B] classes or [B, D] standardised targets


class Unlabeled(NamedTuple):
    """The views of an unlabelled mini-batch; only those that the method asks for are drawn."""

    views: Mapping[str, Tensor]  # name -> [B, ...]
    affine_map: AffineMap | None = None  # takes a label on `weak` to the student's view; None for samples that are no images
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
        """The first samples."""
        affine_map = None if self.affine_map is None else AffineMap(*(component[:count] for component in self.affine_map))
        noise = None if self.noise is None else self.noise[:count]
        return Unlabeled({name: view[:count] for name, view in self.views.items()}, affine_map, noise)


class MixupDraws(NamedTuple):
    """MixUp's draws for the labelled and unlabelled rows together."""

    permutation: Tensor  # [N], a permutation
    ratio: Tensor  # [N], Beta(alpha, alpha)


class Batch(NamedTuple):
    """Everything random that a step needs, drawn before it."""

    labeled: Labeled
    unlabeled: Unlabeled
    mix: MixupDraws | None = None
    holdout: Labeled | None = None  # drawn only where there is an outer step
    progress: Tensor | None = None  # [], the share of the run that is over


def collect_tensors(tree: Any) -> list[Tensor]:
    """The tensors within, as those of a batch."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
