"""Faces with five landmarks (AFLW, MTFL, or your own arrays) as grey crops of 60×60 pixels."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from l2i.data.datasets import translate_read_errors
from l2i.data.samples import DataSet, Samples
from l2i.errors import InputError
from l2i.files.images import (
    MAX_PIXELS,
    ImageTooLargeError,
    decode_image,
    ignore_image_warnings,
    map_in_threads,
)
from l2i.files.npz import read_npz_arrays
from l2i.files.safety import check_memory, check_regular_file, is_within, translate_any_error

IMM_LIST, MTFL_LIST = "aflw_train_images.txt", "training.txt"
ARCHIVE_FOLDERS = ("aflw_release-2", "MTFL")  # that the archives unpack to
IMM_URL = (
    "http://www.robots.ox.ac.uk/~vgg/research/unsupervised_landmarks/resources/aflw_release-2.zip"
)
MTFL_URL = "http://mmlab.ie.cuhk.edu.hk/projects/TCDCN.html"
UNPACK_AGAIN, GET_LIST_AGAIN = (
    "unpack the archive again",
    f"download the list from {MTFL_URL} again",
)
FACE_FORMATS = ("JPEG", "PNG", "BMP")
FACE_SIZE = 60  # pixels per side
SMALL_SIZE = 44  # pixels per side, the smallest that the network for landmarks takes
RESIZE_CHUNK = 1024  # images shrunk at a time
NUM_LANDMARKS = 5  # left eye, right eye, nose, left and right mouth corner
EYE_INDICES = (0, 1)
# Points are scaled by 60 / width and 60 / height, as in the imm release's own code; from pixel
# centre to pixel centre they would also move by (60 / width - 1) / 2, less than half a pixel.

# MTFL's training images show more than the face, its 2,995 test images are face crops: there the
# longer side of the landmarks' bounding box is on average 1 / 2.82 of the crop's side, and the
# crop's centre is right of and below the box's by these fractions of that longer side. Training
# faces are cropped alike.
CROP_SIDE_RATIO = 2.82
CROP_OFFSET_RATIO = (0.044, 0.069)  # x, y

INTEGER_CLASSES = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NUMERIC_CLASSES = frozenset(("double", "single", *INTEGER_CLASSES))
MAT_HEADER_BYTES, MAT_BYTE_ORDERS = 128, {b"IM": "<", b"MI": ">"}
MI_COMPRESSED = 15  # the type of a compressed element
CHUNK_BYTES = 2**16

SplitPair = tuple[Samples, Samples]


class Face(NamedTuple):
    """A crop and its landmarks."""

    image: np.ndarray  # uint8 [60, 60]
    points: np.ndarray  # [5, 2] as x, y in its pixels


def read_faces(root: str | None) -> SplitPair:
    """Read training and test faces of any layout, uint8 [N, 1, 60, 60] with points [N, 10]."""
    if _find_file(root, IMM_LIST):
        return read_imm(root)
    return read_mtfl(root) if _find_file(root, MTFL_LIST) else read_face_arrays(root)


def read_imm(root: str | None) -> SplitPair:
    """Read AFLW in the imm release's layout: lists of names, .mat files of points, images."""
    folder = _require_file(root, IMM_LIST).parent
    return _read_imm_split(folder, "train"), _read_imm_split(folder, "test")


def read_mtfl(root: str | None) -> SplitPair:
    """Read MTFL in its authors' layout: one line per image in training.txt and testing.txt."""
    folder = _require_file(root, MTFL_LIST).parent
    train = _read_mtfl_split(folder / "training.txt", crop_face)
    return train, _read_mtfl_split(folder / "testing.txt", _resize_face)


def read_face_arrays(root: str | None) -> SplitPair:
    """Read x_train, x_test uint8 [N, 60, 60] and y_train, y_test [N, 5, 2] in pixels of an .npz."""
    path, names = _require_file(root, "faces.npz"), ("x_train", "y_train", "x_test", "y_test")
    problem = f"{path} is damaged, or not an .npz of plain arrays {', '.join(names)}"
    with translate_any_error(problem, "write it with numpy.savez"):
        by_name, _ = read_npz_arrays(path, names)
        arrays = [by_name[name] for name in names]
    return _check_npz_split(path, *arrays[:2]), _check_npz_split(path, *arrays[2:])


def _read_small_faces(root: str | None) -> SplitPair:
    """Read faces shrunk to uint8 [N, 1, 44, 44], with points in their pixels, for quick trials."""
    train, test = map(_shrink_faces, read_faces(root))
    return train, test


def _load(read: Callable[[str | None], SplitPair], root: str | None) -> DataSet:
    return DataSet.from_images(*read(root), classes=None, eye_indices=EYE_INDICES)


load_landmarks = partial(_load, read_faces)
load_aflw = partial(_load, read_imm)
load_mtfl = partial(_load, read_mtfl)
load_faces = partial(_load, read_face_arrays)
load_small_faces = partial(_load, _read_small_faces)


def _check_npz_split(path: Path, x: np.ndarray, y: np.ndarray) -> Samples:
    if x.dtype != np.uint8 or x.shape[1:] != (FACE_SIZE, FACE_SIZE) or not len(x):
        fix = f"write them as uint8 [N, {FACE_SIZE}, {FACE_SIZE}]"
        raise InputError(f"{path}: images are {x.dtype} {list(x.shape)}; {fix}")
    return _make_samples(x, _check_landmarks(path, y, count=len(x)))


def _read_imm_split(folder: Path, split: str) -> Samples:
    listing, output = folder / f"aflw_{split}_images.txt", folder / "output"
    paths = [resolve_listed_path(output, name, listing) for name in _read_listing(listing)]
    points, sizes = _read_imm_keypoints(folder / f"aflw_{split}_keypoints.mat", count=len(paths))
    with ignore_image_warnings():
        pixels = list(map_in_threads(lambda path: _resize(read_grayscale(path)), paths))
    points = points * (FACE_SIZE / sizes[:, None])
    return _make_samples(np.stack(pixels), points[..., ::-1])  # y, x turned to x, y


def _read_imm_keypoints(path: Path, *, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Read points [N, 5, 2] as y, x and the images' original sizes [N, 2] as height, width."""
    fix = f"unpack {IMM_URL} again"
    with translate_any_error(f"{path} is missing, damaged, or lacks gt and hw", fix):
        points, sizes = _read_matrices(path, ("gt", "hw"))
        sizes = np.asarray(sizes, float)
    if sizes.shape != (count, 2) or not (np.isfinite(sizes) & (sizes > 0)).all():
        requirement = f"hw must be a height and width for each of {count} images"
        raise InputError(f"{path}: {requirement}; {fix}")
    return _check_landmarks(path, points, count=count), sizes


def _read_matrices(path: Path, names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Read numeric matrices of a .mat file, whose unpacked size is counted before scipy allocates.

    What is wrong with a file is a KeyError, a ValueError, or one of scipy's errors.
    """
    from scipy.io import loadmat, whosmat  # takes a while to import

    check_regular_file(path, path.parent)
    for total in accumulate(_iter_unpacked_sizes(path)):  # a byte there may become 8 bytes here
        check_memory(path, 8 * total, "download it from its publisher again")
    matlab_classes = {name: kind for name, _, kind in whosmat(path)}
    for name in names:
        if matlab_classes[name] not in NUMERIC_CLASSES:
            raise ValueError(f"{name} is not a numeric matrix")
    matrices = loadmat(path, variable_names=list(names))
    return [matrices[name] for name in names]


def _iter_unpacked_sizes(path: Path) -> Iterator[int]:
    with path.open("rb") as file:
        header = file.read(MAT_HEADER_BYTES)
        if 0 in header[:4] or header[-2:] not in MAT_BYTE_ORDERS:  # version 4 packs nothing
            yield os.fstat(file.fileno()).st_size
            return
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{MAT_BYTE_ORDERS[header[-2:]]}II", tag)
            if kind != MI_COMPRESSED:
                file.seek(size, os.SEEK_CUR)
                yield size
                continue
            unpacker = zlib.decompressobj()
            while size > 0 and (compressed := file.read(min(size, CHUNK_BYTES))):
                size -= len(compressed)
                while compressed:
                    yield len(unpacker.decompress(compressed, 2**20))
                    compressed = unpacker.unconsumed_tail


def _read_mtfl_split(listing: Path, crop: Callable[[Path, np.ndarray], Face]) -> Samples:
    """Read one list of MTFL; `crop` brings each image and its points to 60×60 pixels."""
    rows = [_parse_mtfl_line(line, listing) for line in _read_listing(listing)]
    with ignore_image_warnings():
        faces = list(map_in_threads(lambda row: crop(*row), rows))
    images, points = (np.stack(arrays) for arrays in zip(*faces, strict=True))
    return _make_samples(images, points)


def _parse_mtfl_line(line: str, listing: Path) -> tuple[Path, np.ndarray]:
    """Parse a line `path x1 … x5 y1 … y5 gender smile glasses pose`."""
    name, *numbers = line.rsplit(maxsplit=14)
    try:
        points = np.array(numbers[: 2 * NUM_LANDMARKS], float).reshape(2, NUM_LANDMARKS).T
    except ValueError:
        points = np.full((NUM_LANDMARKS, 2), np.nan)
    if len(numbers) != 14 or not np.isfinite(points).all():
        problem = f"{line[:80]!r} is not a path and 14 numbers"
        raise InputError(f"{listing}: {problem}; {GET_LIST_AGAIN}")
    return resolve_listed_path(listing.parent, name, listing), points


def _resize_face(path: Path, points: np.ndarray) -> Face:
    image = read_grayscale(path)
    return Face(_resize(image), points * (FACE_SIZE / np.array(image.size)))


def crop_face(path: Path, points: np.ndarray) -> Face:
    """Crop the square around the landmarks, repeating the image's border beyond it."""
    pixels = np.asarray(read_grayscale(path))
    low, high = points.min(0), points.max(0)
    extent, centre, shape = (high - low).max(), (low + high) / 2, pixels.shape[::-1]
    side = round(CROP_SIDE_RATIO * extent)
    if not 1 <= side**2 <= MAX_PIXELS or not ((centre >= 0) & (centre < shape)).all():
        problem = f"the landmarks listed for {path} do not match a face in it"
        raise InputError(f"{problem}; {GET_LIST_AGAIN}")
    corner = np.rint(centre + np.array(CROP_OFFSET_RATIO) * extent - side / 2).astype(int)
    columns, rows = (
        np.clip(np.arange(side) + first, 0, last - 1)
        for first, last in zip(corner, shape, strict=True)
    )
    image = _resize(Image.fromarray(pixels[np.ix_(rows, columns)]))
    return Face(image, (points - corner) * (FACE_SIZE / side))


def read_grayscale(path: Path) -> Image.Image:
    """Decode a listed image file as grey levels."""
    with translate_any_error(f"{path} is not a readable image", UNPACK_AGAIN):
        try:
            return decode_image(path, lambda image: image.convert("L"), formats=FACE_FORMATS)
        except FileNotFoundError:
            raise InputError(f"{path} is listed but missing; {UNPACK_AGAIN}") from None
        except ImageTooLargeError:
            limit, fix = f"{MAX_PIXELS:,} pixels", "downscale it, or remove it from the list"
            raise InputError(f"{path} has more than {limit}; {fix}") from None


def _resize(image: Image.Image) -> np.ndarray:
    return np.asarray(image.resize((FACE_SIZE, FACE_SIZE), Image.Resampling.BILINEAR))


def _shrink_faces(samples: Samples) -> Samples:
    """Shrink faces and their points, averaging what a pixel covers."""
    assert isinstance(samples.x, Tensor)
    shrink = partial(interpolate, size=(SMALL_SIZE, SMALL_SIZE), mode="bilinear", antialias=True)
    chunks = samples.x.split(RESIZE_CHUNK)
    small = torch.cat([shrink(chunk.float()).round().to(torch.uint8) for chunk in chunks])
    return Samples(small, samples.y * (SMALL_SIZE / FACE_SIZE))


def _find_file(root: str | None, name: str) -> Path | None:
    """Return the file in `root` or in the archive's own folder there, or `root` itself."""
    if root is None:
        return None
    base, suffix = Path(root).expanduser(), Path(name).suffix
    candidates = (base / name, *(base / folder / name for folder in ARCHIVE_FOLDERS), base)
    return next((path for path in candidates if path.suffix == suffix and path.is_file()), None)


def _require_file(root: str | None, name: str) -> Path:
    path = _find_file(root, name)
    if path is not None:
        base = Path(root or "").expanduser()
        return check_regular_file(path, base if base.is_dir() else None)
    reason = "no folder was given" if root is None else f"{root} has no {name}"
    raise InputError(
        f"Faces with landmarks were not found: {reason}. Set --data.root or L2I_DATA to the "
        f"folder of one of: AFLW unpacked from {IMM_URL} ({IMM_LIST} …); "
        f"MTFL unpacked from {MTFL_URL} (training.txt …); "
        "a faces.npz of your own with x_train, y_train, x_test, y_test"
    )


def _read_listing(path: Path) -> list[str]:
    """Read the non-blank lines of a list; bytes that are not text are kept, as in file names."""
    with translate_read_errors(path):
        check_regular_file(path, path.parent)
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    entries = [line.strip() for line in text.splitlines() if line.strip()]
    if not entries:
        raise InputError(f"{path} lists no images; {UNPACK_AGAIN}")
    return entries


def resolve_listed_path(folder: Path, name: str, listing: Path) -> Path:
    """Return the path of a listed file, which may be a Windows one but must stay in the folder."""
    parts = PureWindowsPath(name)
    if parts.anchor or parts.drive or ".." in parts.parts or "\0" in name:
        fix = "download the list from its publisher again"
        raise InputError(f"{listing}: {name[:80]!r} is outside {folder}; {fix}")
    path = folder.joinpath(*parts.parts)
    if not is_within(path, folder):
        raise InputError(f"{path} is a link that points outside {folder}; replace it with the file")
    return path


def _check_landmarks(path: Path, points: np.ndarray, *, count: int) -> np.ndarray:
    if points.shape != (count, NUM_LANDMARKS, 2) or points.dtype.kind not in "fiu":
        needed = f"{count} images need numbers [{count}, {NUM_LANDMARKS}, 2]"
        problem = f"landmarks are {points.dtype} {list(points.shape)}, but {needed}"
        fix = "check that images and landmarks belong together"
        raise InputError(f"{path}: {problem}; {fix}")
    if not np.isfinite(points).all():
        fix = "fix them, or remove those faces"
        raise InputError(f"{path}: some landmarks are NaN or infinite; {fix}")
    return points


def _make_samples(images: np.ndarray, points: np.ndarray) -> Samples:
    eyes = points[:, 0] - points[:, 1]  # of images [N, 60, 60] and points [N, 5, 2]
    distances = np.linalg.norm(eyes, axis=1)
    if not distances.all():
        face = int(np.argmin(distances))
        raise InputError(f"face {face} has both eyes at the same point; fix or remove it")
    mean_dx, mean_dy = np.abs(eyes).mean(axis=0)
    if mean_dy > mean_dx:
        fix = "landmarks must be x, y; swap them"
        raise InputError(f"on average the eyes lie one above the other: {fix}")
    targets = points.reshape(len(points), 2 * NUM_LANDMARKS).astype(np.float32)
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets))
