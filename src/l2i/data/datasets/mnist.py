"""MNIST and Fashion-MNIST from the idx files their authors publish, plain or packed by gzip.

MERGED:
Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.

"""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch

from l2i.data.samples import DataSet, Samples, load_in_memory
from l2i.errors import InputError
from l2i.files.safety import check_memory, check_regular_file

NUM_CLASSES = 10
UBYTE_TYPE = 0x08  # the files' mark of 8-bit values
MAX_SIDE = 256  # pixels
CHUNK_BYTES = 2**20
GZIP_WBITS = 31  # zlib's word for a gzip file of the largest window


@dataclass(frozen=True, kw_only=True)
class IdxDataset:
    """A data set's name, the folder it may lie in, and where to get it."""

    name: str
    folder: str
    source_hint: str


MNIST = IdxDataset(name="MNIST", folder="mnist", source_hint="from http://yann.lecun.com/exdb/mnist/")
FASHION_MNIST = IdxDataset(
    name="Fashion-MNIST",
    folder="fashion-mnist",
    source_hint="from https://github.com/zalandoresearch/fashion-mnist, or with «apt install dataset-fashion-mnist» in "
    "/usr/share/datasets/fashion-mnist",
)


def read_mnist(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 1, 28, 28] with classes [N], in the files' order."""
    return read_idx_dataset(MNIST, root)


def read_fashion_mnist(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 1, 28, 28] with classes [N], in the files' order."""
    return read_idx_dataset(FASHION_MNIST, root)


def read_idx_dataset(dataset: IdxDataset, root: str | None) -> tuple[Samples, Samples]:
    """The training and the test files that lie in `root`, or in the set's own folder there."""
    train, test = (read_idx_split(dataset, root, part) for part in ("train", "t10k"))
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = " and ".join("×".join(map(str, samples.x.shape[2:])) for samples in (train, test))
        raise InputError(
            f"{dataset.name}: training and test images are of {sizes} pixels; get all four files {dataset.source_hint}"
        )
    return train, test


def read_idx_split(dataset: IdxDataset, root: str | None, part: str) -> Samples:
    """One set's images and labels, if they can be right."""
    path = find_idx_file(dataset, root, f"{part}-labels-idx1-ubyte")
    labels = read_idx_values(dataset, path, ("labels",))
    images = read_idx_values(dataset, find_idx_file(dataset, root, f"{part}-images-idx3-ubyte"), ("images", "rows", "columns"))
    if len(images) != len(labels):
        raise make_damaged_error(dataset, path, f"{len(labels)} labels and {len(images)} images do not match")
    if labels.max() >= NUM_CLASSES:
        raise make_damaged_error(dataset, path, f"label {labels.max()} is not from 0 to {NUM_CLASSES - 1}")
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())


def find_idx_file(dataset: IdxDataset, root: str | None, name: str) -> Path:
    """The file of that name, plain or packed, which must be there."""
    reason = "no folder is given"
    if root is not None:
        root_path = Path(root).expanduser()
        candidates = [folder / (name + end) for folder in (root_path / dataset.folder, root_path) for end in ("", ".gz")]
        existing = next((path for path in candidates if os.path.lexists(path)), None)
        if existing is not None:
            return check_regular_file(existing, root_path)
        reason = f"neither {name} nor {name}.gz is in {root}"
    raise InputError(
        f"{dataset.name} is not there: {reason}. Get its four files {dataset.source_hint}, and give their folder as "
        "--data.root, or in L2I_DATA"
    )


def read_idx_values(dataset: IdxDataset, path: Path, axes: tuple[str, ...]) -> np.ndarray:
    """The 8-bit values of a file, of so many axes; what it says is there is checked before room is made for it."""
    header_bytes = 4 * (1 + len(axes))
    magic, *shape = np.frombuffer(read_prefix(path, header_bytes).ljust(header_bytes, b"\0"), ">u4").tolist()
    if magic != (UBYTE_TYPE << 8) + len(axes):
        raise make_damaged_error(dataset, path, f"it is damaged, or no idx file of {' × '.join(axes)}")
    if not all(shape) or any(side > MAX_SIDE for side in shape[1:]):
        raise make_damaged_error(dataset, path, f"{' × '.join(map(str, shape))} {' × '.join(axes)} cannot be right")
    size = math.prod(shape)
    check_memory(path, size if len(axes) > 1 else 8 * size, f"get it {dataset.source_hint}")  # labels become 8 bytes each
    content = read_prefix(path, header_bytes + size + 1)
    if len(content) != header_bytes + size:
        raise make_damaged_error(dataset, path, f"it is damaged, or has not the {size:,} bytes that it says")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def read_prefix(path: Path, count: int) -> bytearray:
    """The first `count` bytes of a file, or all there are; none where its packing is damaged."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".gz":
                return decompress_prefix(file, count)
            content = bytearray(min(count, os.fstat(file.fileno()).st_size))
            del content[file.readinto(content) :]
            return content
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None


def decompress_prefix(file: BufferedReader, count: int) -> bytearray:
    """The same of a gzip file, of which no more is unpacked; Python's own reader walks over all that follows."""
    unpacker, content, has_more = zlib.decompressobj(GZIP_WBITS), bytearray(), True
    try:
        while has_more and len(content) < count and not unpacker.eof:
            compressed = unpacker.unconsumed_tail or file.read(CHUNK_BYTES)
            piece = unpacker.decompress(compressed, min(CHUNK_BYTES, count - len(content)))
            content += piece
            has_more = bool(compressed or piece)
    except zlib.error:
        return bytearray()
    is_truncated = len(content) < count and not unpacker.eof
    has_trailing_data = unpacker.eof and (unpacker.unused_data or file.read(1))
    return bytearray() if is_truncated or has_trailing_data else content


def make_damaged_error(dataset: IdxDataset, path: Path, problem: str) -> InputError:
    """What to say of a file that cannot be right."""
    return InputError(f"{path}: {problem}; get it again {dataset.source_hint}")


def load_mnist(root: str | None) -> DataSet:
    """MNIST's handwritten digits, plain or packed files."""
    return load_in_memory(read_mnist, root, classes=NUM_CLASSES)


def load_fashion_mnist(root: str | None) -> DataSet:
    """Fashion-MNIST's pieces of clothing, plain or packed files."""
    return load_in_memory(read_fashion_mnist, root, classes=NUM_CLASSES)
