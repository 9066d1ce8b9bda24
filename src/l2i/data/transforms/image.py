"""Grey levels of 8 bits as a network's inputs: standardised by channel («standard normalization», appendix).

MERGED:
The perturbations T_η: batched, on the data's device, every random choice from the generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.data.sampling import sample_integers, sample_normal, sample_uniform
from l2i.data.transforms.geometry import AffineMap
from l2i.data.transforms.randaugment import apply_randaugment
from l2i.data.transforms.text import TokenAugment, Vocabulary
from l2i.errors import InputError


class Normalize(NamedTuple):
    """The mean and spread of each channel, in grey levels 0 to 255."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    @staticmethod
    def from_images(x: Tensor) -> Normalize:
        """Those of the images `x`, uint8 [N, C, H, W]: by their histogram, so that nothing large is made of them."""
        counts = [torch.bincount(channel.reshape(-1), minlength=256).double() for channel in x.unbind(1)]
        histogram = torch.stack(counts) / (x.numel() / x.shape[1])  # [C, 256]
        level = torch.arange(256, dtype=torch.float64)
        mean = (histogram * level).sum(1)
        std = ((histogram * level.square()).sum(1) - mean.square()).clamp_min(1).sqrt()
        return Normalize(mean.view(-1, 1, 1), std.view(-1, 1, 1))

    @staticmethod
    def from_unit_range(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalize:
        """Those known beforehand, as shares of 255."""
        return Normalize(*(255 * torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std)))

    def to(self, device: torch.device, dtype: torch.dtype) -> Normalize:
        return Normalize(self.mean.to(device, dtype), self.std.to(device, dtype))

    def apply(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std


Padding = Literal["constant", "reflect"]


class ColumnLayout(NamedTuple):
    """How a table's columns became the network's inputs: a category is several inputs that belong together."""

    column_index: Tensor  # [E], the column that each input is of
    is_numeric: Tensor  # [E], whether an input is a standardised number
    num_columns: int  # columns

    def to(self, device: torch.device) -> ColumnLayout:
        return ColumnLayout(self.column_index.to(device), self.is_numeric.to(device), self.num_columns)


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
    words: TokenAugment = field(default_factory=TokenAugment)
    """Of texts."""

    def __call__(
        self,
        x: Tensor,
        generator: Generator,
        *,
        with_map: bool = True,
        columns: ColumnLayout | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> tuple[Tensor, AffineMap | None]:
        """The view [B, ...] and, for images where that is asked for, where its points went."""
        if vocabulary is not None:
            return self.words(x, generator, vocabulary), None
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
        x, affine_map = self.apply_geometry(x, generator, with_map=with_map)
        x = apply_randaugment(x, self.randaugment, generator, fill=self.fill) if self.randaugment else x
        x = self.perturb(x, generator)
        return (apply_cutout(x, self.cutout, generator, self.fill) if self.cutout else x), affine_map

    def apply_geometry(self, x: Tensor, generator: Generator, *, with_map: bool = True) -> tuple[Tensor, AffineMap | None]:
        """What takes points with it: crop, shift and flip."""
        maps: list[AffineMap] = []
        if self.crop:
            x, corner = crop_randomly(x, self.crop, generator)
            maps += [AffineMap.from_offset(-corner.to(x.dtype))] * with_map
        if self.shift >= min(x.shape[2:]):
            raise InputError(
                f"a shift of {self.shift} pixels moves images of {list(x.shape[2:])} out of sight; use less"
            )
        if self.shift:
            x, corner = shift(x, self.shift, generator, self.padding)
            maps += [AffineMap.from_offset((self.shift - corner).to(x.dtype))] * with_map
        if self.flip:
            x, flipped = flip(x, generator)
            maps += [AffineMap.from_flip(flipped, x)] * with_map
        identity = [AffineMap.from_offset(torch.zeros(len(x), 2, device=x.device, dtype=x.dtype))] if with_map else []
        return x, reduce(AffineMap.then, maps or identity) if with_map else None

    def perturb(self, x: Tensor, generator: Generator, columns: ColumnLayout | None = None) -> Tensor:
        if not self.noise:
            return x
        noisy = add_noise(x, self.noise, generator)
        return noisy if columns is None else torch.where(columns.is_numeric, noisy, x)

    def check_modality(self, *, is_text: bool) -> None:
        """That what is asked for is for texts, or for other samples."""
        if is_text and replace(self, words=TokenAugment()) != Augment():
            raise InputError("texts are perturbed by data.weak.words and data.strong.words; leave the other fields out")
        if not is_text and self.words != TokenAugment():
            raise InputError(
                "data.weak.words and data.strong.words are for texts that an encoder reads; leave them out, or give "
                "one ('l2i fit': --encoder)"
            )

    def center_crop(self, x: Tensor) -> Tensor:
        """The middle of images, as large as a random window of them."""
        if not self.crop:
            return x
        top, left = ((side - self.crop) // 2 for side in x.shape[2:])
        return x[:, :, top : top + self.crop, left : left + self.crop]


def crop(x: Tensor, corner: Tensor, size: tuple[int, int]) -> Tensor:
    """A window of each image; `corner` [B, 2] holds its left and top."""
    batch, channels, _, width = x.shape
    first_pixel = corner[:, :1] + width * corner[:, 1:]  # [B, 1], in the flattened image
    index = (first_pixel + _make_window_offsets(size, width, x.device)).unsqueeze(1)  # [B, 1, h w]
    return x.flatten(2).gather(2, index.expand(-1, channels, -1)).view(batch, channels, *size)


@cache  # without bound: a recorded step reads them
def _make_window_offsets(size: tuple[int, int], width: int, device: torch.device) -> Tensor:
    """Where the pixels of a window lie, seen from its corner, in a flattened image."""
    rows, columns = (torch.arange(n, device=device) for n in size)
    return (rows.unsqueeze(1) * width + columns).flatten()


def crop_randomly(x: Tensor, side: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A square window at a random place of each image, and its corner."""
    if side > min(x.shape[2:]):
        raise InputError(f"a crop of {side} pixels is larger than the images of {list(x.shape[2:])}; use less")
    num_positions = [size - side + 1 for size in (x.shape[3], x.shape[2])]
    corner = torch.stack([sample_integers(n, (len(x),), generator) for n in num_positions], dim=1)
    return crop(x, corner, (side, side)), corner


def shift(x: Tensor, pixels: int, generator: Generator, padding: Padding) -> tuple[Tensor, Tensor]:
    """Each image moved by its own whole number of pixels, and its corner in the padded image."""
    corner = sample_integers(2 * pixels + 1, (len(x), 2), generator)
    return crop(F.pad(x, (pixels,) * 4, mode=padding), corner, (x.shape[2], x.shape[3])), corner


def flip(x: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Every other image, on average, mirrored left to right, and which."""
    flipped = sample_uniform((len(x),), generator) < 0.5
    return torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x), flipped


def corrupt(x: Tensor, fraction: float, generator: Generator, columns: ColumnLayout | None = None) -> Tensor:
    """Each sample with a share of its columns from others, drawn apart: its marginals stay, what goes together not."""
    column_index = torch.arange(x[0].numel(), device=x.device) if columns is None else columns.column_index  # [E]
    size = (len(x), int(x[0].numel()) if columns is None else columns.num_columns)
    is_replaced = sample_uniform(size, generator) < fraction  # [B, F]
    donor = sample_integers(len(x), size, generator)  # where processes share a batch, one of those here
    flat = x.flatten(1)
    return torch.where(is_replaced[:, column_index], flat.gather(0, donor[:, column_index]), flat).view_as(x)


def add_noise(x: Tensor, std: float, generator: Generator) -> Tensor:
    """Gaussian noise."""
    return x + std * sample_normal(x.shape, generator, dtype=x.dtype)


def apply_cutout(x: Tensor, side: int, generator: Generator, fill: float = 0.0) -> Tensor:
    """A square of each image set to `fill`; its centre lies anywhere, so it may be cut by the edge."""
    height, width = x.shape[2:]
    center_y = sample_integers(height, (len(x), 1), generator)
    center_x = sample_integers(width, (len(x), 1), generator)
    rows = _make_square_mask(center_y, side, height)
    columns = _make_square_mask(center_x, side, width)
    return x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), fill)


def _make_square_mask(center: Tensor, side: int, length: int) -> Tensor:
    """Which of `length` positions lie within the square, [B, length]."""
    first = center - side // 2
    position = torch.arange(length, device=center.device)
    return (position >= first) & (position < first + side)
