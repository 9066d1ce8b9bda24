"""Image files as square arrays of one size: which size, how decoded, what cannot be read, and how points move along.

MERGED:
Images of a user's own, of files or of arrays, in a frame chosen from them; and new ones in the same frame.

MERGED:
Arrays of a user's own in an .npz file: x as a table or images, y as classes or numbers.
"""

from __future__ import annotations

import base64
import io
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from l2i.errors import InputError
from l2i.files.images import ImageTooLargeError, crop_center_square, lock_large_image, open_image, to_rgb
from l2i.fit.options import ReadOptions, pluralize
from l2i.fit.readers.folders import ImageFileList
from l2i.fit.readers.npz import to_channels_first, to_image_array

IMAGE_SIDES = (8, 16, 24, 32, 48, 64)
MAX_DEFAULT_SIDE, LANDMARK_SIDE, MIN_SIDE = 32, 60, 4
MAX_IMAGE_BYTES = 4 * 2**30
MAX_THUMBNAIL_SIDE = 96  # pixels, at most
MAX_UNREADABLE_SHOWN = 3  # unreadable images
REPORT_INTERVAL_S = 5.0  # seconds between two reports
ProgressCallback = Callable[[str], object]
Item = TypeVar("Item")
Made = TypeVar("Made")


class ImageSpec(NamedTuple):
    """What images are brought to."""

    side: int
    channels: int
    whole: bool
    """Whether all of an image is squeezed into the square, as landmarks need it, or only its centre is kept."""


class ImageHeader(NamedTuple):
    """What a file says about its image."""

    width: int
    height: int
    is_grey: bool


@dataclass(frozen=True, kw_only=True)
class DecodedImages:
    """Images that could be read, and where they were in the list."""

    pixels: NDArray[np.uint8]  # [N, C, S, S]
    indices: NDArray[np.int64]  # [N]
    sizes: NDArray[np.int64]  # [N, 2], widths and heights in the files
    spec: ImageSpec
    notes: tuple[str, ...]


def decode_image_files(
    paths: Sequence[str],
    names: Sequence[str],
    choose_spec: Callable[[NDArray[np.int64], NDArray[np.int64], bool], ImageSpec],
    *,
    skip_unreadable: bool,
    progress: ProgressCallback | None = None,
) -> DecodedImages:
    """All images; `choose` makes a frame of the places and sizes of those with a header, and whether all are grey."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd headers are common; what cannot be decoded is an error
        headers = list(report_progress(map_in_threads(read_image_header, paths), len(paths), "looked at", progress))
        errors = {index: header for index, header in enumerate(headers) if isinstance(header, str)}
        readable = {index: header for index, header in enumerate(headers) if isinstance(header, ImageHeader)}
        indices = np.array(list(readable), dtype=np.int64)
        sizes = np.array([header[:2] for header in readable.values()], dtype=np.int64).reshape(-1, 2)
        if not readable:
            raise make_unreadable_error(errors, names)
        spec = choose_spec(indices, sizes, all(header.is_grey for header in readable.values()))
        pixels, decode_errors = _decode_all([paths[index] for index in readable], spec, progress)
    errors |= {int(indices[row]): reason for row, reason in decode_errors.items()}
    if errors and (not skip_unreadable or len(errors) == len(paths)):
        raise make_unreadable_error(errors, names)
    if decode_errors:
        decoded_rows = np.setdiff1d(np.arange(len(indices)), list(decode_errors))
        pixels, indices, sizes = pixels[decoded_rows], indices[decoded_rows], sizes[decoded_rows]
    notes = (f"{_describe_unreadable(errors, names)}: left out",) if errors else ()
    return DecodedImages(pixels=pixels, indices=indices, sizes=sizes, spec=spec, notes=notes)


def _decode_all(paths: Sequence[str], spec: ImageSpec, progress: ProgressCallback | None) -> tuple[NDArray[np.uint8], dict[int, str]]:
    pixels = np.zeros((len(paths), spec.channels, spec.side, spec.side), dtype=np.uint8)
    errors: dict[int, str] = {}
    images = map_in_threads(lambda path: decode_image_file(path, spec), paths)
    for row, image in enumerate(report_progress(images, len(paths), "read", progress)):
        if isinstance(image, str):
            errors[row] = image
        else:
            pixels[row] = image
    return pixels, errors


def read_image_header(path: str) -> ImageHeader | str:
    """Size and colours of an image, or what is wrong with it."""
    try:
        with open_image(path) as image:
            return ImageHeader(image.width, image.height, image.mode[0] in "1LI")
    except FileNotFoundError:
        return "missing"
    except UnidentifiedImageError:
        return "no image"
    except ImageTooLargeError as error:
        return str(error)
    except Exception as error:  # decoders fail in a dozen ways, and each is the file's
        return f"damaged: {error}"[:80]


def decode_image_file(path: str, spec: ImageSpec) -> NDArray[np.uint8] | str:  # [C, S, S]
    """The image in its frame, or what is wrong with it."""
    try:
        with open_image(path) as image:  # its size is asked again: the file may be another by now
            image.draft(None, (2 * spec.side, 2 * spec.side))  # a JPEG far too large is decoded at a half or less
            with lock_large_image(image):
                converted = to_rgb(_to_eight_bits(image)).convert("RGB" if spec.channels == 3 else "L")
                if spec.whole:
                    converted = converted.resize((spec.side, spec.side), Image.Resampling.BICUBIC)
                else:
                    converted = crop_center_square(converted, spec.side)
            return np.atleast_3d(np.asarray(converted)).transpose(2, 0, 1)
    except Exception as error:  # decoders fail in a dozen ways, and each is the file's
        return "missing" if isinstance(error, FileNotFoundError) else f"damaged: {error}"[:80]


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """The image, or the upper bits of one whose grey levels are of 32 bits, as Pillow 10 reads those of 16."""
    if image.mode != "I":
        return image
    values = np.asarray(image)
    return Image.fromarray((values >> 8 if values.max() > 255 else values).clip(0, 255).astype(np.uint8))


def make_unreadable_error(errors: dict[int, str], names: Sequence[str]) -> InputError:
    """What to say of images that cannot be read; `wrong` says why, by their place."""
    return InputError(f"{_describe_unreadable(errors, names)}; mend or remove them, or leave them out with --skip-unreadable")


def _describe_unreadable(errors: dict[int, str], names: Sequence[str]) -> str:
    listed = ", ".join(f"{names[index]} ({errors[index]})" for index in sorted(errors)[:MAX_UNREADABLE_SHOWN])
    more = ", …" if len(errors) > MAX_UNREADABLE_SHOWN else ""
    return f"{pluralize(len(errors), 'image')} of {len(names):,} cannot be read: {listed}{more}"


def map_in_threads(work: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """What `work` makes of each item, in order; decoding runs outside of Python's lock."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        yield from pool.map(work, items)


def report_progress(items: Iterable[Item], total: int, action: str, progress: ProgressCallback | None, interval_s: float = REPORT_INTERVAL_S) -> Iterator[Item]:
    """The items, while `told` hears now and then how many were done."""
    last_report = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if progress is not None and time.monotonic() - last_report >= interval_s:
            progress(f"{action} {number:,} of {total:,} images")
            last_report = time.monotonic()


def choose_side(size: int, sizes: NDArray[np.int64], *, points: bool) -> int:
    """The side asked for, or the one nearest to the median shorter side of the images, of those that suit networks."""
    if size:
        if size < MIN_SIDE:
            raise InputError(f"--size {size} is too small for an image; give {MIN_SIDE} or more, or 0 to choose")
        return size
    if points:
        return LANDMARK_SIDE
    median = float(np.median(sizes.min(axis=1)))
    return min((side for side in IMAGE_SIDES if side <= MAX_DEFAULT_SIDE), key=lambda side: (abs(side - median), -side))


def check_image_memory(count: int, spec: ImageSpec, *, itemsize: int = 1) -> None:
    """Whether `count` images, each value `item` bytes, may be held in memory."""
    bytes_per_pixel = spec.channels * itemsize
    if count * bytes_per_pixel * spec.side**2 <= MAX_IMAGE_BYTES:
        return
    fitting_sides = [side for side in IMAGE_SIDES if count * bytes_per_pixel * side**2 <= MAX_IMAGE_BYTES and side < spec.side]
    hint = f"give --size {fitting_sides[-1]} or less" if fitting_sides else "give fewer images"
    needed = count * bytes_per_pixel * spec.side**2 / 2**30
    raise InputError(f"{count:,} images of {spec.side} × {spec.side} pixels would take {needed:.1f} GiB; {hint}")


def points_within_images(points: NDArray[np.float64], sizes: NDArray[np.int64]) -> bool:
    """Whether all points x1 y1 x2 y2 … [N, D] that are there lie in images of these sizes [N, 2]."""
    pairs = points.reshape(len(points), -1, 2)
    present = ~np.isnan(pairs)
    return bool((((pairs >= 0) & (pairs <= sizes[:, None])) | ~present).all())


def points_to_square(points: NDArray[Any], sizes: NDArray[np.int64], side: int) -> NDArray[np.float64]:  # [N, D]
    """Points in pixels of the original images as points in the squares of `side` pixels they were squeezed to."""
    return (points.reshape(len(points), -1, 2) * (side / sizes[:, None])).reshape(points.shape)


def points_from_square(points: NDArray[Any], sizes: NDArray[np.int64], side: int) -> NDArray[np.float64]:  # [N, D]
    """What `to_square` undoes."""
    return (points.reshape(len(points), -1, 2) * (sizes[:, None] / side)).reshape(points.shape)


def encode_thumbnail(image: NDArray[Any]) -> str:  # of [C, H, W]
    """A PNG in base64; values that are no grey levels of 8 bits are stretched to them."""
    levels = image if image.dtype == np.uint8 else _to_grey_levels(image.astype(np.float64))
    pil_image = Image.fromarray(levels.transpose(1, 2, 0) if len(levels) == 3 else levels[0])
    pil_image.thumbnail((MAX_THUMBNAIL_SIDE, MAX_THUMBNAIL_SIDE))
    file = io.BytesIO()
    pil_image.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def _to_grey_levels(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    low, high = (0.0, 1.0) if image.min() >= 0 and image.max() <= 1 else (image.min(), image.max())
    return ((image - low) * (255 / max(high - low, 1e-300))).round().astype(np.uint8)


MIN_POINT_TARGETS = 4  # numbers that are taken for points by themselves


class Images(NamedTuple):
    """Images in their frame."""

    pixels: NDArray[Any]  # [N, C, S, S], uint8 or float32
    indices: NDArray[np.int64]  # [N], rows that they belong to
    sizes: NDArray[np.int64]  # [N, 2], widths and heights before
    spec: ImageSpec
    notes: tuple[str, ...]


def read_image_files(
    files: ImageFileList, options: ReadOptions, targets: NDArray[np.float64] | None, progress: ProgressCallback | None
) -> Images:
    """Image files in a frame that is chosen from them; `targets` [N, D] are numbers that may be points."""

    def choose_spec(indices: NDArray[np.int64], sizes: NDArray[np.int64], all_grey: bool) -> ImageSpec:
        are_points = _targets_are_points(options, None if targets is None else targets[indices], sizes)
        channels = 1 if options.grey == "yes" or (options.grey == "auto" and all_grey) else 3
        spec = ImageSpec(choose_side(options.size, sizes, points=are_points), channels, are_points)
        check_image_memory(len(indices), spec)
        return spec

    decoded = decode_image_files(files.paths, files.names, choose_spec, skip_unreadable=options.skip_unreadable, progress=progress)
    pixels, spec = decoded.pixels, decoded.spec
    if options.grey == "auto" and spec.channels == 3 and _is_all_grey(pixels):
        pixels, spec = np.ascontiguousarray(pixels[:, :1]), spec._replace(channels=1)
    notes = (*_describe_resize(decoded.sizes, spec, options), *_describe_points(spec, options, targets), *decoded.notes)
    return Images(pixels, decoded.indices, decoded.sizes, spec, notes)


def read_array_images(x: NDArray[Any], path: Path, options: ReadOptions, targets: NDArray[np.float64] | None) -> Images:
    """Images of an array [N, H, W], [N, C, H, W] or [N, H, W, C]."""
    images = to_image_array(x, path)
    sizes = _get_image_sizes(images)
    are_points = _targets_are_points(options, targets, sizes)
    spec = ImageSpec(choose_side(options.size, sizes, points=are_points), images.shape[1], are_points)
    layout_notes = ("x is taken as [N, H, W, C]",) if x.ndim == 4 and x.shape[1:] != images.shape[1:] else ()
    notes = (*layout_notes, *_describe_resize(sizes, spec, options), *_describe_points(spec, options, targets))
    return Images(resize_images(images, spec), np.arange(len(x)), sizes, spec, notes)


def read_new_array_images(x: NDArray[Any], path: Path, spec: ImageSpec, dtype: str) -> Images:
    """Images of an array like those that a model was trained on."""
    if x.ndim < 3:
        raise InputError(f"{path}: x is {list(x.shape)}, but the model was trained on images; write it as [N, C, H, W]")
    num_channels = to_channels_first(x, path).shape[1]
    if num_channels != spec.channels:
        raise InputError(f"{path}: images have {num_channels} channels, but the model was trained on {spec.channels}")
    images = to_image_array(x, path, dtype)
    return Images(resize_images(images, spec), np.arange(len(x)), _get_image_sizes(images), spec, ())


def _get_image_sizes(images: NDArray[Any]) -> NDArray[np.int64]:  # [N, 2]
    height, width = images.shape[2:]
    return np.tile(np.array([width, height], dtype=np.int64), (len(images), 1))


def _targets_are_points(options: ReadOptions, targets: NDArray[np.float64] | None, sizes: NDArray[np.int64]) -> bool:
    if options.landmarks == "no":
        return False
    num_values = 0 if targets is None else targets.shape[1]
    if options.landmarks == "yes":
        if targets is None or num_values % 2:
            raise InputError("landmarks are pairs of numbers x, y; name an even number of columns by --target")
        return True
    return targets is not None and num_values >= MIN_POINT_TARGETS and num_values % 2 == 0 and points_within_images(targets, sizes)


def _is_all_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether the three colours are equal everywhere; image by image, so that memory is not filled."""
    return all((image[0] == image[1]).all() and (image[0] == image[2]).all() for image in pixels)


def _describe_resize(sizes: NDArray[np.int64], spec: ImageSpec, options: ReadOptions) -> list[str]:
    colours = {1: "grey levels", 3: "three colours"}.get(spec.channels, f"{spec.channels} channels")
    if (sizes == spec.side).all():
        return [f"images are {spec.side} × {spec.side} pixels of {colours}"]
    low, high = (f"{width} × {height}" for width, height in (sizes.min(axis=0), sizes.max(axis=0)))
    original_size = low if low == high else f"{low} to {high}"
    square = (sizes[:, 0] == sizes[:, 1]).all()
    resize_mode = "" if square else ", all of them squeezed" if spec.whole else ", their centre square"
    hint = "" if options.size else "; --size chooses another"
    return [f"images of {original_size} pixels become {spec.side} × {spec.side}{resize_mode}, of {colours}{hint}"]


def _describe_points(spec: ImageSpec, options: ReadOptions, targets: NDArray[np.float64] | None) -> list[str]:
    num_values = 0 if targets is None else targets.shape[1]
    if spec.whole:
        reason = ", as all lie within the images; --landmarks no takes them as plain numbers"
        return [f"the targets are {num_values // 2} points x, y in pixels{'' if options.landmarks == 'yes' else reason}"]
    if options.landmarks == "auto" and num_values >= MIN_POINT_TARGETS and num_values % 2 == 0:
        return [
            "the targets are plain numbers, as some lie outside of the images; --landmarks yes takes them as points"
        ]
    return []


def resize_images(x: NDArray[Any], spec: ImageSpec) -> NDArray[Any]:  # [N, C, H, W] to [N, C, S, S]
    """Images brought to the frame; those that fit are left as they are."""
    check_image_memory(len(x), spec, itemsize=x.dtype.itemsize)
    height, width = x.shape[2:]
    if height == width == spec.side:
        return np.ascontiguousarray(x)
    short_side = min(height, width)
    left, top = (width - short_side) // 2, (height - short_side) // 2
    box = (0, 0, width, height) if spec.whole else (left, top, left + short_side, top + short_side)
    output = np.empty((*x.shape[:2], spec.side, spec.side), dtype=x.dtype)
    for index in np.ndindex(*x.shape[:2]):
        plane = Image.fromarray(np.ascontiguousarray(x[index]))
        output[index] = np.asarray(plane.resize((spec.side, spec.side), Image.Resampling.BICUBIC, box=box))
    return output
