"""Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from l2i.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # by content, since names may lie; others may run programs
MAX_PIXELS = 50_000_000  # a small file may claim to be an image that fills the memory
LARGE_IMAGE_PIXELS = 16_000_000  # pixels, above which threads take turns
LARGE_IMAGE_LOCK = Lock()


class ImageTooLargeError(Exception):
    """How many pixels an image has, and how many it may have."""


@contextmanager
def open_image(path: str | Path, formats: Sequence[str] = IMAGE_FORMATS) -> Iterator[Image.Image]:
    """An image of a regular file, with no more pixels than memory allows; nothing is decoded yet."""
    if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would block, a device never end
        raise ValueError("not a regular file")
    try:
        image = Image.open(path, formats=list(formats))
    except Image.DecompressionBombError:
        raise ImageTooLargeError(f"far more pixels than {MAX_PIXELS:,}") from None
    with image:
        if image.width * image.height > MAX_PIXELS:
            raise ImageTooLargeError(f"{image.width} × {image.height} pixels, more than {MAX_PIXELS:,}")
        yield image


@contextmanager
def lock_large_image(image: Image.Image) -> Iterator[None]:
    """Large images are decoded one after the other, whatever threads there are, so that they do not fill the memory."""
    with LARGE_IMAGE_LOCK if image.width * image.height > LARGE_IMAGE_PIXELS else nullcontext():
        yield


def decode_square_image(path: str, size: int) -> NDArray[np.uint8]:
    """The image as [3, S, S], or what is wrong with the file."""
    try:
        with open_image(path) as image:
            image.draft(None, (2 * size, 2 * size))  # a JPEG far too large is decoded at a half, quarter or eighth
            return np.asarray(crop_center_square(to_rgb(image), size)).transpose(2, 0, 1)
    except ImageTooLargeError as error:
        raise InputError(f"the image {path} has {error}; shrink it") from None
    except Exception as error:  # decoders fail in a dozen ways, and each is the file's
        raise InputError(f"cannot read the image {path} ({error}); replace it, or take it out of the folder") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Three colours of 8 bits; transparency is dropped."""
    if image.mode.startswith("I;16"):  # Pillow cuts 16-bit grey off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def crop_center_square(image: Image.Image, size: int) -> Image.Image:
    """The centre square of the image resized such that its shorter side is `size`."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return image.crop(box)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)
