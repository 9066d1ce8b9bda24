"""Images in class folders, as ImageNet comes; decoded only when asked for."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from l2i.data.limits import leads_within
from l2i.data.split import Samples
from l2i.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # by content, since names may lie; others may run programs
MAX_PIXELS = 50_000_000  # a small file may claim to be an image that fills the memory
LARGE = 16_000_000  # pixels, above which threads take turns
LARGE_ONES = Lock()
LAYOUT = (
    "get ImageNet at https://image-net.org, or its 72-pixel version of the Visual Domain Decathlon at "
    "https://www.robots.ox.ac.uk/~vgg/decathlon/, put the images into ROOT/train/CLASS/ and ROOT/val/CLASS/, "
    "and give --data.root ROOT, or set L2I_DATA"
)


class Paths:
    """Many paths in one string: a list of 1.3 million would be copied into every worker process bit by bit."""

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self.text = b"".join(encoded)
        self.ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> str:
        return os.fsdecode(self.text[self.ends[row] : self.ends[row + 1]])


class Files:
    """Image files that look like a uint8 tensor [N, 3, S, S]; indexing reads nothing, `read` decodes."""

    dtype = torch.uint8
    ndim = 4

    def __init__(self, paths: Iterable[str] | Paths, size: int, rows: NDArray[np.int64] | None = None) -> None:
        self.paths = paths if isinstance(paths, Paths) else Paths(paths)
        self.size = size
        self.rows = np.arange(len(self.paths)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def names(self) -> bytes:
        """The last two parts of all paths, class and file, in order."""
        return b"\n".join(b"/".join(os.fsencode(self.paths[row]).split(b"/")[-2:]) for row in self.rows.tolist())

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.size, self.size))

    def __getitem__(self, index: Tensor | slice) -> Files:
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        return Files(self.paths, self.size, self.rows[chosen])

    def read(self, index: Tensor | slice | None = None) -> Tensor:
        """The chosen images, or all, as uint8 [B, 3, S, S]."""
        rows = self.rows if index is None else self[index].rows
        images = np.empty((len(rows), 3, self.size, self.size), dtype=np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd headers are common; what cannot be decoded is an error
            for image, row in zip(images, rows, strict=True):
                image[:] = decoded(self.paths[row], self.size)
        return torch.from_numpy(images)


class TooLarge(Exception):
    """How many pixels an image has, and how many it may have."""


@contextmanager
def opened(path: str | Path, formats: Sequence[str] = FORMATS) -> Iterator[Image.Image]:
    """An image of a regular file, with no more pixels than memory allows; nothing is decoded yet."""
    if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would block, a device never end
        raise ValueError("not a regular file")
    try:
        image = Image.open(path, formats=list(formats))
    except Image.DecompressionBombError:
        raise TooLarge(f"far more pixels than {MAX_PIXELS:,}") from None
    with image:
        if image.width * image.height > MAX_PIXELS:
            raise TooLarge(f"{image.width} × {image.height} pixels, more than {MAX_PIXELS:,}")
        yield image


@contextmanager
def alone(image: Image.Image) -> Iterator[None]:
    """Large images are decoded one after the other, whatever threads there are, so that they do not fill the memory."""
    with LARGE_ONES if image.width * image.height > LARGE else nullcontext():
        yield


def decoded(path: str, size: int) -> NDArray[np.uint8]:
    """The image as [3, S, S], or what is wrong with the file."""
    try:
        with opened(path) as image:
            image.draft(None, (2 * size, 2 * size))  # a JPEG far too large is decoded at a half, quarter or eighth
            return np.asarray(square(rgb(image), size)).transpose(2, 0, 1)
    except TooLarge as error:
        raise InputError(f"the image {path} has {error}; shrink it") from None
    except Exception as error:  # decoders fail in a dozen ways, and each is the file's
        raise InputError(f"cannot read the image {path} ({error}); replace it, or take it out of the folder") from error


def rgb(image: Image.Image) -> Image.Image:
    """Three colours of 8 bits; transparency is dropped."""
    if image.mode.startswith("I;16"):  # Pillow cuts 16-bit grey off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def square(image: Image.Image, size: int) -> Image.Image:
    """The centre square of the image resized such that its shorter side is `size`."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return image.crop(box)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def read_class_folders(root: str | None, *, size: int = 72) -> tuple[Samples, Samples]:
    """Training and validation images of `root/train/CLASS/*` and `root/val/CLASS/*` (or `root/validation`)."""
    if root is None or not Path(root).expanduser().is_dir():
        raise InputError(f"there is no folder of images {'given' if root is None else root}; {LAYOUT}")
    real = os.path.realpath(Path(root).expanduser())
    folders = {entry.name: entry.path for entry in entries(real, real) if entry.is_dir()}
    train, held = folders.get("train"), folders.get("val", folders.get("validation"))
    if train is None or held is None:
        raise InputError(f"the folder {root} has no '{'val' if train else 'train'}' folder in it; {LAYOUT}")
    numbers = {name: number for number, name in enumerate(class_folders(train, real))}
    return samples_in(train, real, numbers, size), samples_in(held, real, numbers, size)


def samples_in(folder: str, root: str, numbers: dict[str, int], size: int) -> Samples:
    """All images of a folder of class folders, by class, then name."""
    paths: list[str] = []
    classes: list[int] = []
    for name, inside in class_folders(folder, root).items():
        if name not in numbers:
            raise InputError(f"the class {inside} has no folder in train; rename it as there, or take it out")
        images = sorted(e.path for e in entries(inside, root) if e.name.lower().endswith(SUFFIXES) and e.is_file())
        if not images:
            raise InputError(
                f"the class folder {inside} holds no images ({', '.join(SUFFIXES)}); put some into it, or remove it"
            )
        paths += images
        classes += [numbers[name]] * len(images)
    return Samples(Files(paths, size), torch.tensor(classes, dtype=torch.int64))


def class_folders(folder: str, root: str) -> dict[str, str]:
    """Class names and their folders, sorted."""
    found = {entry.name: entry.path for entry in entries(folder, root) if entry.is_dir()}
    if not found:
        raise InputError(f"the folder {folder} has no class folders in it; {LAYOUT}")
    return dict(sorted(found.items()))


def entries(folder: str, root: str) -> Iterator[os.DirEntry[str]]:
    """What is in a folder but hidden files; no link may lead out of the root."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not (Path(entry.path).exists() and leads_within(entry.path, root)):
                raise InputError(f"{entry.path} is a link that leads nowhere or out of {root}; put a copy in its place")
            yield entry
