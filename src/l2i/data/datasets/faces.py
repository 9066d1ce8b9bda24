"""Matrices out of MATLAB's .mat files, which are packed: unpacked bit by bit and counted, before scipy makes room.

MERGED:
Faces with five landmarks (AFLW, MTFL, or arrays of one's own) as grey crops of 60×60 pixels.

MERGED:
Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.

"""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PureWindowsPath
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from l2i.data.samples import DataSet, Samples, load_in_memory
from l2i.errors import InputError
from l2i.files.images import MAX_PIXELS, ImageTooLargeError, lock_large_image, open_image
from l2i.files.npz import read_npz_arrays
from l2i.files.safety import check_memory, check_regular_file, is_within

NUMERIC_CLASSES = ("double", "single", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
HEADER_BYTES, BYTE_ORDERS = 128, {b"IM": "<", b"MI": ">"}
MI_COMPRESSED = 15  # the kind of an element that is compressed
CHUNK_BYTES = 2**16


def read_matrices(path: Path, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The matrices of these names; a KeyError, ValueError or one of scipy's where they are not there as numbers."""
    from scipy.io import loadmat, whosmat  # takes a while to import

    check_regular_file(path, path.parent)
    total = 0
    for size in iter_unpacked_sizes(path):
        total += size
        check_memory(path, 8 * total, "get it from its publisher again")  # a byte there may be a number of 8 here
    matlab_classes = {name: kind for name, _, kind in whosmat(path)}
    for name in names:
        if matlab_classes[name] not in NUMERIC_CLASSES:
            raise ValueError(f"{name} is no matrix of numbers")
    matrices = loadmat(path, variable_names=list(names))
    return {name: matrices[name] for name in names}


def iter_unpacked_sizes(path: Path) -> Iterator[int]:
    """How many bytes a file unpacks to, piece by piece."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if 0 in header[:4] or header[-2:] not in BYTE_ORDERS:  # version 4, which packs nothing
            yield os.fstat(file.fileno()).st_size
            return
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{BYTE_ORDERS[header[-2:]]}II", tag)
            if kind == MI_COMPRESSED:
                yield from iter_inflated_sizes(file, size)
            else:
                file.seek(size, os.SEEK_CUR)
                yield size


def iter_inflated_sizes(file: IO[bytes], size: int) -> Iterator[int]:
    """How many bytes the next ones of a file are when unpacked."""
    unpacker = zlib.decompressobj()
    while size > 0 and (compressed := file.read(min(size, CHUNK_BYTES))):
        size -= len(compressed)
        while compressed:
            yield len(unpacker.decompress(compressed, 2**20))
            compressed = unpacker.unconsumed_tail


IMM_LIST, MTFL_LIST = "aflw_train_images.txt", "training.txt"
ARCHIVE_FOLDERS = ("aflw_release-2", "MTFL")  # the folders that they unpack to
FACE_SIZE = 60  # pixels a side
NUM_LANDMARKS = 5  # left eye, right eye, nose, left and right mouth corner
FACE_FORMATS = ("JPEG", "PNG", "BMP")
IMM_URL = "http://www.robots.ox.ac.uk/~vgg/research/unsupervised_landmarks/resources/aflw_release-2.zip"
MTFL_URL = "http://mmlab.ie.cuhk.edu.hk/projects/TCDCN.html"
# Points are multiplied by 60 / width and 60 / height, as the imm release's own code does; from pixel centre to pixel
# centre they would move by (60 / width - 1) / 2, less than half a pixel, as well.

# MTFL's training images show more than the face, its 2,995 test images are face crops: there the longer side of the
# landmarks' bounding box is on average 1 / 2.82 of the crop's side, and the crop's centre lies right of and below the
# box's by these shares of that longer side. Training faces are cut alike.
CROP_SIDE_RATIO = 2.82
CROP_OFFSET_RATIO = (0.044, 0.069)  # x, y


class Face(NamedTuple):
    """A crop and its landmarks."""

    image: np.ndarray  # uint8 [60, 60]
    points: np.ndarray  # [5, 2] as x, y in its pixels


def read_faces(root: str | None) -> tuple[Samples, Samples]:
    """Training and test faces, grey uint8 [N, 1, 60, 60] and points [N, 10], of whichever layout lies in `root`."""
    if find_face_file(root, IMM_LIST):
        return read_imm(root)
    return read_mtfl(root) if find_face_file(root, MTFL_LIST) else read_npz(root)


def read_imm(root: str | None) -> tuple[Samples, Samples]:
    """AFLW as the imm release lays it out: lists of names, points and sizes in .mat files, images in `output`."""
    folder = require_face_file(root, IMM_LIST).parent
    return read_imm_split(folder, "train"), read_imm_split(folder, "test")


def read_mtfl(root: str | None) -> tuple[Samples, Samples]:
    """MTFL as its authors lay it out: a line an image in training.txt and testing.txt."""
    folder = require_face_file(root, MTFL_LIST).parent
    return read_mtfl_split(folder / "training.txt", crop_face), read_mtfl_split(folder / "testing.txt", resize_face)


def read_npz(root: str | None) -> tuple[Samples, Samples]:
    """Arrays x_train, x_test uint8 [N, 60, 60] and y_train, y_test [N, 5, 2] in pixels, of an .npz file."""
    path, names = require_face_file(root, "faces.npz"), ("x_train", "y_train", "x_test", "y_test")
    try:
        by_name = read_npz_arrays(path, names).arrays
        arrays = [by_name[name] for name in names]
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways, all meaning the same
        raise InputError(
            f"{path} is damaged, or no .npz of plain arrays {', '.join(names)} ({type(error).__name__}); "
            "write it with numpy.savez"
        ) from None
    return make_npz_samples(path, *arrays[:2]), make_npz_samples(path, *arrays[2:])


def make_npz_samples(path: Path, x: np.ndarray, y: np.ndarray) -> Samples:
    """One set's arrays, checked."""
    if x.dtype != np.uint8 or x.shape[1:] != (FACE_SIZE, FACE_SIZE) or not len(x):
        raise InputError(f"{path}: images are {x.dtype} {list(x.shape)}; write them as uint8 [N, {FACE_SIZE}, {FACE_SIZE}]")
    return make_face_samples(x, check_landmarks(path, y, count=len(x)))


def read_imm_split(folder: Path, split: str) -> Samples:
    """One list of the imm release: whole images made small."""
    listing = folder / f"aflw_{split}_images.txt"
    paths = [resolve_listed_path(folder / "output", name, listing) for name in read_listing(listing)]
    points, sizes = read_imm_keypoints(folder / f"aflw_{split}_keypoints.mat", count=len(paths))
    images = map_in_threads(lambda path: resize_to_face(read_grayscale(path)), paths)
    return make_face_samples(np.stack(images), (points * (FACE_SIZE / sizes[:, None]))[..., ::-1])  # y, x turned to x, y


def read_imm_keypoints(path: Path, *, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points [N, 5, 2] as y, x and sizes [N, 2] as height, width, of the images before they are made small."""
    try:
        fields = read_matrices(path, ("gt", "hw"))
        points, sizes = fields["gt"], np.asarray(fields["hw"], float)
    except InputError:
        raise
    except Exception as error:  # scipy's are of many kinds
        raise InputError(
            f"{path} is missing, damaged, or lacks gt and hw ({type(error).__name__}); unpack {IMM_URL} again"
        ) from None
    if sizes.shape != (count, 2) or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InputError(f"{path}: hw must be a height and width for each of {count} images; unpack {IMM_URL} again")
    return check_landmarks(path, points, count=count), sizes


def read_mtfl_split(listing: Path, crop: Callable[[Path, np.ndarray], Face]) -> Samples:
    """One list of MTFL, each image and its points brought to 60×60 by `crop`."""
    rows = [parse_mtfl_line(line, listing) for line in read_listing(listing)]
    faces = map_in_threads(lambda row: crop(*row), rows)
    return make_face_samples(np.stack([face.image for face in faces]), np.stack([face.points for face in faces]))


def parse_mtfl_line(line: str, listing: Path) -> tuple[Path, np.ndarray]:
    """An image's path and points, of a line `path x1 … x5 y1 … y5 gender smile glasses pose`."""
    name, *numbers = line.rsplit(maxsplit=14)
    try:
        points = np.array(numbers[: 2 * NUM_LANDMARKS], float).reshape(2, NUM_LANDMARKS).T
    except ValueError:
        points = np.full((NUM_LANDMARKS, 2), np.nan)
    if len(numbers) != 14 or not np.isfinite(points).all():
        raise InputError(f"{listing}: {line[:80]!r} is not a path and 14 numbers; get the list from {MTFL_URL} again")
    return resolve_listed_path(listing.parent, name, listing), points


def resize_face(path: Path, points: np.ndarray) -> Face:
    """The whole image made small."""
    image = read_grayscale(path)
    return Face(resize_to_face(image), points * (FACE_SIZE / np.array(image.size)))


def crop_face(path: Path, points: np.ndarray) -> Face:
    """The square around the landmarks, the image's border repeated where it reaches beyond."""
    pixels = np.asarray(read_grayscale(path))
    low, high = points.min(0), points.max(0)
    extent, centre, shape = (high - low).max(), (low + high) / 2, pixels.shape[::-1]
    side = round(CROP_SIDE_RATIO * extent)
    if not 1 <= side**2 <= MAX_PIXELS or not ((centre >= 0) & (centre < shape)).all():
        raise InputError(
            f"the landmarks listed for {path} are not those of a face in it; get the list from {MTFL_URL} again"
        )
    corner = np.rint(centre + np.array(CROP_OFFSET_RATIO) * extent - side / 2).astype(int)
    columns, rows = (np.clip(np.arange(side) + first, 0, last - 1) for first, last in zip(corner, shape, strict=True))
    return Face(resize_to_face(Image.fromarray(pixels[np.ix_(rows, columns)])), (points - corner) * (FACE_SIZE / side))


def read_grayscale(path: Path) -> Image.Image:
    """An image file in grey levels."""
    try:
        with open_image(path, FACE_FORMATS) as image, lock_large_image(image):
            return image.convert("L")
    except FileNotFoundError:
        raise InputError(f"{path} is missing, though listed; unpack the archive again") from None
    except ImageTooLargeError:
        raise InputError(f"{path} has more than {MAX_PIXELS:,} pixels; shrink it, or take it off the list") from None
    except Exception as error:  # decoders fail in many ways
        raise InputError(f"{path} is no readable image ({type(error).__name__}); unpack the archive again") from None


def resize_to_face(image: Image.Image) -> np.ndarray:
    """60×60 pixels of an image."""
    return np.asarray(image.resize((FACE_SIZE, FACE_SIZE), Image.Resampling.BILINEAR))


def map_in_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """What `work` makes of each item, in order; decoding runs outside of Python's lock."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # odd headers are common; what cannot be decoded is an error
        return list(pool.map(function, items))


def find_face_file(root: str | None, name: str) -> Path | None:
    """The file of that name in `root` or in the archive's own folder there; or `root` itself, where it is a file."""
    if root is None:
        return None
    root_path = Path(root).expanduser()
    candidates = (root_path / name, *(root_path / folder / name for folder in ARCHIVE_FOLDERS), root_path)
    return next((path for path in candidates if path.suffix == Path(name).suffix and path.is_file()), None)


def require_face_file(root: str | None, name: str) -> Path:
    """The file of that name, which must be there."""
    path = find_face_file(root, name)
    if path is not None:
        root_path = Path(root or "").expanduser()
        return check_regular_file(path, root_path if root_path.is_dir() else None)
    raise InputError(
        f"Faces with landmarks are not there: {'no folder is given' if root is None else f'{root} has no {name}'}. "
        f"Give as --data.root (or in L2I_DATA) the folder of one of: AFLW unpacked from {IMM_URL} ({IMM_LIST} …); "
        f"MTFL unpacked from {MTFL_URL} (training.txt …); a faces.npz of your own with x_train, y_train, x_test, y_test"
    )


def read_listing(path: Path) -> list[str]:
    """A list's lines without the blank ones; bytes that are no text stay as file names have them."""
    try:
        text = check_regular_file(path, path.parent).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); unpack the archive again") from None
    entries = [line.strip() for line in text.splitlines() if line.strip()]
    if not entries:
        raise InputError(f"{path} lists no images; unpack the archive again")
    return entries


def resolve_listed_path(folder: Path, name: str, listing: Path) -> Path:
    """The path of a listed file, which may be written the Windows way but must not lead out of the folder."""
    parts = PureWindowsPath(name)
    if parts.anchor or parts.drive or ".." in parts.parts or "\0" in name:
        raise InputError(f"{listing}: {name[:80]!r} leads out of {folder}; get the list from its publisher again")
    path = folder.joinpath(*parts.parts)
    if not is_within(path, folder):
        raise InputError(f"{path} is a link that leads out of {folder}; put the file itself there")
    return path


def check_landmarks(path: Path, points: np.ndarray, *, count: int) -> np.ndarray:
    """Landmarks, if there are five for each image."""
    if points.shape != (count, NUM_LANDMARKS, 2) or points.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: landmarks are {points.dtype} {list(points.shape)}, where {count} images need numbers "
            f"[{count}, {NUM_LANDMARKS}, 2]; see that images and landmarks are of the same set"
        )
    if not np.isfinite(points).all():
        raise InputError(f"{path}: some landmarks are no numbers; correct them or take those faces out")
    return points


def make_face_samples(images: np.ndarray, points: np.ndarray) -> Samples:
    """Images [N, 60, 60] and points [N, 5, 2] as tensors."""
    eye_distances = np.linalg.norm(points[:, 0] - points[:, 1], axis=1)
    if not eye_distances.all():
        raise InputError(f"face {int(np.argmin(eye_distances))} has both eyes at one point; correct it or take it out")
    eye_dx, eye_dy = np.abs(points[:, 0] - points[:, 1]).mean(axis=0)
    if eye_dy > eye_dx:
        raise InputError("the eyes lie below each other on average: landmarks must be x, y; turn them round")
    targets = points.reshape(len(points), 2 * NUM_LANDMARKS).astype(np.float32)
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(targets))


EYE_INDICES = (0, 1)  # of the five landmarks
SMALL_SIZE = 44  # pixels a side, the least that the network for landmarks takes
RESIZE_CHUNK = 1024  # images made small at a time


def load_landmarks(root: str | None) -> DataSet:
    """Faces with five landmarks in whichever of the three layouts lies there."""
    return load_in_memory(read_faces, root, classes=None, eye_indices=EYE_INDICES)


def load_aflw(root: str | None) -> DataSet:
    """AFLW in the layout of the imm release."""
    return load_in_memory(read_imm, root, classes=None, eye_indices=EYE_INDICES)


def load_mtfl(root: str | None) -> DataSet:
    """MTFL in its authors' layout."""
    return load_in_memory(read_mtfl, root, classes=None, eye_indices=EYE_INDICES)


def load_faces(root: str | None) -> DataSet:
    """Faces as arrays in an .npz."""
    return load_in_memory(read_npz, root, classes=None, eye_indices=EYE_INDICES)


def load_small_faces(root: str | None) -> DataSet:
    """The faces of `landmarks` made small, for trials that must be quick."""
    return load_in_memory(read_small_faces, root, classes=None, eye_indices=EYE_INDICES)


def read_small_faces(root: str | None) -> tuple[Samples, Samples]:
    """Training and test faces, grey uint8 [N, 1, 44, 44] and points [N, 10] in their pixels."""
    train, test = read_faces(root)
    return shrink_faces(train), shrink_faces(test)


def shrink_faces(samples: Samples) -> Samples:
    """Faces and their points at the small size; what a pixel covers is averaged."""
    assert isinstance(samples.x, Tensor)
    parts = [
        interpolate(part.float(), (SMALL_SIZE, SMALL_SIZE), mode="bilinear", antialias=True).round().to(torch.uint8)
        for part in samples.x.split(RESIZE_CHUNK)
    ]
    return Samples(torch.cat(parts), samples.y * (SMALL_SIZE / FACE_SIZE))
