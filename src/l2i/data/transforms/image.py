"""The perturbations T_η of images and tables, and the normalisation of images (appendix).

They are batched, on the data's device, and take every random choice from the generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.data.batch import AffineMap
from l2i.data.transforms.randaugment import Ranges, apply_randaugment
from l2i.distributed import sample_integers, sample_normal, sample_uniform
from l2i.errors import InputError

Padding = Literal["constant", "reflect"]


class Normalize(NamedTuple):
    """The mean and standard deviation of each channel, in grey levels 0 to 255."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    @staticmethod
    def from_images(x: Tensor) -> Normalize:
        """Compute them for images uint8 [N, C, H, W], by histograms to save memory."""
        counts = [torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)]
        histogram = torch.stack(counts).double() / (x.numel() / x.shape[1])  # [C, 256]
        level = torch.arange(256, dtype=torch.float64)
        mean = (histogram * level).sum(1)
        std = ((histogram * level.square()).sum(1) - mean.square()).clamp_min(1).sqrt()
        return Normalize(mean.view(-1, 1, 1), std.view(-1, 1, 1))

    @staticmethod
    def from_unit_range(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalize:
        """Convert values for pixels in [0, 1]."""
        tensors = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
        return Normalize(*(255 * tensor.view(-1, 1, 1) for tensor in tensors))

    def to(self, device: torch.device, dtype: torch.dtype) -> Normalize:
        return Normalize(self.mean.to(device, dtype), self.std.to(device, dtype))

    def apply(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std


class ColumnLayout(NamedTuple):
    """Which column of a table each of the E inputs is from; a category takes several inputs."""

    column_index: Tensor  # [E]
    is_numeric: Tensor  # [E], whether an input is a standardised number
    num_columns: int

    def to(self, device: torch.device) -> ColumnLayout:
        index, is_numeric = self.column_index.to(device), self.is_numeric.to(device)
        return ColumnLayout(index, is_numeric, self.num_columns)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Configure the augmentations of a view, applied in this order.

    The defaults leave samples unchanged.
    """

    crop: int = 0
    """Side of a random crop of larger images; 0 for none. Evaluation crops the centre."""
    shift: int = 0
    """Random shift of images, by up to this many pixels: a random crop of the padded image."""
    padding: Padding = "constant"
    """Padding of a shifted image: zeros, or its reflection."""
    flip: bool = False
    """Random horizontal flip; not for labels that distinguish left from right."""
    randaugment: int = 0
    """Number of FixMatch's RandAugment operations per 8-bit image, each with probability 1/2."""
    randaugment_ranges: Ranges = "paper"
    """Ranges of magnitudes: of FixMatch's paper, or of its code, which draws nine levels."""
    corrupt: float = 0.0
    """Fraction of a table's columns to replace by those of another sample of the mini-batch."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise, in the data's units: grey levels for 8-bit images,
    standard deviations for a table's numeric columns; categorical columns get none."""
    cutout: int = 0
    """Side of a square that is erased at a random position; 0 for none."""
    fill: float = 0.0
    """Pixel value for areas that cutout erases and RandAugment leaves empty."""

    def __call__(
        self,
        x: Tensor,
        generator: Generator,
        *,
        with_map: bool = True,
        columns: ColumnLayout | None = None,
    ) -> tuple[Tensor, AffineMap | None]:
        """Return the view [B, ...] and, for images if `with_map`, where its points went."""
        if x.ndim != 4:
            if self.shift or self.flip or self.cutout or self.crop or self.randaugment:
                raise InputError(
                    "crop, shift, flip, randaugment and cutout need images [B, C, H, W]; "
                    "remove them from data.weak and data.strong, and use noise or corrupt"
                )
            x = corrupt(x, self.corrupt, generator, columns) if self.corrupt else x
            if self.noise:
                noisy = add_noise(x, self.noise, generator)
                x = noisy if columns is None else torch.where(columns.is_numeric, noisy, x)
            return x, None
        if self.corrupt:
            fix = "remove it from data.weak and data.strong, and use cutout"
            raise InputError(f"corrupt needs tabular data; {fix}")
        x, affine_map = self._apply_geometry(x, generator, with_map=with_map)
        if self.randaugment:
            ranges = self.randaugment_ranges
            x = apply_randaugment(x, self.randaugment, generator, fill=self.fill, ranges=ranges)
        x = add_noise(x, self.noise, generator) if self.noise else x
        x = apply_cutout(x, self.cutout, generator, self.fill) if self.cutout else x
        return x, affine_map

    def _apply_geometry(
        self, x: Tensor, generator: Generator, *, with_map: bool
    ) -> tuple[Tensor, AffineMap | None]:
        """Apply what moves points: crop, shift and flip."""
        maps: list[AffineMap] = []
        if self.crop:
            x, corner = _crop_randomly(x, self.crop, generator)
            maps.append(AffineMap.from_offset(-corner.to(x.dtype)))
        if self.shift >= min(x.shape[2:]):
            problem = f"is too large for images of {list(x.shape[2:])} pixels"
            raise InputError(f"shift={self.shift} {problem}; lower it")
        if self.shift:
            x, corner = shift(x, self.shift, generator, self.padding)
            maps.append(AffineMap.from_offset((self.shift - corner).to(x.dtype)))
        if self.flip:
            x, flipped = flip(x, generator)
            maps.append(AffineMap.from_flip(flipped, x))
        if not with_map:
            return x, None
        no_offset = torch.zeros(len(x), 2, device=x.device, dtype=x.dtype)
        return x, reduce(AffineMap.then, maps or [AffineMap.from_offset(no_offset)])

    def center_crop(self, x: Tensor) -> Tensor:
        """Crop the centre of images to the size of a random crop."""
        if not self.crop:
            return x
        top, left = ((side - self.crop) // 2 for side in x.shape[2:])
        return x[:, :, top : top + self.crop, left : left + self.crop]


def _crop(x: Tensor, corner: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window out of each image; `corner` [B, 2] is its left and top."""
    batch, channels, _, width = x.shape
    first_pixel = corner[:, :1] + width * corner[:, 1:]  # [B, 1], in the flattened image
    index = (first_pixel + _make_window_offsets(size, width, x.device)).unsqueeze(1)  # [B, 1, h w]
    return x.flatten(2).gather(2, index.expand(-1, channels, -1)).view(batch, channels, *size)


@cache  # without bound: a captured step reads them
def _make_window_offsets(size: tuple[int, int], width: int, device: torch.device) -> Tensor:
    """Return where the pixels of a window are in a flattened image, relative to its corner."""
    rows, columns = (torch.arange(n, device=device) for n in size)
    return (rows.unsqueeze(1) * width + columns).flatten()


def _crop_randomly(x: Tensor, side: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Cut a random square out of each image; return its corner as well."""
    if side > min(x.shape[2:]):
        problem = f"is larger than the images, {list(x.shape[2:])} pixels"
        raise InputError(f"crop={side} {problem}; lower it")
    num_positions = [size - side + 1 for size in (x.shape[3], x.shape[2])]
    corner = torch.stack([sample_integers(n, (len(x),), generator) for n in num_positions], dim=1)
    return _crop(x, corner, (side, side)), corner


def shift(x: Tensor, pixels: int, generator: Generator, padding: Padding) -> tuple[Tensor, Tensor]:
    """Move each image by random pixels; return its corner in the padded image as well."""
    corner = sample_integers(2 * pixels + 1, (len(x), 2), generator)
    return _crop(F.pad(x, (pixels,) * 4, mode=padding), corner, (x.shape[2], x.shape[3])), corner


def flip(x: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Mirror each image left to right with probability 1/2; return which as well."""
    flipped = sample_uniform((len(x),), generator) < 0.5
    return torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x), flipped


def corrupt(
    x: Tensor, fraction: float, generator: Generator, columns: ColumnLayout | None = None
) -> Tensor:
    """Replace a fraction of each sample's columns by other samples' values: marginals are kept."""
    flat = x.flatten(1)
    size = (len(x), flat.shape[1] if columns is None else columns.num_columns)
    is_replaced = sample_uniform(size, generator) < fraction  # [B, F]
    # a donor is a sample of this process's part of the batch
    donor = sample_integers(len(x), size, generator)
    if columns is not None:
        is_replaced, donor = is_replaced[:, columns.column_index], donor[:, columns.column_index]
    return torch.where(is_replaced, flat.gather(0, donor), flat).view_as(x)


def add_noise(x: Tensor, std: float, generator: Generator) -> Tensor:
    """Add Gaussian noise."""
    return x + std * sample_normal(x.shape, generator, dtype=x.dtype)


def apply_cutout(x: Tensor, side: int, generator: Generator, fill: float = 0.0) -> Tensor:
    """Set a square of each image to `fill`; its centre is anywhere, so the edge may cut it."""
    masks = []  # [B, H] and [B, W]
    for length in x.shape[2:]:
        first = sample_integers(length, (len(x), 1), generator) - side // 2
        position = torch.arange(length, device=x.device)
        masks.append((position >= first) & (position < first + side))
    rows, columns = masks
    return x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), fill)
