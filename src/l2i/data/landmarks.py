"""Faces with five landmarks (AFLW, MTFL, or arrays of one's own) as grey crops of 60×60 pixels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from l2i.data.arrays import read_arrays
from l2i.data.folders import MAX_PIXELS, TooLarge, alone, opened
from l2i.data.limits import leads_within, plain_file
from l2i.data.matlab import read_matrices
from l2i.data.split import Samples
from l2i.errors import InputError

IMM_LIST, MTFL_LIST = "aflw_train_images.txt", "training.txt"
ARCHIVES = ("aflw_release-2", "MTFL")  # the folders that they unpack to
SIZE = 60  # pixels a side
POINTS = 5  # left eye, right eye, nose, left and right mouth corner
FORMATS = ("JPEG", "PNG", "BMP")
IMM = "http://www.robots.ox.ac.uk/~vgg/research/unsupervised_landmarks/resources/aflw_release-2.zip"
MTFL = "http://mmlab.ie.cuhk.edu.hk/projects/TCDCN.html"

# Points are multiplied by 60 / width and 60 / height, as the imm release's own code does; from pixel centre to pixel
# centre they would move by (60 / width - 1) / 2, less than half a pixel, as well.

# MTFL's training images show more than the face, its 2,995 test images are face crops: there the longer side of the
# landmarks' bounding box is on average 1 / 2.82 of the crop's side, and the crop's centre lies right of and below the
# box's by these shares of that longer side. Training faces are cut alike.
CROP_SIDE = 2.82
CROP_OFFSET = (0.044, 0.069)  # x, y


class Face(NamedTuple):
    """A crop and its landmarks."""

    image: np.ndarray  # uint8 [60, 60]
    points: np.ndarray  # [5, 2] as x, y in its pixels


def read_faces(root: str | None) -> tuple[Samples, Samples]:
    """Training and test faces, grey uint8 [N, 1, 60, 60] and points [N, 10], of whichever layout lies in `root`."""
    if found(root, IMM_LIST):
        return read_imm(root)
    return read_mtfl(root) if found(root, MTFL_LIST) else read_npz(root)


def read_imm(root: str | None) -> tuple[Samples, Samples]:
    """AFLW as the imm release lays it out: lists of names, points and sizes in .mat files, images in `output`."""
    folder = holding(root, IMM_LIST).parent
    return imm_split(folder, "train"), imm_split(folder, "test")


def read_mtfl(root: str | None) -> tuple[Samples, Samples]:
    """MTFL as its authors lay it out: a line an image in training.txt and testing.txt."""
    folder = holding(root, MTFL_LIST).parent
    return mtfl_split(folder / "training.txt", cut_face), mtfl_split(folder / "testing.txt", whole_face)


def read_npz(root: str | None) -> tuple[Samples, Samples]:
    """Arrays x_train, x_test uint8 [N, 60, 60] and y_train, y_test [N, 5, 2] in pixels, of an .npz file."""
    path, wanted = holding(root, "faces.npz"), ("x_train", "y_train", "x_test", "y_test")
    try:
        there = read_arrays(path, wanted).arrays
        arrays = [there[name] for name in wanted]
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(
            f"{path} is damaged, or no .npz of plain arrays {', '.join(wanted)} ({type(error).__name__}); "
            "write it with numpy.savez"
        ) from None
    return npz_split(path, *arrays[:2]), npz_split(path, *arrays[2:])


def npz_split(path: Path, x: np.ndarray, y: np.ndarray) -> Samples:
    """One set's arrays, checked."""
    if x.dtype != np.uint8 or x.shape[1:] != (SIZE, SIZE) or not len(x):
        raise InputError(f"{path}: images are {x.dtype} {list(x.shape)}; write them as uint8 [N, {SIZE}, {SIZE}]")
    return samples(x, checked_points(path, y, count=len(x)))


def imm_split(folder: Path, split: str) -> Samples:
    """One list of the imm release: whole images made small."""
    listing = folder / f"aflw_{split}_images.txt"
    paths = [inside(folder / "output", name, listing) for name in lines(listing)]
    points, sizes = keypoints(folder / f"aflw_{split}_keypoints.mat", count=len(paths))
    images = in_threads(lambda path: small(grey(path)), paths)
    return samples(np.stack(images), (points * (SIZE / sizes[:, None]))[..., ::-1])  # y, x turned to x, y


def keypoints(path: Path, *, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points [N, 5, 2] as y, x and sizes [N, 2] as height, width, of the images before they are made small."""
    try:
        fields = read_matrices(path, ("gt", "hw"))
        points, sizes = fields["gt"], np.asarray(fields["hw"], float)
    except InputError:
        raise
    except Exception as error:  # scipy's are of many kinds
        raise InputError(
            f"{path} is missing, damaged, or lacks gt and hw ({type(error).__name__}); unpack {IMM} again"
        ) from None
    if sizes.shape != (count, 2) or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InputError(f"{path}: hw must be a height and width for each of {count} images; unpack {IMM} again")
    return checked_points(path, points, count=count), sizes


def mtfl_split(listing: Path, crop: Callable[[Path, np.ndarray], Face]) -> Samples:
    """One list of MTFL, each image and its points brought to 60×60 by `crop`."""
    rows = [mtfl_row(line, listing) for line in lines(listing)]
    faces = in_threads(lambda row: crop(*row), rows)
    return samples(np.stack([face.image for face in faces]), np.stack([face.points for face in faces]))


def mtfl_row(line: str, listing: Path) -> tuple[Path, np.ndarray]:
    """An image's path and points, of a line `path x1 … x5 y1 … y5 gender smile glasses pose`."""
    name, *numbers = line.rsplit(maxsplit=14)
    try:
        points = np.array(numbers[: 2 * POINTS], float).reshape(2, POINTS).T
    except ValueError:
        points = np.full((POINTS, 2), np.nan)
    if len(numbers) != 14 or not np.isfinite(points).all():
        raise InputError(f"{listing}: {line[:80]!r} is not a path and 14 numbers; get the list from {MTFL} again")
    return inside(listing.parent, name, listing), points


def whole_face(path: Path, points: np.ndarray) -> Face:
    """The whole image made small."""
    image = grey(path)
    return Face(small(image), points * (SIZE / np.array(image.size)))


def cut_face(path: Path, points: np.ndarray) -> Face:
    """The square around the landmarks, the image's border repeated where it reaches beyond."""
    pixels = np.asarray(grey(path))
    low, high = points.min(0), points.max(0)
    extent, centre, shape = (high - low).max(), (low + high) / 2, pixels.shape[::-1]
    side = round(CROP_SIDE * extent)
    if not 1 <= side**2 <= MAX_PIXELS or not ((centre >= 0) & (centre < shape)).all():
        raise InputError(
            f"the landmarks listed for {path} are not those of a face in it; get the list from {MTFL} again"
        )
    corner = np.rint(centre + np.array(CROP_OFFSET) * extent - side / 2).astype(int)
    columns, rows = (np.clip(np.arange(side) + first, 0, last - 1) for first, last in zip(corner, shape, strict=True))
    return Face(small(Image.fromarray(pixels[np.ix_(rows, columns)])), (points - corner) * (SIZE / side))


def grey(path: Path) -> Image.Image:
    """An image file in grey levels."""
    try:
        with opened(path, FORMATS) as image, alone(image):
            return image.convert("L")
    except FileNotFoundError:
        raise InputError(f"{path} is missing, though listed; unpack the archive again") from None
    except TooLarge:
        raise InputError(f"{path} has more than {MAX_PIXELS:,} pixels; shrink it, or take it off the list") from None
    except Exception as error:  # decoders fail in many ways
        raise InputError(f"{path} is no readable image ({type(error).__name__}); unpack the archive again") from None


def small(image: Image.Image) -> np.ndarray:
    """60×60 pixels of an image."""
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """What `work` makes of each item, in order; decoding runs outside of Python's lock."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # odd headers are common; what cannot be decoded is an error
        return list(pool.map(work, items))


def found(root: str | None, name: str) -> Path | None:
    """The file of that name in `root` or in the archive's own folder there; or `root` itself, where it is a file."""
    if root is None:
        return None
    given = Path(root).expanduser()
    places = (given / name, *(given / folder / name for folder in ARCHIVES), given)
    return next((path for path in places if path.suffix == Path(name).suffix and path.is_file()), None)


def holding(root: str | None, name: str) -> Path:
    """The file of that name, which must be there."""
    path = found(root, name)
    if path is not None:
        given = Path(root or "").expanduser()
        return plain_file(path, given if given.is_dir() else None)
    raise InputError(
        f"Faces with landmarks are not there: {'no folder is given' if root is None else f'{root} has no {name}'}. "
        f"Give as --data.root (or in L2I_DATA) the folder of one of: AFLW unpacked from {IMM} ({IMM_LIST} …); "
        f"MTFL unpacked from {MTFL} (training.txt …); a faces.npz of your own with x_train, y_train, x_test, y_test"
    )


def lines(path: Path) -> list[str]:
    """A list's lines without the blank ones; bytes that are no text stay as file names have them."""
    try:
        text = plain_file(path, path.parent).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); unpack the archive again") from None
    listed = [line.strip() for line in text.splitlines() if line.strip()]
    if not listed:
        raise InputError(f"{path} lists no images; unpack the archive again")
    return listed


def inside(folder: Path, name: str, listing: Path) -> Path:
    """The path of a listed file, which may be written the Windows way but must not lead out of the folder."""
    parts = PureWindowsPath(name)
    if parts.anchor or parts.drive or ".." in parts.parts or "\0" in name:
        raise InputError(f"{listing}: {name[:80]!r} leads out of {folder}; get the list from its publisher again")
    path = folder.joinpath(*parts.parts)
    if not leads_within(path, folder):
        raise InputError(f"{path} is a link that leads out of {folder}; put the file itself there")
    return path


def checked_points(path: Path, points: np.ndarray, *, count: int) -> np.ndarray:
    """Landmarks, if there are five for each image."""
    if points.shape != (count, POINTS, 2) or points.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: landmarks are {points.dtype} {list(points.shape)}, where {count} images need numbers "
            f"[{count}, {POINTS}, 2]; see that images and landmarks are of the same set"
        )
    if not np.isfinite(points).all():
        raise InputError(f"{path}: some landmarks are no numbers; correct them or take those faces out")
    return points


def samples(images: np.ndarray, points: np.ndarray) -> Samples:
    """Images [N, 60, 60] and points [N, 5, 2] as tensors."""
    between = np.linalg.norm(points[:, 0] - points[:, 1], axis=1)
    if not between.all():
        raise InputError(f"face {int(np.argmin(between))} has both eyes at one point; correct it or take it out")
    across, down = np.abs(points[:, 0] - points[:, 1]).mean(axis=0)
    if down > across:
        raise InputError("the eyes lie below each other on average: landmarks must be x, y; turn them round")
    targets = points.reshape(len(points), 2 * POINTS).astype(np.float32)
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets))
