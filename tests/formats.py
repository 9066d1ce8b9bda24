"""Writes tiny data sets, of random but learnable content, in the layouts their publishers use."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

ATTRIBUTES = "1 2 2 3"  # gender, smile, glasses, pose
TEMPLATE = np.array(
    [[-0.42, -0.5], [0.42, -0.5], [0.0, 0.05], [-0.35, 0.5], [0.35, 0.5]]
)  # of a face one unit high


def python2_pickle(value: Any) -> bytes:
    """A value as Python 2 and numpy of its time pickled it in protocol 2, text being bytes."""
    return b"\x80\x02" + opcodes(value) + b"."


def opcodes(value: Any) -> bytes:
    match value:
        case bytes():
            return b"T" + struct.pack("<i", len(value)) + value
        case int():
            return b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(opcodes, value)) + b"e"
        case dict():
            return b"}(" + b"".join(opcodes(part) for item in value.items() for part in item) + b"u"
        case np.ndarray():
            order = value.dtype.str[:1].encode()
            empty = (
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
                + opcodes(b"b")
                + b"\x87R"
            )
            dtype = b"cnumpy\ndtype\n" + opcodes(value.dtype.str[1:].encode()) + b"K\x00K\x01\x87R"
            dtype += b"(K\x03" + opcodes(order) + b"NNN" + opcodes(-1) * 2 + b"K\x00tb"
            shape = b"(" + b"".join(map(opcodes, value.shape)) + b"t"
            return empty + b"(K\x01" + shape + dtype + b"\x89" + opcodes(value.tobytes()) + b"tb"
    raise TypeError(type(value))


def class_images(classes: int, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, 3072] and labels [N] in mixed order: each class is a coarse pattern under noise."""
    patterns = (
        np.random.default_rng(0).uniform(40, 215, (classes, 3, 4, 4)).repeat(8, 2).repeat(8, 3)
    )
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), per_class))
    noisy = patterns[labels] + rng.normal(0, 25, (len(labels), 3, 32, 32))
    return noisy.clip(0, 255).astype(np.uint8).reshape(len(labels), -1), labels


def write_cifar10(
    folder: Path, *, per_class: int = 12, test_per_class: int = 4, binary: bool = False
) -> Path:
    inner = folder / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    inner.mkdir(parents=True)
    rows, labels = class_images(10, per_class, seed=1)
    parts = list(zip(np.split(rows, 5), np.split(labels, 5), strict=True))
    parts.append(class_images(10, test_per_class, seed=2))
    for name, (x, y) in zip(
        [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"], parts, strict=True
    ):
        if binary:
            (inner / f"{name}.bin").write_bytes(np.column_stack([y.astype(np.uint8), x]).tobytes())
        else:
            names = [b"image_%06d.png" % k for k in range(len(x))]
            fields = {
                b"batch_label": name.encode(),
                b"labels": y.tolist(),
                b"data": x,
                b"filenames": names,
            }
            (inner / name).write_bytes(python2_pickle(fields))
    return folder


def write_cifar100(
    folder: Path, *, per_class: int = 4, test_per_class: int = 2, binary: bool = False
) -> Path:
    inner = folder / ("cifar-100-binary" if binary else "cifar-100-python")
    inner.mkdir(parents=True)
    for name, (x, y) in {
        "train": class_images(100, per_class, seed=1),
        "test": class_images(100, test_per_class, seed=2),
    }.items():
        coarse = y // 5
        if binary:
            (inner / f"{name}.bin").write_bytes(
                np.column_stack([coarse, y, x]).astype(np.uint8).tobytes()
            )
        else:
            fields = {b"data": x, b"fine_labels": y.tolist(), b"coarse_labels": coarse.tolist()}
            (inner / name).write_bytes(python2_pickle(fields))
    return folder


def grey_images(per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 28, 28] and labels [N] of ten classes."""
    rows, labels = class_images(10, per_class, seed)
    return rows.reshape(-1, 3, 32, 32)[:, 0, :28, :28], labels


def idx(values: np.ndarray) -> bytes:
    """An idx file of 8-bit values."""
    return (
        struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
        + values.astype(np.uint8).tobytes()
    )


def write_idx(
    folder: Path, *, per_class: int = 12, test_per_class: int = 4, packed: bool = False
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in {
        "train": grey_images(per_class, seed=1),
        "t10k": grey_images(test_per_class, seed=2),
    }.items():
        for name, content in {"images-idx3": idx(images), "labels-idx1": idx(labels)}.items():
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return folder


def drawn_face(
    rng: np.random.Generator, *, width: int, height: int, face: float
) -> tuple[np.ndarray, np.ndarray]:
    """An image [H, W] with dots at five landmarks [5, 2] (x, y), the face `face` pixels high."""
    margin = 0.6 * face
    centre = rng.uniform(margin, np.array([width, height]) - margin)
    points = centre + face * (TEMPLATE + rng.normal(0, 0.03, TEMPLATE.shape))
    ys, xs = np.mgrid[:height, :width]
    image = 40 + 20 * rng.uniform(size=(height, width))
    for x, y in points:
        image += 180 * np.exp(-((xs - x) ** 2 + (ys - y) ** 2) / (2 * (0.05 * face) ** 2))
    return image.clip(0, 255).astype(np.uint8), points


def save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).convert("RGB").save(path, quality=95)


def write_imm(folder: Path, *, train: int = 24, test: int = 8) -> Path:
    rng = np.random.default_rng(3)
    for split, count in {"train": train, "test": test}.items():
        names, points, sizes = [], [], []
        for k in range(count):
            width, height = int(rng.integers(90, 160)), int(rng.integers(90, 160))
            image, actual = drawn_face(
                rng, width=width, height=height, face=0.36 * min(width, height)
            )
            names.append(f"{split}-{k:04d}.jpg")
            points.append(actual[:, ::-1])  # y, x: in the release, points are as hw is
            sizes.append((height, width))
            save_image(folder / "output" / names[-1], image)
        (folder / f"aflw_{split}_images.txt").write_text("\n".join(names) + "\n")
        savemat(
            folder / f"aflw_{split}_keypoints.mat", {"gt": np.array(points), "hw": np.array(sizes)}
        )
    return folder


def write_mtfl(folder: Path, *, train: int = 24, test: int = 8) -> Path:
    rng = np.random.default_rng(4)
    for listing, count in {"training.txt": train, "testing.txt": test}.items():
        text = []
        for k in range(count):
            if listing == "testing.txt":
                name, (image, points) = (
                    rf"AFLW\{k:04d}-image.jpg",
                    drawn_face(rng, width=150, height=150, face=54),
                )
            else:  # larger than the face, and sometimes cut close to it
                name, (image, points) = (
                    rf"lfw_5590\Some_One_{k:04d}.jpg",
                    drawn_face(rng, width=250, height=220, face=70),
                )
            save_image(folder / name.replace("\\", "/"), image)
            text.append(f" {name} {' '.join(f'{v:.2f}' for v in points.T.flat)} {ATTRIBUTES} \n")
        (folder / listing).write_text("".join(text) + "\n\n")
    return folder


def write_faces(folder: Path, *, train: int = 24, test: int = 8) -> Path:
    rng = np.random.default_rng(5)
    arrays = {}
    for split, count in {"train": train, "test": test}.items():
        faces = [drawn_face(rng, width=60, height=60, face=21) for _ in range(count)]
        arrays[f"x_{split}"] = np.stack([image for image, _ in faces])
        arrays[f"y_{split}"] = np.stack([points for _, points in faces]).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "faces.npz", **arrays)
    return folder
