"""Grey levels of 8 bits as a network's inputs: standardised by channel («standard normalization», appendix)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pixels(NamedTuple):
    """The mean and spread of each channel, in grey levels 0 to 255."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    @staticmethod
    def of(x: Tensor) -> Pixels:
        """Those of the images `x`, uint8 [N, C, H, W]: by their histogram, so that nothing large is made of them."""
        counts = [torch.bincount(channel.reshape(-1), minlength=256).double() for channel in x.unbind(1)]
        share = torch.stack(counts) / (x.numel() / x.shape[1])  # [C, 256]
        level = torch.arange(256, dtype=torch.float64)
        mean = (share * level).sum(1)
        spread = ((share * level.square()).sum(1) - mean.square()).clamp_min(1).sqrt()
        return Pixels(mean.view(-1, 1, 1), spread.view(-1, 1, 1))

    @staticmethod
    def given(mean: tuple[float, ...], std: tuple[float, ...]) -> Pixels:
        """Those known beforehand, as shares of 255."""
        return Pixels(*(255 * torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std)))

    def to(self, device: torch.device, dtype: torch.dtype) -> Pixels:
        return Pixels(self.mean.to(device, dtype), self.std.to(device, dtype))

    def standardized(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std
