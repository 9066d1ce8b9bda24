"""Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from l2i.data.cifar import read_cifar10, read_cifar100
from l2i.data.folders import read_class_folders
from l2i.data.idx import CLASSES, read_fashion_mnist, read_mnist
from l2i.data.landmarks import SIZE, read_faces, read_imm, read_mtfl, read_npz
from l2i.data.pixels import Pixels
from l2i.data.split import DataSet, Samples

EYES = (0, 1)  # of the five landmarks
SMALL = 44  # pixels a side, the least that the network for landmarks takes
CHUNK = 1024  # images made small at a time
IMAGENET = Pixels.given((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # as everybody has them

Reader = Callable[[str | None], tuple[Samples, Samples]]


def mnist(root: str | None) -> DataSet:
    """MNIST's handwritten digits, plain or packed files."""
    return held(read_mnist, root, classes=CLASSES)


def fashion_mnist(root: str | None) -> DataSet:
    """Fashion-MNIST's pieces of clothing, plain or packed files."""
    return held(read_fashion_mnist, root, classes=CLASSES)


def cifar10(root: str | None) -> DataSet:
    """CIFAR-10, python or binary version."""
    return held(read_cifar10, root, classes=10)


def cifar100(root: str | None) -> DataSet:
    """CIFAR-100 with its fine labels, python or binary version."""
    return held(read_cifar100, root, classes=100)


def landmarks(root: str | None) -> DataSet:
    """Faces with five landmarks in whichever of the three layouts lies there."""
    return held(read_faces, root, classes=None)


def aflw(root: str | None) -> DataSet:
    """AFLW in the layout of the imm release."""
    return held(read_imm, root, classes=None)


def mtfl(root: str | None) -> DataSet:
    """MTFL in its authors' layout."""
    return held(read_mtfl, root, classes=None)


def faces(root: str | None) -> DataSet:
    """Faces as arrays in an .npz."""
    return held(read_npz, root, classes=None)


def small_faces(root: str | None) -> DataSet:
    """The faces of `landmarks` made small, for trials that must be quick."""
    return held(read_small, root, classes=None)


def imagenet(root: str | None) -> DataSet:
    """ImageNet as class folders at 72 pixels; its files are decoded as they are needed."""
    train, test = read_class_folders(root, size=72)
    return DataSet(train=train, test=test, classes=int(train.y.max()) + 1, pixels=IMAGENET)


def read_small(root: str | None) -> tuple[Samples, Samples]:
    """Training and test faces, grey uint8 [N, 1, 44, 44] and points [N, 10] in their pixels."""
    train, test = read_faces(root)
    return shrunk(train), shrunk(test)


def shrunk(samples: Samples) -> Samples:
    """Faces and their points at the small size; what a pixel covers is averaged."""
    assert isinstance(samples.x, Tensor)
    parts = [
        interpolate(part.float(), (SMALL, SMALL), mode="bilinear", antialias=True).round().to(torch.uint8)
        for part in samples.x.split(CHUNK)
    ]
    return Samples(torch.cat(parts), samples.y * (SMALL / SIZE))


def held(read: Reader, root: str | None, *, classes: int | None) -> DataSet:
    """A set that is held in memory whole; without classes, its labels are landmarks."""
    train, test = read(root)
    assert isinstance(train.x, Tensor)
    points = classes is None
    return DataSet(
        train=train,
        test=test,
        classes=classes,
        points=points,
        eyes=EYES if points else None,
        pixels=Pixels.of(train.x),
    )
