"""Decode untrusted image files, at once or when they are read."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from l2i.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
# by content, since names may lie; decoders of other formats may run programs
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 50_000_000  # a small file may claim to be an image that fills the memory
LARGE_IMAGE_PIXELS = 16_000_000  # above which threads take turns, to bound memory
LARGE_IMAGE_LOCK = Lock()
ORIENTATION_TAG = 0x0112  # of EXIF: how a camera was held
UPRIGHT = {  # what turns an image of each orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # orientations that swap width and height
STAT_CHUNK = 4096  # files that a thread looks up together
ItemT = TypeVar("ItemT")
OutputT = TypeVar("OutputT")


class EmptyImageError(Exception):
    """A file of an image is empty."""


class ImageTooLargeError(Exception):
    """An image has more pixels than allowed; the message gives both numbers."""


@contextmanager
def open_image(
    source: str | Path | bytes, formats: Sequence[str] = IMAGE_FORMATS
) -> Iterator[Image.Image]:
    """Open a regular file, or its content, as an image of bounded size, not decoded yet."""
    if not isinstance(source, bytes):
        file_stat = Path(source).stat()
        if not stat.S_ISREG(file_stat.st_mode):  # a pipe would block, a device never end
            raise ValueError("not a regular file")
        if not file_stat.st_size:
            raise EmptyImageError
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        image = Image.open(file, formats=list(formats))
    except Image.DecompressionBombError:
        raise ImageTooLargeError(f"far more pixels than {MAX_PIXELS:,}") from None
    with image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ImageTooLargeError(f"{width} × {height} pixels, more than {MAX_PIXELS:,}")
        yield image


def get_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image: 1 if it is upright."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # looking further would decode the image
    try:
        orientation = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # damaged metadata do not make an image unreadable
        return 1
    return orientation if orientation in UPRIGHT else 1


def get_upright_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height as a person would see the image."""
    is_sideways = get_orientation(image) in SIDEWAYS
    return (image.height, image.width) if is_sideways else (image.width, image.height)


def decode_image(
    source: str | Path | bytes,
    convert: Callable[[Image.Image], OutputT],
    *,
    side: int | None = None,
    formats: Sequence[str] = IMAGE_FORMATS,
) -> OutputT:
    """Return `convert(image)` of an upright image, decoded at a lower resolution if `side` allows.

    Decoders fail in a dozen ways: a caller translates every exception, and says what to do.
    """
    with open_image(source, formats) as image:
        orientation = get_orientation(image)
        if side is not None:  # JPEG only: decodes at a half, quarter or eighth
            image.draft(None, (2 * side, 2 * side))
        is_large = image.width * image.height > LARGE_IMAGE_PIXELS
        with LARGE_IMAGE_LOCK if is_large else nullcontext():
            is_upright = orientation not in UPRIGHT
            return convert(image if is_upright else image.transpose(UPRIGHT[orientation]))


def _decode_square_image(path: str, size: int) -> NDArray[np.uint8]:
    """Decode the centre square of an image as [3, S, S]."""
    try:
        image = decode_image(path, lambda i: crop_center_square(to_rgb(i), size), side=size)
        return np.asarray(image).transpose(2, 0, 1)
    except ImageTooLargeError as error:
        raise InputError(f"image {path} has {error}; downscale it") from None
    except Exception as error:
        fix = "replace or remove it"
        raise InputError(f"cannot read image {path} ({error}); {fix}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to three colours of 8 bits, dropping transparency."""
    if image.mode.startswith("I;16"):  # Pillow would clip 16-bit grey at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def crop_center_square(image: Image.Image, size: int) -> Image.Image:
    """Return the centre square of the image, resized so that its shorter side is `size`."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return image.crop(box)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def map_in_threads(
    function: Callable[[ItemT], OutputT], items: Iterable[ItemT]
) -> Iterator[OutputT]:
    """Yield `function(item)` in order, from threads: decoding releases Python's lock."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        yield from pool.map(function, items)


def _stat_files(paths: list[str]) -> list[tuple[int, int]]:
    """Return the size and the modification time, in nanoseconds, of each file."""
    try:
        return [(s.st_size, s.st_mtime_ns) for s in map(os.stat, paths)]
    except OSError as error:
        problem = f"image {error.filename} cannot be read ({error.strerror})"
        raise InputError(f"{problem}; restore it, or remove it from the dataset") from None


def ignore_image_warnings() -> warnings.catch_warnings[None]:
    """Silence warnings: odd headers are common, and what cannot be decoded is an error."""
    return warnings.catch_warnings(action="ignore")


class PackedPaths:
    """Many paths in one string: a list of 1.3 million would be copied into every worker process."""

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self.buffer = b"".join(encoded)
        self.offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        return os.fsdecode(self.buffer[self.offsets[row] : self.offsets[row + 1]])


class ImageFiles:
    """Image files that look like a uint8 tensor [N, 3, S, S]; indexing reads nothing."""

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self, paths: Iterable[str] | PackedPaths, size: int, rows: NDArray[np.int64] | None = None
    ) -> None:
        self.paths = paths if isinstance(paths, PackedPaths) else PackedPaths(paths)
        self.size = size
        self.rows = np.arange(len(self.paths)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice) -> ImageFiles:
        selected = index if isinstance(index, slice) else index.cpu().numpy()
        return ImageFiles(self.paths, self.size, self.rows[selected])

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.size, self.size))

    def describe_files(self) -> tuple[bytes, bytes]:
        """Encode names (class and file) with sizes, and modification times, all in order."""
        paths = [self.paths[row] for row in self.rows.tolist()]
        chunks = [paths[i : i + STAT_CHUNK] for i in range(0, len(paths), STAT_CHUNK)]
        stats = [stat for chunk in map_in_threads(_stat_files, chunks) for stat in chunk]
        names = (b"/".join(os.fsencode(path).split(b"/")[-2:]) for path in paths)
        lines = (b"%s %d" % (name, size) for name, (size, _) in zip(names, stats, strict=True))
        return b"\n".join(lines), np.array([time for _, time in stats], dtype=np.int64).tobytes()

    def read(self, index: Tensor | slice | None = None) -> Tensor:
        """Decode the chosen images, or all, as uint8 [B, 3, S, S]."""
        rows = self.rows if index is None else self[index].rows
        images = np.empty((len(rows), 3, self.size, self.size), dtype=np.uint8)
        with ignore_image_warnings():
            for image, row in zip(images, rows, strict=True):
                image[:] = _decode_square_image(self.paths[row], self.size)
        return torch.from_numpy(images)
