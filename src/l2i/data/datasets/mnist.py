"""MNIST and Fashion-MNIST from the idx files their authors publish, plain or packed by gzip."""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch

from l2i.data.datasets import make_missing_error, translate_read_errors
from l2i.data.samples import DataSet, Samples
from l2i.errors import InputError
from l2i.files.safety import check_memory, check_regular_file

NUM_CLASSES = 10
UBYTE_TYPE = 0x08  # the files' mark of 8-bit values
MAX_SIDE = 256  # pixels
CHUNK_BYTES = 2**20
GZIP_WBITS = 31  # zlib's code for gzip with the largest window


@dataclass(frozen=True, kw_only=True)
class IdxDataset:
    """A dataset's name, the folder it may be in, and where to get it."""

    name: str
    folder: str
    source: str

    def make_error(self, path: Path, problem: str) -> InputError:
        return InputError(f"{path}: {problem}; download it again {self.source}")


MNIST = IdxDataset(name="MNIST", folder="mnist", source="from http://yann.lecun.com/exdb/mnist/")
FASHION_MNIST = IdxDataset(
    name="Fashion-MNIST",
    folder="fashion-mnist",
    source="from https://github.com/zalandoresearch/fashion-mnist, or with "
    "'apt install dataset-fashion-mnist' in /usr/share/datasets/fashion-mnist",
)


def _load_idx(dataset: IdxDataset, root: str | None) -> DataSet:
    return DataSet.from_images(*_read_idx(dataset, root), classes=NUM_CLASSES)


def _read_idx(dataset: IdxDataset, root: str | None) -> tuple[Samples, Samples]:
    """Read training and test images uint8 [N, 1, 28, 28] with classes [N], in file order."""
    train, test = (_read_split(dataset, root, part) for part in ("train", "t10k"))
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = " and ".join("×".join(map(str, samples.x.shape[2:])) for samples in (train, test))
        problem = f"training and test images differ in size, {sizes} pixels"
        raise InputError(f"{dataset.name}: {problem}; download all four files {dataset.source}")
    return train, test


load_mnist, load_fashion_mnist = partial(_load_idx, MNIST), partial(_load_idx, FASHION_MNIST)
read_mnist, read_fashion_mnist = partial(_read_idx, MNIST), partial(_read_idx, FASHION_MNIST)


def _read_split(dataset: IdxDataset, root: str | None, part: str) -> Samples:
    path = _find_file(dataset, root, f"{part}-labels-idx1-ubyte")
    labels = _read_values(dataset, path, ("labels",))
    image_path = _find_file(dataset, root, f"{part}-images-idx3-ubyte")
    images = _read_values(dataset, image_path, ("images", "rows", "columns"))
    if len(images) != len(labels):
        problem = f"{len(labels)} labels and {len(images)} images do not match"
        raise dataset.make_error(path, problem)
    if (top := labels.max()) >= NUM_CLASSES:
        raise dataset.make_error(path, f"label {top} is not between 0 and {NUM_CLASSES - 1}")
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())


def _find_file(dataset: IdxDataset, root: str | None, name: str) -> Path:
    if root is not None:
        root_path = Path(root).expanduser()
        for folder in (root_path / dataset.folder, root_path):
            for path in (folder / name, folder / f"{name}.gz"):
                if os.path.lexists(path):
                    return check_regular_file(path, root_path)
    fix = f"Download its four files {dataset.source} to a folder"
    raise make_missing_error(dataset.name, root, f"neither {name} nor {name}.gz is", fix)


def _read_values(dataset: IdxDataset, path: Path, axes: tuple[str, ...]) -> np.ndarray:
    """Read the 8-bit values of a file, checking its claims before allocating memory for them."""
    header_bytes = 4 * (1 + len(axes))
    header = _read_prefix(path, header_bytes).ljust(header_bytes, b"\0")
    magic, *shape = np.frombuffer(header, ">u4").tolist()
    if magic != (UBYTE_TYPE << 8) + len(axes):
        raise dataset.make_error(path, f"it is damaged, or not an idx file of {' × '.join(axes)}")
    if not all(shape) or any(side > MAX_SIDE for side in shape[1:]):
        claim = f"{' × '.join(map(str, shape))} {' × '.join(axes)}"
        raise dataset.make_error(path, f"its header claims {claim}, which cannot be right")
    size = math.prod(shape)
    needed = size if len(axes) > 1 else 8 * size  # labels become 8 bytes each
    check_memory(path, needed, f"download it {dataset.source}")
    content = _read_prefix(path, header_bytes + size + 1)
    if len(content) != header_bytes + size:
        problem = f"it is damaged: it does not contain the {size:,} bytes that its header states"
        raise dataset.make_error(path, problem)
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _read_prefix(path: Path, count: int) -> bytearray:
    """Read the first `count` bytes of a file, or all there are; none if its packing is damaged."""
    with translate_read_errors(path), path.open("rb") as file:
        if path.suffix == ".gz":
            return _decompress_prefix(file, count)
        content = bytearray(min(count, os.fstat(file.fileno()).st_size))
        del content[file.readinto(content) :]
        return content


def _decompress_prefix(file: BufferedReader, count: int) -> bytearray:
    """Unpack `count` bytes of gzip at most; Python's own reader would unpack all that follows."""
    unpacker, content = zlib.decompressobj(GZIP_WBITS), bytearray()
    try:
        while len(content) < count and not unpacker.eof:
            compressed = unpacker.unconsumed_tail or file.read(CHUNK_BYTES)
            piece = unpacker.decompress(compressed, min(CHUNK_BYTES, count - len(content)))
            if not (compressed or piece):
                return bytearray()  # cut short
            content += piece
    except zlib.error:
        return bytearray()
    has_trailing_data = unpacker.eof and (unpacker.unused_data or file.read(1))
    return bytearray() if has_trailing_data else content
