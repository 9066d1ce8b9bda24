"""Decode image files to squares of one size, or encode them, a few at a time; show them small."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from l2i.errors import InputError
from l2i.files.digest import hash_content
from l2i.files.images import (
    EmptyImageError,
    ImageTooLargeError,
    crop_center_square,
    decode_image,
    get_upright_size,
    ignore_image_warnings,
    map_in_threads,
    open_image,
    to_rgb,
)
from l2i.files.output import ProgressCallback, ignore_progress, report_progress
from l2i.files.safety import check_regular_file
from l2i.fit.formatting import pluralize
from l2i.fit.readers.features import Encoded, Loaded, encode_images
from l2i.fit.readers.folders import ImageFileList
from l2i.models.frozen_encoder import FrozenEncoder

MIN_SIDE = 4
MAX_THUMBNAIL_SIDE = 96
MAX_UNREADABLE_SHOWN = 3
MAX_FILE_BYTES = 2**28  # of an image to encode, whose content is read as a whole
RowIndices = NDArray[np.int64]  # [N], of the data
Sizes = NDArray[np.int64]  # [N, 2], widths and heights of the original images


class ImageSpec(NamedTuple):
    """What images are brought to."""

    side: int
    channels: int
    whole: bool
    """Whether all of an image is squeezed into the square, for landmarks, or only its centre."""


class Images(NamedTuple):
    """Images that could be read, and which rows they belong to."""

    pixels: NDArray[Any]  # [N, C, S, S], uint8 or float32
    indices: RowIndices
    sizes: Sizes
    spec: ImageSpec
    notes: tuple[str, ...]
    digests: list[str] | None = None
    """Checksums of the images' content, if `pixels` are features [N, F] of an encoder."""
    levels: tuple[float, float] = (0.0, 255.0)
    """Likewise: the values of black and white."""
    encoder: FrozenEncoder | None = None


SpecChooser = Callable[[RowIndices, Sizes, bool], ImageSpec]
"""Chooses a spec from the rows and sizes of readable images, and whether all are grey."""


def decode_image_files(
    files: ImageFileList,
    choose_spec: SpecChooser,
    *,
    skip_unreadable: bool,
    progress: ProgressCallback = ignore_progress,
    encoder: FrozenEncoder | None = None,
) -> Images:
    """Decode all images; raise InputError for unreadable ones, or skip and note them.

    With an encoder, return their features instead of pixels, which are never all in memory.
    """
    pixels: NDArray[Any]
    digests: list[str] | None = None
    paths, names = files
    with ignore_image_warnings():
        headers = map_in_threads(_read_image_header, paths)
        reported = list(enumerate(report_progress(headers, len(paths), "checked", progress)))
        errors = {row: header for row, header in reported if isinstance(header, str)}
        readable = {row: header for row, header in reported if not isinstance(header, str)}
        indices = np.array(list(readable), dtype=np.int64)
        sizes = np.array([header.size for header in readable.values()], dtype=np.int64)
        is_wrong = bool(errors) and not skip_unreadable
        if readable:
            spec = choose_spec(indices, sizes, all(h.is_grey for h in readable.values()))
            readable_paths = [paths[row] for row in readable]
            if encoder is None or is_wrong:  # encoding is slow: only look for what else is wrong
                decoded_spec = spec if encoder is None else spec._replace(side=MIN_SIDE)
                pixels, decode_errors = _decode_all(readable_paths, decoded_spec, progress)
            else:
                encoded = _encode_all(readable_paths, spec, encoder, progress)
                pixels, digests, decode_errors = encoded
            errors |= {int(indices[row]): reason for row, reason in decode_errors.items()}
    if errors and (not skip_unreadable or len(errors) == len(paths)):
        fix = "fix or remove them, or skip them with --skip-unreadable"
        raise InputError(f"{_describe_unreadable(errors, names)}; {fix}")
    if decode_errors:
        decoded = np.setdiff1d(np.arange(len(indices)), list(decode_errors))
        indices, sizes = indices[decoded], sizes[decoded]
        pixels = pixels if encoder is not None else pixels[decoded]
    notes = [f"skipped: {_describe_unreadable(errors, names)}"] if errors else []
    num_animated = sum(header.is_animated for header in readable.values())
    if num_animated:
        animated = pluralize(num_animated, "image is animated", "images are animated")
        notes.append(f"{animated}: only the first frame is used")
    return Images(pixels, indices, sizes, spec, tuple(notes), digests)


def _encode_all(
    paths: Sequence[str], spec: ImageSpec, encoder: FrozenEncoder, progress: ProgressCallback
) -> Encoded:
    def load(row: int, is_known: Callable[[str], bool]) -> Loaded | str:
        try:
            path = check_regular_file(Path(paths[row]))
            if path.stat().st_size > MAX_FILE_BYTES:
                return f"larger than {MAX_FILE_BYTES >> 20} MiB"
            content = path.read_bytes()
        except (OSError, InputError) as error:
            return _describe_image_error(error)
        digest = hash_content(content)
        if is_known(digest):
            return Loaded(digest, None)
        pixels = _decode_image_file(content, spec)
        return pixels if isinstance(pixels, str) else Loaded(digest, pixels)

    return encode_images(len(paths), load, encoder, whole=spec.whole, progress=progress)


def _decode_all(
    paths: Sequence[str], spec: ImageSpec, progress: ProgressCallback
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    pixels = np.zeros((len(paths), spec.channels, spec.side, spec.side), dtype=np.uint8)
    errors: dict[int, str] = {}
    images = map_in_threads(lambda path: _decode_image_file(path, spec), paths)
    for row, image in enumerate(report_progress(images, len(paths), "read", progress)):
        if isinstance(image, str):
            errors[row] = image
        else:
            pixels[row] = image
    return pixels, errors


class _Header(NamedTuple):
    """What is known of an image before it is decoded."""

    size: tuple[int, int]
    """Width and height."""
    is_grey: bool
    is_animated: bool


def _read_image_header(path: str) -> _Header | str:
    """Return what is known of an image, or what is wrong with it."""
    try:
        with open_image(path) as image:
            is_animated = bool(getattr(image, "is_animated", False))
            return _Header(get_upright_size(image), image.mode[0] in "1LI", is_animated)
    except Exception as error:
        return _describe_image_error(error)


def _decode_image_file(
    source: str | bytes, spec: ImageSpec
) -> NDArray[np.uint8] | str:  # [C, S, S]
    """Return the image as a square, or what is wrong with it."""

    def convert(image: Image.Image) -> NDArray[np.uint8]:
        return to_square(_to_eight_bits(image), spec)

    try:
        return decode_image(source, convert, side=spec.side)
    except Exception as error:
        return _describe_image_error(error)


def to_square(image: Image.Image, spec: ImageSpec) -> NDArray[np.uint8]:  # [C, S, S]
    """Return the image as a square: all of it, or its centre."""
    converted = to_rgb(image).convert("RGB" if spec.channels == 3 else "L")
    if spec.whole:
        square = converted.resize((spec.side, spec.side), Image.Resampling.BICUBIC)
    else:
        square = crop_center_square(converted, spec.side)
    return np.atleast_3d(np.asarray(square)).transpose(2, 0, 1)


def _describe_image_error(error: Exception) -> str:
    """Describe why an image cannot be read: decoders raise a dozen kinds of exceptions."""
    if isinstance(error, ImageTooLargeError):
        return str(error)
    if isinstance(error, EmptyImageError):
        return "an empty file"
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return f"damaged: {error}"[:80]


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Return the upper 8 bits of 32-bit grey levels, as which Pillow 10 reads 16-bit ones."""
    if image.mode != "I":
        return image
    values = np.asarray(image)
    if values.max() > 255:
        values = values >> 8
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def _describe_unreadable(errors: dict[int, str], names: Sequence[str]) -> str:
    shown = [f"{names[row]} ({errors[row]})" for row in sorted(errors)[:MAX_UNREADABLE_SHOWN]]
    if len(errors) > MAX_UNREADABLE_SHOWN:
        shown.append("…")
    images = f"{len(errors):,} of {pluralize(len(names), 'image')}"
    return f"{images} cannot be read: {', '.join(shown)}"


def load_thumbnail(path: str) -> NDArray[np.uint8]:
    """Read an image file again, at most as large as a report shows it."""

    def convert(image: Image.Image) -> NDArray[np.uint8]:
        return to_square(image, ImageSpec(min(MAX_THUMBNAIL_SIDE, *image.size), 3, False))

    try:
        return decode_image(path, convert, side=MAX_THUMBNAIL_SIDE)
    except Exception:  # it was readable before
        return np.zeros((3, 1, 1), dtype=np.uint8)


def encode_thumbnail(image: NDArray[Any]) -> str:
    """Encode an image [C, H, W] as a small PNG in base64, stretched to grey levels if need be."""
    levels = image if image.dtype == np.uint8 else _to_grey_levels(image.astype(np.float64))
    pil_image = Image.fromarray(levels.transpose(1, 2, 0) if len(levels) == 3 else levels[0])
    pil_image.thumbnail((MAX_THUMBNAIL_SIDE, MAX_THUMBNAIL_SIDE))
    file = io.BytesIO()
    pil_image.save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def _to_grey_levels(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    low, high = (0.0, 1.0) if image.min() >= 0 and image.max() <= 1 else (image.min(), image.max())
    return ((image - low) * (255 / max(high - low, 1e-300))).round().astype(np.uint8)
