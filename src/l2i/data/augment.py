"""The perturbations T_η: batched, on the data's device, every random choice from the generator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.data.chance import below, normal, uniform
from l2i.data.frames import Frame
from l2i.data.randaugment import randaugment
from l2i.data.words import Tokens, Words
from l2i.errors import InputError

Padding = Literal["constant", "reflect"]


class Columns(NamedTuple):
    """How a table's columns became the network's inputs: a category is several inputs that belong together."""

    group: Tensor  # [E], the column that each input is of
    numeric: Tensor  # [E], whether an input is a standardised number
    sources: int  # columns

    def to(self, device: torch.device) -> Columns:
        return Columns(self.group.to(device), self.numeric.to(device), self.sources)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """One view of a batch, its parts in this order; all at their defaults leave it as it is."""

    crop: int = 0
    """Side of a random window of larger images; 0 keeps them whole. Evaluation takes the centre."""
    shift: int = 0
    """Random shift of images, up to this many pixels each way: a random crop of the padded image."""
    padding: Padding = "constant"
    """What comes in at the edges of a shifted image: zeros, or its reflection."""
    flip: bool = False
    """Random horizontal flip; not for labels that tell left from right."""
    randaugment: int = 0
    """How many of FixMatch's RandAugment operations each 8-bit image goes through, each with probability 1/2."""
    corrupt: float = 0.0
    """Share of a table's columns that take the value of another sample of the mini-batch, drawn for each sample."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise, in the data's units: for 8-bit images, grey levels. A table's numbers are
    standardised before, and its categories have none."""
    cutout: int = 0
    """Side of a square that is blotted out at a random place."""
    fill: float = 0.0
    """What is put where nothing is known, by cutout and RandAugment."""
    words: Words = field(default_factory=Words)
    """Of texts."""

    def __call__(
        self,
        x: Tensor,
        generator: Generator,
        *,
        framed: bool = True,
        columns: Columns | None = None,
        tokens: Tokens | None = None,
    ) -> tuple[Tensor, Frame | None]:
        """The view [B, ...] and, for images where that is asked for, where its points went."""
        if tokens is not None:
            return self.words(x, generator, tokens), None
        if x.ndim != 4:
            if self.shift or self.flip or self.cutout or self.crop or self.randaugment:
                raise InputError(
                    "crop, shift, flip, randaugment and cutout are for images [B, C, H, W]; "
                    "leave them out of data.weak and data.strong, and use noise or corrupt"
                )
            x = corrupt(x, self.corrupt, generator, columns) if self.corrupt else x
            return self.perturb(x, generator, columns), None
        if self.corrupt:
            raise InputError("corrupt is for tables; leave it out of data.weak and data.strong, and use cutout")
        x, frame = self.move(x, generator, framed=framed)
        x = randaugment(x, self.randaugment, generator, fill=self.fill) if self.randaugment else x
        x = self.perturb(x, generator)
        return (cutout(x, self.cutout, generator, self.fill) if self.cutout else x), frame

    def move(self, x: Tensor, generator: Generator, *, framed: bool = True) -> tuple[Tensor, Frame | None]:
        """What takes points with it: crop, shift and flip."""
        moves: list[Frame] = []
        if self.crop:
            x, corner = window(x, self.crop, generator)
            moves += [Frame.translation(-corner.to(x.dtype))] * framed
        if self.shift >= min(x.shape[2:]):
            raise InputError(
                f"a shift of {self.shift} pixels moves images of {list(x.shape[2:])} out of sight; use less"
            )
        if self.shift:
            x, corner = shift(x, self.shift, generator, self.padding)
            moves += [Frame.translation((self.shift - corner).to(x.dtype))] * framed
        if self.flip:
            x, turned = flip(x, generator)
            moves += [Frame.mirror(turned, x)] * framed
        none = [Frame.translation(torch.zeros(len(x), 2, device=x.device, dtype=x.dtype))] if framed else []
        return x, reduce(Frame.then, moves or none) if framed else None

    def perturb(self, x: Tensor, generator: Generator, columns: Columns | None = None) -> Tensor:
        if not self.noise:
            return x
        noisy = noise(x, self.noise, generator)
        return noisy if columns is None else torch.where(columns.numeric, noisy, x)

    def check(self, *, texts: bool) -> None:
        """That what is asked for is for texts, or for other samples."""
        if texts and replace(self, words=Words()) != Augment():
            raise InputError("texts are perturbed by data.weak.words and data.strong.words; leave the other fields out")
        if not texts and self.words != Words():
            raise InputError(
                "data.weak.words and data.strong.words are for texts that an encoder reads; leave them out, or give "
                "one ('l2i fit': --encoder)"
            )

    def centre(self, x: Tensor) -> Tensor:
        """The middle of images, as large as a random window of them."""
        if not self.crop:
            return x
        top, left = ((side - self.crop) // 2 for side in x.shape[2:])
        return x[:, :, top : top + self.crop, left : left + self.crop]


def crop(x: Tensor, corner: Tensor, size: tuple[int, int]) -> Tensor:
    """A window of each image; `corner` [B, 2] holds its left and top."""
    batch, channels, _, width = x.shape
    first = corner[:, :1] + width * corner[:, 1:]  # [B, 1], in the flattened image
    index = (first + _within(size, width, x.device)).unsqueeze(1)  # [B, 1, h w]
    return x.flatten(2).gather(2, index.expand(-1, channels, -1)).view(batch, channels, *size)


@cache  # without bound: a recorded step reads them
def _within(size: tuple[int, int], width: int, device: torch.device) -> Tensor:
    """Where the pixels of a window lie, seen from its corner, in a flattened image."""
    rows, columns = (torch.arange(n, device=device) for n in size)
    return (rows.unsqueeze(1) * width + columns).flatten()


def window(x: Tensor, side: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A square window at a random place of each image, and its corner."""
    if side > min(x.shape[2:]):
        raise InputError(f"a crop of {side} pixels is larger than the images of {list(x.shape[2:])}; use less")
    spare = [size - side + 1 for size in (x.shape[3], x.shape[2])]
    corner = torch.stack([below(n, (len(x),), generator) for n in spare], dim=1)
    return crop(x, corner, (side, side)), corner


def shift(x: Tensor, pixels: int, generator: Generator, padding: Padding) -> tuple[Tensor, Tensor]:
    """Each image moved by its own whole number of pixels, and its corner in the padded image."""
    corner = below(2 * pixels + 1, (len(x), 2), generator)
    return crop(F.pad(x, (pixels,) * 4, mode=padding), corner, (x.shape[2], x.shape[3])), corner


def flip(x: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Every other image, on average, mirrored left to right, and which."""
    turned = uniform((len(x),), generator) < 0.5
    return torch.where(turned.view(-1, 1, 1, 1), x.flip(3), x), turned


def corrupt(x: Tensor, share: float, generator: Generator, columns: Columns | None = None) -> Tensor:
    """Each sample with a share of its columns from others, drawn apart: its marginals stay, what goes together not."""
    group = torch.arange(x[0].numel(), device=x.device) if columns is None else columns.group  # [E]
    size = (len(x), int(x[0].numel()) if columns is None else columns.sources)
    taken = uniform(size, generator) < share  # [B, F]
    whose = below(len(x), size, generator)  # where processes share a batch, one of those here
    flat = x.flatten(1)
    return torch.where(taken[:, group], flat.gather(0, whose[:, group]), flat).view_as(x)


def noise(x: Tensor, std: float, generator: Generator) -> Tensor:
    """Gaussian noise."""
    return x + std * normal(x.shape, generator, dtype=x.dtype)


def cutout(x: Tensor, side: int, generator: Generator, fill: float = 0.0) -> Tensor:
    """A square of each image set to `fill`; its centre lies anywhere, so it may be cut by the edge."""
    height, width = x.shape[2:]
    y = below(height, (len(x), 1), generator)
    left = below(width, (len(x), 1), generator)
    rows = _covered(y, side, height)
    columns = _covered(left, side, width)
    return x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), fill)


def _covered(centre: Tensor, side: int, length: int) -> Tensor:
    """Which of `length` positions lie within the square, [B, length]."""
    first = centre - side // 2
    position = torch.arange(length, device=centre.device)
    return (position >= first) & (position < first + side)
