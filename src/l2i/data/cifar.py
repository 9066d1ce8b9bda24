"""CIFAR-10 and CIFAR-100 from the files their authors publish, python or binary version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l2i.data.limits import plain_file
from l2i.data.pickles import check_size, load_arrays
from l2i.data.split import Samples
from l2i.errors import InputError

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32  # a row is 1024 red, 1024 green, 1024 blue


@dataclass(frozen=True, kw_only=True)
class Cifar:
    """Where a data set's files lie and what tells its labels."""

    name: str
    classes: int
    python: str
    binary: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    key: str  # of the labels, in a pickle
    label_bytes: int  # before the pixels of a binary row; the last is the label


CIFAR10 = Cifar(
    name="CIFAR-10",
    classes=10,
    python="cifar-10-batches-py",
    binary="cifar-10-batches-bin",
    train=tuple(f"data_batch_{k}" for k in range(1, 6)),
    test=("test_batch",),
    key="labels",
    label_bytes=1,
)
CIFAR100 = Cifar(
    name="CIFAR-100",
    classes=100,
    python="cifar-100-python",
    binary="cifar-100-binary",
    train=("train",),
    test=("test",),
    key="fine_labels",
    label_bytes=2,  # coarse, fine
)


def read_cifar10(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 3, 32, 32] with classes [N], in the files' order."""
    return read(CIFAR10, root)


def read_cifar100(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 3, 32, 32] with fine classes [N], in the files' order."""
    return read(CIFAR100, root)


def read(cifar: Cifar, root: str | None) -> tuple[Samples, Samples]:
    """The training and the test files of whichever version lies in `root`."""
    folder, suffix = find(cifar, root)
    paths = [folder / (name + suffix) for name in (*cifar.train, *cifar.test)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{cifar.name}: {path} is missing; unpack the archive from {PAGE} again")
        check_size(plain_file(path, Path(root or folder).expanduser()))
    parts = [(binary_rows if suffix else python_rows)(cifar, path) for path in paths]
    cut = len(cifar.train)
    return joined(parts[:cut]), joined(parts[cut:])


def find(cifar: Cifar, root: str | None) -> tuple[Path, str]:
    """The folder of the files, and how their names end."""
    if root is not None:
        given = Path(root).expanduser()
        versions = ((cifar.python, ""), (cifar.binary, ".bin"))
        places = [(given / name, end) for name, end in versions] + [(given, end) for _, end in versions]
        for folder, end in places:
            if any((folder / (name + end)).is_file() for name in (*cifar.train, *cifar.test)):
                return folder, end
    where = "no folder is given" if root is None else f"neither {cifar.python} nor {cifar.binary} is in {root}"
    raise InputError(
        f"{cifar.name} is not there: {where}. Get the python version or binary version archive from {PAGE}, unpack it, "
        "and give the folder you unpacked it in as --data.root, or in L2I_DATA"
    )


def python_rows(cifar: Cifar, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, 3072] and labels [N] of a pickle."""
    fields = load_arrays(path)
    for key in ("data", cifar.key):
        if key not in fields:
            raise InputError(f"{path} has no {key!r}: it is not a file of {cifar.name}, python version, from {PAGE}")
    rows, labels = fields["data"], whole_numbers(fields[cifar.key])
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != PIXELS:
        raise InputError(f"{path}: data is not uint8 [N, {PIXELS}]; unpack the archive from {PAGE} again")
    return checked(cifar, path, rows, labels)


def binary_rows(cifar: Cifar, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, 3072] and labels [N] of a binary file."""
    width = cifar.label_bytes + PIXELS
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None
    if len(raw) % width:
        raise InputError(
            f"{path} has {len(raw)} bytes, not a multiple of {width}: it is cut short or not {cifar.name}, binary "
            f"version; unpack the archive from {PAGE} again"
        )
    table = raw.reshape(-1, width)
    return checked(cifar, path, table[:, cifar.label_bytes :], table[:, cifar.label_bytes - 1])


def whole_numbers(labels: Any) -> np.ndarray | None:
    """A list or array of labels as an array, None where it is something else."""
    if isinstance(labels, list) and not all(type(label) is int for label in labels):
        return None  # lists within lists may be a few that are there very many times
    try:
        array = np.asarray(labels)
    except (ValueError, OverflowError):
        return None
    return array if array.ndim == 1 and array.dtype.kind in "iu" else None


def checked(cifar: Cifar, path: Path, rows: np.ndarray, labels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows and labels of a file, if they can be right."""
    if not len(rows):
        wrong = "there are no images"
    elif labels is None:
        wrong = f"{cifar.key} is not a list of whole numbers"
    elif len(rows) != len(labels):
        wrong = f"{len(rows)} images and {len(labels)} labels do not match"
    elif labels.min() < 0 or labels.max() >= cifar.classes:
        bad = labels[(labels < 0) | (labels >= cifar.classes)][0]
        wrong = f"label {bad} is not from 0 to {cifar.classes - 1}"
    else:
        return rows, labels.astype(np.int64)
    raise InputError(f"{path}: {wrong}; see that it is a file of {cifar.name} and unpack the archive from {PAGE} again")


def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> Samples:
    """Files one after the other."""
    x = np.concatenate([rows for rows, _ in parts]).reshape(-1, 3, 32, 32)
    return Samples(torch.from_numpy(x), torch.from_numpy(np.concatenate([labels for _, labels in parts])))
