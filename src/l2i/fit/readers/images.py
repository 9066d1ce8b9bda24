"""Bring images, of files or of arrays, to squares of one size chosen from them, and points along.

New images are brought to the size that the model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from l2i.errors import InputError
from l2i.files.digest import hash_arrays
from l2i.files.output import ProgressCallback, ignore_progress
from l2i.fit.formatting import pluralize
from l2i.fit.options import ReadOptions
from l2i.fit.readers.features import Loaded, encode_images
from l2i.fit.readers.folders import ImageFileList
from l2i.fit.readers.image_files import (
    MIN_SIDE,
    Images,
    ImageSpec,
    RowIndices,
    Sizes,
    decode_image_files,
    to_square,
)
from l2i.fit.readers.npz import COLOR_CHANNELS, to_channels_first, to_image_array
from l2i.models.frozen_encoder import FrozenEncoder, load_frozen_encoder
from l2i.models.huggingface import translate_weights_errors

IMAGE_SIDES = (8, 16, 24, 32, 48, 64)
MAX_DEFAULT_SIDE, LANDMARK_SIDE = 32, 60
MAX_IMAGE_BYTES = 4 * 2**30
MIN_POINT_TARGETS = 4  # fewer numbers are not taken for points unless asked to
Numbers = NDArray[np.float64]  # [N, D], targets, maybe points x1 y1 x2 y2 …


class EncoderChoice(NamedTuple):
    """A frozen encoder to read images with."""

    name: str
    is_default: bool
    """Whether it is taken as it is installed; a user who names one insists on it."""


def open_encoder(
    choice: EncoderChoice | None, options: ReadOptions, targets: Numbers | None, channels: int = 3
) -> FrozenEncoder | None:
    """Load the encoder to read images with; None if they are read as pixels.

    Landmarks need to know where things are, which features of whole images do not tell.
    """
    if choice is None:
        return None
    may_be_points = targets is not None and _may_be_points(targets.shape[1])
    are_points = options.landmarks != "no" and (may_be_points or options.landmarks == "yes")
    if choice.is_default and (are_points or channels not in COLOR_CHANNELS):
        return None
    if channels not in COLOR_CHANNELS:
        problem = f"images of {channels} channels do not suit an encoder of colour images"
        raise InputError(f"{problem}; use --encoder none")
    if options.grey != "auto":
        problem = "--grey applies to networks that are trained on pixels"
        raise InputError(f"{problem}; remove it, or add --encoder none")
    with translate_weights_errors(choice.name):
        return load_frozen_encoder(choice.name, options.size)


def read_image_files(
    files: ImageFileList,
    options: ReadOptions,
    targets: Numbers | None,
    progress: ProgressCallback,
    choice: EncoderChoice | None = None,
) -> Images:
    """Read image files at a size chosen from them and their targets, or as features."""
    skip = options.skip_unreadable
    encoder = open_encoder(choice, options, targets)
    if encoder is not None:

        def choose_encoder_spec(rows: RowIndices, sizes: Sizes, all_grey: bool) -> ImageSpec:
            readable = None if targets is None else targets[rows]
            return ImageSpec(encoder.side, 3, _targets_are_points(options, readable, sizes))

        encoded = decode_image_files(
            files, choose_encoder_spec, skip_unreadable=skip, progress=progress, encoder=encoder
        )
        notes = (*_describe_encoding(encoded, encoder), *encoded.notes)
        return encoded._replace(notes=notes, encoder=encoder)

    def choose_spec(rows: RowIndices, sizes: Sizes, all_grey: bool) -> ImageSpec:
        channels = 1 if options.grey == "yes" or (options.grey == "auto" and all_grey) else 3
        readable_targets = None if targets is None else targets[rows]
        spec = _choose_spec(options, readable_targets, sizes, channels)
        check_image_memory(len(rows), spec)
        return spec

    images = decode_image_files(files, choose_spec, skip_unreadable=skip, progress=progress)
    pixels, spec = images.pixels, images.spec
    if options.grey == "auto" and spec.channels == 3 and _is_all_grey(pixels):
        pixels, spec = np.ascontiguousarray(pixels[:, :1]), spec._replace(channels=1)
    notes = (*_describe_images(images.sizes, spec, options, targets), *images.notes)
    return images._replace(pixels=pixels, spec=spec, notes=notes)


def read_array_images(
    x: NDArray[Any],
    path: Path,
    options: ReadOptions,
    targets: Numbers | None,
    progress: ProgressCallback = ignore_progress,
    choice: EncoderChoice | None = None,
) -> Images:
    """Read images of an array [N, H, W], [N, C, H, W] or [N, H, W, C], as `read_image_files`."""
    pixels = to_image_array(x, path)
    sizes = _get_array_sizes(pixels)
    encoder = open_encoder(choice, options, targets, pixels.shape[1])
    if encoder is not None:
        spec = ImageSpec(encoder.side, 3, _targets_are_points(options, targets, sizes))
        levels = (float(pixels.min()), float(pixels.max()))
        images = encode_array_images(pixels, sizes, spec, encoder, levels, progress)
        return images._replace(notes=tuple(_describe_encoding(images, encoder)), encoder=encoder)
    spec = _choose_spec(options, targets, sizes, pixels.shape[1])
    notes = _describe_images(sizes, spec, options, targets)
    if x.ndim == 4 and x.shape[1:] != pixels.shape[1:]:
        notes.insert(0, "x is interpreted as [N, H, W, C]")
    return Images(_resize_images(pixels, spec, path), np.arange(len(x)), sizes, spec, tuple(notes))


def encode_array_images(
    pixels: NDArray[Any],
    sizes: Sizes,
    spec: ImageSpec,
    encoder: FrozenEncoder,
    levels: tuple[float, float],
    progress: ProgressCallback,
) -> Images:
    """Encode images [N, C, H, W]; those of other than 8 bits are stretched between `levels`."""
    low, high = (0.0, 255.0) if pixels.dtype == np.uint8 else levels

    def load(row: int, is_known: Callable[[str], bool]) -> Loaded | str:
        digest = hash_arrays(pixels[row], np.array([low, high]))
        if is_known(digest):
            return Loaded(digest, None)
        grey_levels = (pixels[row].astype(np.float64) - low) * (255 / (high - low or 1.0))
        planes = grey_levels.round().clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        image = Image.fromarray(planes if planes.shape[2] == 3 else planes[:, :, 0])
        return Loaded(digest, to_square(image, spec))

    encoded = encode_images(len(pixels), load, encoder, whole=spec.whole, progress=progress)
    rows = np.arange(len(pixels))
    return Images(encoded.features, rows, sizes, spec, (), encoded.digests, (low, high))


def read_new_array_images(
    x: NDArray[Any],
    path: Path,
    spec: ImageSpec,
    dtype: str,
    encoder: FrozenEncoder | None = None,
    levels: tuple[float, float] = (0.0, 255.0),
) -> Images:
    """Read images of an array like those that a model was trained on."""
    if x.ndim < 3:
        problem = f"x is {list(x.shape)}, but the model was trained on images"
        raise InputError(f"{path}: {problem}; write it as [N, C, H, W]")
    if encoder is not None:
        pixels = to_image_array(x, path, dtype)
        sizes = _get_array_sizes(pixels)
        if pixels.shape[1] not in COLOR_CHANNELS:
            problem = f"x has {pixels.shape[1]} channels, which the encoder does not take"
            raise InputError(f"{path}: {problem}; convert the images")
        return encode_array_images(pixels, sizes, spec, encoder, levels, ignore_progress)
    num_channels = to_channels_first(x, path).shape[1]
    if num_channels != spec.channels:
        problem = f"x has {pluralize(num_channels, 'channel')}, but the model was trained on"
        raise InputError(f"{path}: {problem} {spec.channels}; convert the images")
    pixels = to_image_array(x, path, dtype)
    sizes = _get_array_sizes(pixels)
    return Images(_resize_images(pixels, spec, path), np.arange(len(x)), sizes, spec, ())


def _get_array_sizes(images: NDArray[Any]) -> Sizes:  # [N, 2]
    height, width = images.shape[2:]
    return np.tile(np.array([width, height], dtype=np.int64), (len(images), 1))


def _resize_images(x: NDArray[Any], spec: ImageSpec, path: Path) -> NDArray[Any]:  # [N, C, S, S]
    """Resize images [N, C, H, W]; those of the right size stay as they are."""
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
        resized = plane.resize((spec.side, spec.side), Image.Resampling.BICUBIC, box=box)
        output[index] = np.asarray(resized)
    if not np.isfinite(output).all():  # bicubic resizing overshoots
        raise InputError(f"{path}: x contains values too large to resize; rescale them")
    return output


def _choose_spec(
    options: ReadOptions, targets: Numbers | None, sizes: Sizes, channels: int
) -> ImageSpec:
    are_points = _targets_are_points(options, targets, sizes)
    return ImageSpec(choose_side(options.size, sizes, points=are_points), channels, are_points)


def choose_side(size: int, sizes: Sizes, *, points: bool) -> int:
    """Return the requested side, or the supported one nearest to the median shorter side."""
    if size:
        if size < MIN_SIDE:
            fix = f"use {MIN_SIDE} or more, or 0 to choose from the data"
            raise InputError(f"--size {size} is too small for an image; {fix}")
        return size
    if points:
        return LANDMARK_SIDE
    median = float(np.median(sizes.min(axis=1)))
    sides = [side for side in IMAGE_SIDES if side <= MAX_DEFAULT_SIDE]
    return min(sides, key=lambda side: (abs(side - median), -side))


def check_image_memory(count: int, spec: ImageSpec, *, itemsize: int = 1) -> None:
    """Check that `count` images, of `itemsize` bytes per value, fit in memory."""

    def count_bytes(side: int) -> int:
        return count * spec.channels * itemsize * side**2

    if count_bytes(spec.side) <= MAX_IMAGE_BYTES:
        return
    fitting = [s for s in IMAGE_SIDES if s < spec.side and count_bytes(s) <= MAX_IMAGE_BYTES]
    hint = f"use --size {fitting[-1]} or less" if fitting else "use fewer images"
    memory, size = f"{count_bytes(spec.side) / 2**30:.1f} GiB", f"{spec.side} × {spec.side}"
    raise InputError(f"{count:,} images of {size} pixels would take {memory}; {hint}")


def points_to_square(points: NDArray[Any], sizes: Sizes, side: int) -> Numbers:
    """Convert points from pixels of the original images to pixels of squares of `side`."""
    return (points.reshape(len(points), -1, 2) * (side / sizes[:, None])).reshape(points.shape)


def points_from_square(points: NDArray[Any], sizes: Sizes, side: int) -> Numbers:
    """Invert `points_to_square`."""
    return (points.reshape(len(points), -1, 2) * (sizes[:, None] / side)).reshape(points.shape)


def _targets_are_points(options: ReadOptions, targets: Numbers | None, sizes: Sizes) -> bool:
    num_values = 0 if targets is None else targets.shape[1]
    if options.landmarks == "yes":
        if not num_values or num_values % 2:
            fix = "name an even number of columns with --target"
            raise InputError(f"landmarks are pairs of coordinates x, y; {fix}")
        return True
    if options.landmarks == "no" or targets is None or not _may_be_points(num_values):
        return False
    points = targets.reshape(len(targets), -1, 2)
    is_inside = (points >= 0) & (points <= sizes[:, None])
    return bool((is_inside | np.isnan(points)).all())


def _may_be_points(num_values: int) -> bool:
    return num_values >= MIN_POINT_TARGETS and num_values % 2 == 0


def _is_all_grey(pixels: NDArray[np.uint8]) -> bool:
    """Return whether the three colours are equal, image by image so as not to fill the memory."""
    return all((image[0] == image[1]).all() and (image[0] == image[2]).all() for image in pixels)


def _describe_images(
    sizes: Sizes, spec: ImageSpec, options: ReadOptions, targets: Numbers | None
) -> list[str]:
    """Note how images are resized, and whether their targets are points."""
    notes = [_describe_resize(sizes, spec, options)]
    num_values = 0 if targets is None else targets.shape[1]
    if spec.whole:
        reason = ", as all lie within the images; use --landmarks no for plain numbers"
        reason = "" if options.landmarks == "yes" else reason
        landmarks = pluralize(num_values // 2, "landmark")
        notes.append(f"the targets are {landmarks} x, y in pixels{reason}")
    elif options.landmarks == "auto" and _may_be_points(num_values):
        reason = "as some lie outside the images; use --landmarks yes for landmarks"
        notes.append(f"the targets are plain numbers, {reason}")
    return notes


def _describe_resize(sizes: Sizes, spec: ImageSpec, options: ReadOptions) -> str:
    colours = {1: "greyscale", 3: "RGB"}.get(spec.channels, f"{spec.channels} channels")
    new_size = f"{spec.side} × {spec.side}"
    if (sizes == spec.side).all():
        return f"images are {new_size} pixels, {colours}"
    low, high = (f"{width} × {height}" for width, height in (sizes.min(axis=0), sizes.max(axis=0)))
    old_size = low if low == high else f"{low} to {high}"
    mode = " (stretched)" if spec.whole else " (centre crop)"
    mode = "" if (sizes[:, 0] == sizes[:, 1]).all() else mode
    hint = "" if options.size else "; --size sets another size"
    return f"images of {old_size} pixels are resized to {new_size}{mode}, {colours}{hint}"


def _describe_encoding(images: Images, encoder: FrozenEncoder) -> list[str]:
    """Note what images were encoded by, and how they were resized for it."""
    sizes, side = images.sizes, encoder.side
    low, high = (f"{width} × {height}" for width, height in (sizes.min(axis=0), sizes.max(axis=0)))
    old_size = low if low == high else f"{low} to {high}"
    mode = "stretched" if images.spec.whole else "centre crop"
    is_square = (sizes[:, 0] == sizes[:, 1]).all()
    resized = f"{side} × {side} pixels" + ("" if is_square else f" ({mode})")
    return [f"images of {old_size} pixels are encoded by {encoder.name}, frozen, at {resized}"]
