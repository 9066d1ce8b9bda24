"""The loaders of data: tables, arrays, images and pickles."""

import struct
import zlib
from pathlib import Path

import numpy as np
import seeds
from harmless import Loader, put, way

from l2i.data.datasets.cifar import read_cifar100
from l2i.data.datasets.faces import read_faces
from l2i.data.datasets.imagenet import read_class_folders
from l2i.data.datasets.mnist import read_mnist
from l2i.fit.options import ReadOptions
from l2i.fit.readers.new_rows import read_new
from l2i.fit.readers.source import read_source

PNG = b"\x89PNG\r\n\x1a\n"
WAYS = (  # in which a table is read
    ReadOptions(target=("kind",)),
    ReadOptions(
        target=("kind",), task="classification", text=("note",), category=("size",), id="age"
    ),
    ReadOptions(
        target=("size",), task="regression", ignore=("note",), separator=";", encoding="latin-1"
    ),
    ReadOptions(target=("size", "age"), task="regression", text=("kind",)),
)
READ = {
    "id": None,
    "image": None,
    "encoding": "utf-8",
    "separator": "auto",
    "encoder": None,
    "skip_unreadable": False,
}
FRAME = {"side": 8, "channels": 3, "whole": False}
FILES = {
    **READ,
    **FRAME,
    "layout": "folder",
    "dtype": "uint8",
}  # what a fit writes down of its data
ARRAYS = {**READ, **FRAME, "layout": "arrays", "dtype": "float32"}


def read_csv(folder: Path, content: bytes) -> None:
    path = put(folder / "data.csv", content)
    read_source(str(path), WAYS[way(content, len(WAYS))]).make_preview(0)


def read_parquet(folder: Path, content: bytes) -> None:
    path = put(folder / "data.parquet", content)
    options = (
        ReadOptions(target=("kind",)),
        ReadOptions(target=("size",), text=("kind",), category=("day",)),
    )
    read_source(str(path), options[way(content, 2)]).make_preview(0)


def read_arrays(folder: Path, content: bytes) -> None:
    path = str(put(folder / "data.npz", content))
    match way(content, 3):
        case 0:
            read_source(path, ReadOptions()).make_preview(0)
        case 1:
            read_source(path, ReadOptions(landmarks="no", size=8)).make_preview(0)
        case _:
            read_new(path, ARRAYS, None)


def read_member(folder: Path, content: bytes) -> None:
    """One array of an archive that is otherwise whole."""
    whole = {"x": np.eye(4), "y": np.array([0, 1, -1, 0])}
    read = "xy"[way(content, 2)]
    read_arrays(
        folder,
        seeds.zipped(
            {f"{n}.npy": content if n == read else seeds.npy(a) for n, a in whole.items()}
        ),
    )


def read_landmarks(folder: Path, content: bytes) -> None:
    read_faces(str(put(folder / "faces.npz", content)))


def image_folders(folder: Path) -> None:
    """Whole images around the place of the one to be read, in each of the layouts."""
    whole = seeds.images()[0]
    for name in (
        "own/cat/1.png",
        "own/dog/1.png",
        "sets/train/cat/1.png",
        "sets/val/cat/1.png",
        "mtfl/1.png",
    ):
        put(folder / name, whole)
    for name, image in {"training": "1.png", "testing": "2.png"}.items():
        put(folder / f"mtfl/{name}.txt", f"{image} 3 9 6 4 8 2 2 4 7 7 1 2 2 3\n".encode())


def read_image(folder: Path, content: bytes) -> None:
    match way(content, 4):
        case 0:
            put(folder / "own/cat/2.png", content)
            read_source(str(folder / "own"), ReadOptions(skip_unreadable=True, size=8))
        case 1:
            read_new(str(put(folder / "new.jpg", content)), FILES, None)
        case 2:
            put(folder / "sets/train/cat/2.png", content)
            read_class_folders(str(folder / "sets"), size=8)[0].x.read()
        case _:
            put(folder / "mtfl/2.png", content)
            read_faces(str(folder / "mtfl"))


def read_png(folder: Path, content: bytes) -> None:
    read_image(folder, mended(content))


def mended(content: bytes) -> bytes:
    """A PNG with the checksums of its chunks put right."""
    parts, place = [PNG], len(PNG)
    while place + 8 <= len(content):
        size = struct.unpack(">I", content[place : place + 4])[0]
        body = content[place + 4 : place + 8 + size]
        parts.append(content[place : place + 4] + body + struct.pack(">I", zlib.crc32(body)))
        place += 12 + size
    return b"".join(parts)


def read_pickle(folder: Path, content: bytes) -> None:
    put(folder / "train", content)
    read_cifar100(str(folder))


def read_idx(folder: Path, content: bytes) -> None:
    """Labels, or images, by how many axes there are."""
    name = "train-labels-idx1-ubyte" if content[3:4] == b"\1" else "train-images-idx3-ubyte"
    put(folder / name, content)
    try:
        read_mnist(str(folder))
    finally:
        put(folder / name, seeds.idx_files()[name])


def read_packed_idx(folder: Path, content: bytes) -> None:
    put(folder / "train-images-idx3-ubyte.gz", content)
    read_mnist(str(folder))


def whole_idx(folder: Path) -> None:
    for name, content in seeds.idx_files().items():
        put(folder / name, content)


def idx_but_one(folder: Path) -> None:
    whole_idx(folder)
    (folder / "train-images-idx3-ubyte").unlink()


def whole_test(folder: Path) -> None:
    put(folder / "test", seeds.pickles()[0])


def parquets() -> list[bytes]:
    return [seeds.parquet(seeds.COLUMNS)]


def archives() -> list[bytes]:
    return [seeds.npz(**arrays) for arrays in seeds.arrays()]


def members() -> list[bytes]:
    draw = np.random.default_rng(0)
    x = [
        draw.normal(size=(4, 3)),
        draw.integers(0, 256, (4, 8, 8), dtype=np.uint8),
        draw.normal(size=(4, 3, 5, 5)),
    ]
    y = [
        np.array([0, 1, -1, 1]),
        np.array(["a", "b", "", "a"]),
        np.array([0.5, 1, np.nan, 2]),
        np.ones((4, 2, 2)),
    ]
    return [seeds.npy(array) for array in x + y]


def faces() -> list[bytes]:
    return [seeds.npz(**seeds.faces())]


def idx_seeds() -> list[bytes]:
    return list(seeds.idx_files().values())


def pngs() -> list[bytes]:
    return [image for image in seeds.images() if image.startswith(PNG)]


DATA = {
    "csv": Loader(read=read_csv, seeds=seeds.csvs),
    "parquet": Loader(read=read_parquet, seeds=parquets),
    "npz": Loader(read=read_arrays, seeds=archives),
    "npz-array": Loader(read=read_member, seeds=members),
    "landmarks": Loader(read=read_landmarks, seeds=faces),
    "image": Loader(read=read_image, seeds=seeds.images, prepare=image_folders),
    "png": Loader(read=read_png, seeds=pngs, prepare=image_folders),
    "idx": Loader(read=read_idx, seeds=idx_seeds, prepare=whole_idx),
    "idx-gz": Loader(read=read_packed_idx, seeds=seeds.packed_idx, prepare=idx_but_one),
    "pickle": Loader(read=read_pickle, seeds=seeds.pickles, prepare=whole_test),
}
