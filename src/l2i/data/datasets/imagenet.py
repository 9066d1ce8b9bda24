"""ImageNet at 72 pixels, as images in class folders, decoded only when needed."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from l2i.data.samples import DataSet, Samples
from l2i.data.transforms.image import Normalize
from l2i.errors import InputError
from l2i.files.images import IMAGE_SUFFIXES, ImageFiles
from l2i.files.safety import scan_folder

LAYOUT_HINT = (
    "download ImageNet from https://image-net.org, or its 72-pixel version of the Visual Domain "
    "Decathlon from https://www.robots.ox.ac.uk/~vgg/decathlon/, put the images in "
    "ROOT/train/CLASS/ and ROOT/val/CLASS/, and set --data.root ROOT or L2I_DATA"
)
# the values that are in common use
IMAGENET_NORMALIZE = Normalize.from_unit_range((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def load_imagenet(root: str | None) -> DataSet:
    """Load ImageNet's class folders at 72 pixels."""
    train, test = read_class_folders(root)
    classes = int(train.y.max()) + 1
    return DataSet(train=train, test=test, classes=classes, normalization=IMAGENET_NORMALIZE)


def read_class_folders(root: str | None, *, size: int = 72) -> tuple[Samples, Samples]:
    """List the images of `root/train/CLASS/*` and `root/val/CLASS/*` (or `root/validation`)."""
    if root is None or not Path(root).expanduser().is_dir():
        problem = "no folder was given" if root is None else f"the folder {root} does not exist"
        raise InputError(f"ImageNet was not found: {problem}; {LAYOUT_HINT}")
    real_root = os.path.realpath(Path(root).expanduser())
    folders = _list_folders(real_root, real_root)
    train, validation = folders.get("train"), folders.get("val", folders.get("validation"))
    if train is None or validation is None:
        missing = "val" if train else "train"
        raise InputError(f"the folder {root} contains no '{missing}' folder; {LAYOUT_HINT}")
    class_indices = {name: index for index, name in enumerate(_list_folders(train, real_root))}
    train_samples = _list_samples(train, real_root, class_indices, size)
    return train_samples, _list_samples(validation, real_root, class_indices, size)


def _list_samples(folder: str, root: str, class_indices: dict[str, int], size: int) -> Samples:
    """List all images of a folder of class folders, by class, then name."""
    paths: list[str] = []
    classes: list[int] = []
    class_folders = _list_folders(folder, root)
    if not class_folders:
        raise InputError(f"the folder {folder} contains no class folders; {LAYOUT_HINT}")
    for name, class_folder in class_folders.items():
        if name not in class_indices:
            fix = "rename it to match, or remove it"
            raise InputError(f"the class {class_folder} has no folder in train; {fix}")
        images = sorted(
            entry.path
            for entry in scan_folder(class_folder, root)
            if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file()
        )
        if not images:
            problem = f"contains no images ({', '.join(IMAGE_SUFFIXES)})"
            fix = "add some, or remove it"
            raise InputError(f"the class folder {class_folder} {problem}; {fix}")
        paths += images
        classes += [class_indices[name]] * len(images)
    return Samples(ImageFiles(paths, size), torch.tensor(classes, dtype=torch.int64))


def _list_folders(folder: str, root: str) -> dict[str, str]:
    folders = {entry.name: entry.path for entry in scan_folder(folder, root) if entry.is_dir()}
    return dict(sorted(folders.items()))
