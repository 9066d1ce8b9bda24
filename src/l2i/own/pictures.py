"""Image files as square arrays of one size: which size, how decoded, what cannot be read, and how points move along."""

from __future__ import annotations

import base64
import io
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from l2i.data.folders import TooLarge, alone, opened, rgb, square
from l2i.errors import InputError
from l2i.own.reading import counted

SIDES = (8, 16, 24, 32, 48, 64)
MOST_SIDE, POINTS_SIDE, LEAST_SIDE = 32, 60, 4
MOST_BYTES = 4 * 2**30
THUMBNAIL = 96  # pixels, at most
NAMED = 3  # unreadable images
EVERY = 5.0  # seconds between two reports
Told = Callable[[str], object]
Item = TypeVar("Item")
Made = TypeVar("Made")


class Frame(NamedTuple):
    """What images are brought to."""

    side: int
    channels: int
    whole: bool
    """Whether all of an image is squeezed into the square, as landmarks need it, or only its centre is kept."""


class Head(NamedTuple):
    """What a file says about its image."""

    width: int
    height: int
    grey: bool


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Images that could be read, and where they were in the list."""

    pixels: NDArray[np.uint8]  # [N, C, S, S]
    kept: NDArray[np.int64]  # [N]
    sizes: NDArray[np.int64]  # [N, 2], widths and heights in the files
    frame: Frame
    notes: tuple[str, ...]


def read_pictures(
    paths: Sequence[str],
    names: Sequence[str],
    choose: Callable[[NDArray[np.int64], NDArray[np.int64], bool], Frame],
    *,
    skip: bool,
    told: Told | None = None,
) -> Pictures:
    """All images; `choose` makes a frame of the places and sizes of those with a header, and whether all are grey."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd headers are common; what cannot be decoded is an error
        heads = list(reported(in_threads(head, paths), len(paths), "looked at", told))
        wrong = {place: found for place, found in enumerate(heads) if isinstance(found, str)}
        good = {place: found for place, found in enumerate(heads) if isinstance(found, Head)}
        places = np.array(list(good), dtype=np.int64)
        sizes = np.array([found[:2] for found in good.values()], dtype=np.int64).reshape(-1, 2)
        if not good:
            raise unreadable(wrong, names)
        frame = choose(places, sizes, all(found.grey for found in good.values()))
        pixels, failed = _decoded([paths[place] for place in good], frame, told)
    wrong |= {int(places[row]): why for row, why in failed.items()}
    if wrong and (not skip or len(wrong) == len(paths)):
        raise unreadable(wrong, names)
    if failed:
        read = np.setdiff1d(np.arange(len(places)), list(failed))
        pixels, places, sizes = pixels[read], places[read], sizes[read]
    notes = (f"{_unreadable(wrong, names)}: left out",) if wrong else ()
    return Pictures(pixels=pixels, kept=places, sizes=sizes, frame=frame, notes=notes)


def _decoded(paths: Sequence[str], frame: Frame, told: Told | None) -> tuple[NDArray[np.uint8], dict[int, str]]:
    pixels = np.zeros((len(paths), frame.channels, frame.side, frame.side), dtype=np.uint8)
    failed: dict[int, str] = {}
    found = in_threads(lambda path: decoded(path, frame), paths)
    for row, image in enumerate(reported(found, len(paths), "read", told)):
        if isinstance(image, str):
            failed[row] = image
        else:
            pixels[row] = image
    return pixels, failed


def head(path: str) -> Head | str:
    """Size and colours of an image, or what is wrong with it."""
    try:
        with opened(path) as image:
            return Head(image.width, image.height, image.mode[0] in "1LI")
    except FileNotFoundError:
        return "missing"
    except UnidentifiedImageError:
        return "no image"
    except TooLarge as error:
        return str(error)
    except Exception as error:  # decoders fail in a dozen ways, and each is the file's
        return f"damaged: {error}"[:80]


def decoded(path: str, frame: Frame) -> NDArray[np.uint8] | str:  # [C, S, S]
    """The image in its frame, or what is wrong with it."""
    try:
        with opened(path) as image:  # its size is asked again: the file may be another by now
            image.draft(None, (2 * frame.side, 2 * frame.side))  # a JPEG far too large is decoded at a half or less
            with alone(image):
                plain = rgb(_eight_bits(image)).convert("RGB" if frame.channels == 3 else "L")
                if frame.whole:
                    plain = plain.resize((frame.side, frame.side), Image.Resampling.BICUBIC)
                else:
                    plain = square(plain, frame.side)
            return np.atleast_3d(np.asarray(plain)).transpose(2, 0, 1)
    except Exception as error:  # decoders fail in a dozen ways, and each is the file's
        return "missing" if isinstance(error, FileNotFoundError) else f"damaged: {error}"[:80]


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image, or the upper bits of one whose grey levels are of 32 bits, as Pillow 10 reads those of 16."""
    if image.mode != "I":
        return image
    values = np.asarray(image)
    return Image.fromarray((values >> 8 if values.max() > 255 else values).clip(0, 255).astype(np.uint8))


def unreadable(wrong: dict[int, str], names: Sequence[str]) -> InputError:
    """What to say of images that cannot be read; `wrong` says why, by their place."""
    return InputError(f"{_unreadable(wrong, names)}; mend or remove them, or leave them out with --skip-unreadable")


def _unreadable(wrong: dict[int, str], names: Sequence[str]) -> str:
    first = ", ".join(f"{names[place]} ({wrong[place]})" for place in sorted(wrong)[:NAMED])
    more = ", …" if len(wrong) > NAMED else ""
    return f"{counted(len(wrong), 'image')} of {len(names):,} cannot be read: {first}{more}"


def in_threads(work: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """What `work` makes of each item, in order; decoding runs outside of Python's lock."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        yield from pool.map(work, items)


def reported(items: Iterable[Item], total: int, done: str, told: Told | None, every: float = EVERY) -> Iterator[Item]:
    """The items, while `told` hears now and then how many were done."""
    last = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if told is not None and time.monotonic() - last >= every:
            told(f"{done} {number:,} of {total:,} images")
            last = time.monotonic()


def chosen_side(size: int, sizes: NDArray[np.int64], *, points: bool) -> int:
    """The side asked for, or the one nearest to the median shorter side of the images, of those that suit networks."""
    if size:
        if size < LEAST_SIDE:
            raise InputError(f"--size {size} is too small for an image; give {LEAST_SIDE} or more, or 0 to choose")
        return size
    if points:
        return POINTS_SIDE
    median = float(np.median(sizes.min(axis=1)))
    return min((side for side in SIDES if side <= MOST_SIDE), key=lambda side: (abs(side - median), -side))


def checked_memory(count: int, frame: Frame, *, item: int = 1) -> None:
    """Whether `count` images, each value `item` bytes, may be held in memory."""
    each = frame.channels * item
    if count * each * frame.side**2 <= MOST_BYTES:
        return
    fits = [side for side in SIDES if count * each * side**2 <= MOST_BYTES and side < frame.side]
    fix = f"give --size {fits[-1]} or less" if fits else "give fewer images"
    needed = count * each * frame.side**2 / 2**30
    raise InputError(f"{count:,} images of {frame.side} × {frame.side} pixels would take {needed:.1f} GiB; {fix}")


def within(points: NDArray[np.float64], sizes: NDArray[np.int64]) -> bool:
    """Whether all points x1 y1 x2 y2 … [N, D] that are there lie in images of these sizes [N, 2]."""
    pairs = points.reshape(len(points), -1, 2)
    there = ~np.isnan(pairs)
    return bool((((pairs >= 0) & (pairs <= sizes[:, None])) | ~there).all())


def to_square(points: NDArray[Any], sizes: NDArray[np.int64], side: int) -> NDArray[np.float64]:  # [N, D]
    """Points in pixels of the original images as points in the squares of `side` pixels they were squeezed to."""
    return (points.reshape(len(points), -1, 2) * (side / sizes[:, None])).reshape(points.shape)


def from_square(points: NDArray[Any], sizes: NDArray[np.int64], side: int) -> NDArray[np.float64]:  # [N, D]
    """What `to_square` undoes."""
    return (points.reshape(len(points), -1, 2) * (sizes[:, None] / side)).reshape(points.shape)


def thumbnail(image: NDArray[Any]) -> str:  # of [C, H, W]
    """A PNG in base64; values that are no grey levels of 8 bits are stretched to them."""
    levels = image if image.dtype == np.uint8 else _levels(image.astype(np.float64))
    plain = Image.fromarray(levels.transpose(1, 2, 0) if len(levels) == 3 else levels[0])
    plain.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    plain.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def _levels(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    low, high = (0.0, 1.0) if image.min() >= 0 and image.max() <= 1 else (image.min(), image.max())
    return ((image - low) * (255 / max(high - low, 1e-300))).round().astype(np.uint8)
