"""Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2i.files.images import decode_square_image


class PackedPaths:
    """Many paths in one string: a list of 1.3 million would be copied into every worker process bit by bit."""

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self.buffer = b"".join(encoded)
        self.offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        return os.fsdecode(self.buffer[self.offsets[row] : self.offsets[row + 1]])


class ImageFiles:
    """Image files that look like a uint8 tensor [N, 3, S, S]; indexing reads nothing, `read` decodes."""

    dtype = torch.uint8
    ndim = 4

    def __init__(self, paths: Iterable[str] | PackedPaths, size: int, rows: NDArray[np.int64] | None = None) -> None:
        self.paths = paths if isinstance(paths, PackedPaths) else PackedPaths(paths)
        self.size = size
        self.rows = np.arange(len(self.paths)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def encode_names(self) -> bytes:
        """The last two parts of all paths, class and file, in order."""
        return b"\n".join(b"/".join(os.fsencode(self.paths[row]).split(b"/")[-2:]) for row in self.rows.tolist())

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.size, self.size))

    def __getitem__(self, index: Tensor | slice) -> ImageFiles:
        selected = index if isinstance(index, slice) else index.cpu().numpy()
        return ImageFiles(self.paths, self.size, self.rows[selected])

    def read(self, index: Tensor | slice | None = None) -> Tensor:
        """The chosen images, or all, as uint8 [B, 3, S, S]."""
        rows = self.rows if index is None else self[index].rows
        images = np.empty((len(rows), 3, self.size, self.size), dtype=np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd headers are common; what cannot be decoded is an error
            for image, row in zip(images, rows, strict=True):
                image[:] = decode_square_image(self.paths[row], self.size)
        return torch.from_numpy(images)
