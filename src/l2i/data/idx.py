"""MNIST and Fashion-MNIST from the idx files their authors publish, plain or packed by gzip."""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch

from l2i.data.limits import check_memory, plain_file
from l2i.data.split import Samples
from l2i.errors import InputError

CLASSES = 10
BYTES = 0x08  # the files' mark of 8-bit values
MOST_SIDE = 256  # pixels
BLOCK = 2**20
GZIP = 31  # zlib's word for a gzip file of the largest window


@dataclass(frozen=True, kw_only=True)
class Published:
    """A data set's name, the folder it may lie in, and where to get it."""

    name: str
    folder: str
    get: str


MNIST = Published(name="MNIST", folder="mnist", get="from http://yann.lecun.com/exdb/mnist/")
FASHION = Published(
    name="Fashion-MNIST",
    folder="fashion-mnist",
    get="from https://github.com/zalandoresearch/fashion-mnist, or with «apt install dataset-fashion-mnist» in "
    "/usr/share/datasets/fashion-mnist",
)


def read_mnist(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 1, 28, 28] with classes [N], in the files' order."""
    return read(MNIST, root)


def read_fashion_mnist(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 1, 28, 28] with classes [N], in the files' order."""
    return read(FASHION, root)


def read(published: Published, root: str | None) -> tuple[Samples, Samples]:
    """The training and the test files that lie in `root`, or in the set's own folder there."""
    train, test = (split(published, root, part) for part in ("train", "t10k"))
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = " and ".join("×".join(map(str, samples.x.shape[2:])) for samples in (train, test))
        raise InputError(
            f"{published.name}: training and test images are of {sizes} pixels; get all four files {published.get}"
        )
    return train, test


def split(published: Published, root: str | None, part: str) -> Samples:
    """One set's images and labels, if they can be right."""
    path = found(published, root, f"{part}-labels-idx1-ubyte")
    labels = values(published, path, ("labels",))
    images = values(published, found(published, root, f"{part}-images-idx3-ubyte"), ("images", "rows", "columns"))
    if len(images) != len(labels):
        raise damaged(published, path, f"{len(labels)} labels and {len(images)} images do not match")
    if labels.max() >= CLASSES:
        raise damaged(published, path, f"label {labels.max()} is not from 0 to {CLASSES - 1}")
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())


def found(published: Published, root: str | None, name: str) -> Path:
    """The file of that name, plain or packed, which must be there."""
    where = "no folder is given"
    if root is not None:
        given = Path(root).expanduser()
        places = [folder / (name + end) for folder in (given / published.folder, given) for end in ("", ".gz")]
        there = next((path for path in places if os.path.lexists(path)), None)
        if there is not None:
            return plain_file(there, given)
        where = f"neither {name} nor {name}.gz is in {root}"
    raise InputError(
        f"{published.name} is not there: {where}. Get its four files {published.get}, and give their folder as "
        "--data.root, or in L2I_DATA"
    )


def values(published: Published, path: Path, axes: tuple[str, ...]) -> np.ndarray:
    """The 8-bit values of a file, of so many axes; what it says is there is checked before room is made for it."""
    head = 4 * (1 + len(axes))
    magic, *shape = np.frombuffer(start(path, head).ljust(head, b"\0"), ">u4").tolist()
    if magic != (BYTES << 8) + len(axes):
        raise damaged(published, path, f"it is damaged, or no idx file of {' × '.join(axes)}")
    if not all(shape) or any(side > MOST_SIDE for side in shape[1:]):
        raise damaged(published, path, f"{' × '.join(map(str, shape))} {' × '.join(axes)} cannot be right")
    size = math.prod(shape)
    check_memory(path, size if len(axes) > 1 else 8 * size, f"get it {published.get}")  # labels become 8 bytes each
    whole = start(path, head + size + 1)
    if len(whole) != head + size:
        raise damaged(published, path, f"it is damaged, or has not the {size:,} bytes that it says")
    return np.frombuffer(whole, np.uint8, offset=head).reshape(shape)


def start(path: Path, count: int) -> bytearray:
    """The first `count` bytes of a file, or all there are; none where its packing is damaged."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".gz":
                return unpacked(file, count)
            there = bytearray(min(count, os.fstat(file.fileno()).st_size))
            del there[file.readinto(there) :]
            return there
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None


def unpacked(file: BufferedReader, count: int) -> bytearray:
    """The same of a gzip file, of which no more is unpacked; Python's own reader walks over all that follows."""
    unpacker, there, more = zlib.decompressobj(GZIP), bytearray(), True
    try:
        while more and len(there) < count and not unpacker.eof:
            packed = unpacker.unconsumed_tail or file.read(BLOCK)
            piece = unpacker.decompress(packed, min(BLOCK, count - len(there)))
            there += piece
            more = bool(packed or piece)
    except zlib.error:
        return bytearray()
    cut_short = len(there) < count and not unpacker.eof
    trailed = unpacker.eof and (unpacker.unused_data or file.read(1))
    return bytearray() if cut_short or trailed else there


def damaged(published: Published, path: Path, wrong: str) -> InputError:
    """What to say of a file that cannot be right."""
    return InputError(f"{path}: {wrong}; get it again {published.get}")
