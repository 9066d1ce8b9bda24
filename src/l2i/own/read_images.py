"""Images of a user's own, of files or of arrays, in a frame chosen from them; and new ones in the same frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.own.pictures import Frame, Told, checked_memory, chosen_side, read_pictures, within
from l2i.own.read_folder import Files
from l2i.own.read_npz import as_images, channels_first, resized
from l2i.own.reading import ReadOptions

LEAST_TARGETS = 4  # numbers that are taken for points by themselves


class Images(NamedTuple):
    """Images in their frame."""

    pixels: NDArray[Any]  # [N, C, S, S], uint8 or float32
    kept: NDArray[np.int64]  # [N], rows that they belong to
    sizes: NDArray[np.int64]  # [N, 2], widths and heights before
    frame: Frame
    notes: tuple[str, ...]


def read_image_files(
    files: Files, options: ReadOptions, targets: NDArray[np.float64] | None, told: Told | None
) -> Images:
    """Image files in a frame that is chosen from them; `targets` [N, D] are numbers that may be points."""

    def choose(places: NDArray[np.int64], sizes: NDArray[np.int64], grey: bool) -> Frame:
        points = _are_points(options, None if targets is None else targets[places], sizes)
        channels = 1 if options.grey == "yes" or (options.grey == "auto" and grey) else 3
        frame = Frame(chosen_side(options.size, sizes, points=points), channels, points)
        checked_memory(len(places), frame)
        return frame

    read = read_pictures(files.paths, files.names, choose, skip=options.skip_unreadable, told=told)
    pixels, frame = read.pixels, read.frame
    if options.grey == "auto" and frame.channels == 3 and _all_grey(pixels):
        pixels, frame = np.ascontiguousarray(pixels[:, :1]), frame._replace(channels=1)
    notes = (*_frame_notes(read.sizes, frame, options), *_point_notes(frame, options, targets), *read.notes)
    return Images(pixels, read.kept, read.sizes, frame, notes)


def read_array_images(x: NDArray[Any], path: Path, options: ReadOptions, targets: NDArray[np.float64] | None) -> Images:
    """Images of an array [N, H, W], [N, C, H, W] or [N, H, W, C]."""
    images = as_images(x, path)
    sizes = _sizes(images)
    points = _are_points(options, targets, sizes)
    frame = Frame(chosen_side(options.size, sizes, points=points), images.shape[1], points)
    moved = ("x is taken as [N, H, W, C]",) if x.ndim == 4 and x.shape[1:] != images.shape[1:] else ()
    notes = (*moved, *_frame_notes(sizes, frame, options), *_point_notes(frame, options, targets))
    return Images(resized(images, frame), np.arange(len(x)), sizes, frame, notes)


def new_array_images(x: NDArray[Any], path: Path, frame: Frame, dtype: str) -> Images:
    """Images of an array like those that a model was trained on."""
    if x.ndim < 3:
        raise InputError(f"{path}: x is {list(x.shape)}, but the model was trained on images; write it as [N, C, H, W]")
    found = channels_first(x, path).shape[1]
    if found != frame.channels:
        raise InputError(f"{path}: images have {found} channels, but the model was trained on {frame.channels}")
    images = as_images(x, path, dtype)
    return Images(resized(images, frame), np.arange(len(x)), _sizes(images), frame, ())


def _sizes(images: NDArray[Any]) -> NDArray[np.int64]:  # [N, 2]
    height, width = images.shape[2:]
    return np.tile(np.array([width, height], dtype=np.int64), (len(images), 1))


def _are_points(options: ReadOptions, targets: NDArray[np.float64] | None, sizes: NDArray[np.int64]) -> bool:
    if options.landmarks == "no":
        return False
    width = 0 if targets is None else targets.shape[1]
    if options.landmarks == "yes":
        if targets is None or width % 2:
            raise InputError("landmarks are pairs of numbers x, y; name an even number of columns by --target")
        return True
    return targets is not None and width >= LEAST_TARGETS and width % 2 == 0 and within(targets, sizes)


def _all_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether the three colours are equal everywhere; image by image, so that memory is not filled."""
    return all((image[0] == image[1]).all() and (image[0] == image[2]).all() for image in pixels)


def _frame_notes(sizes: NDArray[np.int64], frame: Frame, options: ReadOptions) -> list[str]:
    colours = {1: "grey levels", 3: "three colours"}.get(frame.channels, f"{frame.channels} channels")
    if (sizes == frame.side).all():
        return [f"images are {frame.side} × {frame.side} pixels of {colours}"]
    low, high = (f"{width} × {height}" for width, height in (sizes.min(axis=0), sizes.max(axis=0)))
    before = low if low == high else f"{low} to {high}"
    square = (sizes[:, 0] == sizes[:, 1]).all()
    how = "" if square else ", all of them squeezed" if frame.whole else ", their centre square"
    fix = "" if options.size else "; --size chooses another"
    return [f"images of {before} pixels become {frame.side} × {frame.side}{how}, of {colours}{fix}"]


def _point_notes(frame: Frame, options: ReadOptions, targets: NDArray[np.float64] | None) -> list[str]:
    width = 0 if targets is None else targets.shape[1]
    if frame.whole:
        why = ", as all lie within the images; --landmarks no takes them as plain numbers"
        return [f"the targets are {width // 2} points x, y in pixels{'' if options.landmarks == 'yes' else why}"]
    if options.landmarks == "auto" and width >= LEAST_TARGETS and width % 2 == 0:
        return [
            "the targets are plain numbers, as some lie outside of the images; --landmarks yes takes them as points"
        ]
    return []
