"""A stranger's paths and links: nothing outside the data's folder is read, nor what never ends."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confined import confined, message_of, refused
from PIL import Image

from formats import write_cifar10, write_idx, write_imm, write_mtfl
from l2i.data.datasets.cifar import read_cifar10
from l2i.data.datasets.faces import read_faces
from l2i.data.datasets.imagenet import read_class_folders
from l2i.data.datasets.imdb import load_imdb, read_paraphrases
from l2i.data.datasets.mnist import read_mnist
from l2i.fit.options import ReadOptions
from l2i.fit.readers.source import read_source
from tiny_encoder import write_imdb

TABLE = ("--target", "y", "--image", "path")


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((9, 9), shade, dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with images, beside one with a secret."""
    for number in range(4):
        picture(tmp_path / "home" / "in" / f"{number}.png", 50 * number)
    picture(tmp_path / "secret" / "0.png")
    return tmp_path / "home"


def listed(home: Path, name: str) -> None:
    """A table of the images, and of one more path."""
    with (home / "list.csv").open("w", newline="") as file:
        rows = [(f"in/{number}.png", "ab"[number % 2]) for number in range(4)]
        csv.writer(file).writerows([("path", "y"), *rows, (name, "a")])


@pytest.mark.parametrize(
    "name",
    [
        "../secret/0.png",
        "in/../../secret/0.png",
        "..\\secret\\0.png",
        "SECRET/0.png",
        "C:\\secret\\0.png",
        "\\\\host\\share\\0.png",
        "/dev/zero",
        "~/0.png",
        "in/0.png\0.txt",
    ],
)
def test_a_path_that_leads_out_is_refused(home: Path, name: str) -> None:
    listed(home, name.replace("SECRET", str(home.parent / "secret")))
    line = refused("fit", "list.csv", *TABLE, cwd=home)
    assert "is outside" in line or "missing" in line
    assert ("row 5" in line) == ("is outside" in line)


def linked(home: Path) -> None:
    (home / "link.png").symlink_to(home.parent / "secret" / "0.png")


def linked_folder(home: Path) -> None:
    (home / "link.png").symlink_to(home / "out" / "0.png")
    (home / "out").symlink_to(home.parent / "secret")


def linked_device(home: Path) -> None:
    (home / "link.png").symlink_to("/dev/zero")


def circle(home: Path) -> None:
    (home / "link.png").symlink_to("other.png")
    (home / "other.png").symlink_to("link.png")


def pipe(home: Path) -> None:
    os.mkfifo(home / "link.png")


def inner_folder(home: Path) -> None:
    (home / "link.png").mkdir()


@pytest.mark.parametrize("make", [linked, linked_folder, linked_device, circle, pipe, inner_folder])
def test_what_is_no_file_within_the_folder_is_not_opened(
    home: Path, make: Callable[[Path], None]
) -> None:
    make(home)
    listed(home, "link.png")
    line = refused("fit", "list.csv", *TABLE, cwd=home)
    assert "is outside" in line or "link.png (damaged: " in line


@pytest.mark.parametrize("make", [linked, linked_folder, linked_device, circle])
def test_class_folders_follow_no_link_out(home: Path, make: Callable[[Path], None]) -> None:
    for name in ("cat", "dog"):
        picture(home / "own" / name / "0.png")
    make(home / "own" / "cat")
    (home / "own").rename(home / "own2")
    line = refused("fit", "own2", cwd=home)
    assert "is a broken link, or one that points outside" in line
    for part in ("train", "val"):
        picture(home / "sets" / part / "cat" / "0.png")
    make(home / "sets" / "train" / "cat")
    assert "is a broken link, or one that points outside" in message_of(
        lambda: read_class_folders(str(home / "sets"))
    )


def test_a_pipe_among_images_is_left_alone(home: Path) -> None:
    for name in ("cat", "dog"):
        picture(home / "own" / name / "0.png")
        os.mkfifo(home / "own" / name / "1.png")
    assert confined(lambda: len(read_source(str(home / "own"), ReadOptions()).ids)) == 2


def test_a_folder_of_data_may_itself_be_a_link(home: Path, tmp_path: Path) -> None:
    listed(home, "in/0.png")
    (tmp_path / "link").symlink_to(home)
    (tmp_path / "table.csv").symlink_to(home / "list.csv")
    for place in (tmp_path / "link" / "list.csv", tmp_path / "table.csv"):
        assert confined(lambda place=place: len(read_source(str(place), OPTIONS).ids)) == 5
    write_cifar10(tmp_path / "real", per_class=1, test_per_class=1)
    (tmp_path / "cifar").symlink_to(tmp_path / "real")
    assert confined(lambda: len(read_cifar10(str(tmp_path / "cifar"))[0].x)) == 10


OPTIONS = ReadOptions(target=("y",), image="path")


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "data.npz", "data.png"])
@pytest.mark.parametrize("command", ["fit"])
def test_a_pipe_or_device_by_the_name_of_data_is_not_opened(
    tmp_path: Path, name: str, command: str
) -> None:
    os.mkfifo(tmp_path / name)
    assert f"{name} is not a regular file" in refused(command, name, cwd=tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert f"{name} is not a regular file" in refused(command, name, cwd=tmp_path)


def imdb_set(root: Path) -> Path:
    return Path(write_imdb(root)) / "aclImdb" / "train" / "neg" / "0_2.txt"


def cifar_set(root: Path) -> Path:
    return (
        write_cifar10(root, per_class=1, test_per_class=1) / "cifar-10-batches-py" / "data_batch_2"
    )


def binary_set(root: Path) -> Path:
    return (
        write_cifar10(root, per_class=1, test_per_class=1, binary=True)
        / "cifar-10-batches-bin"
        / "data_batch_2.bin"
    )


def idx_set(root: Path) -> Path:
    return write_idx(root) / "t10k-images-idx3-ubyte"


def packed_set(root: Path) -> Path:
    return write_idx(root / "mnist", packed=True) / "train-labels-idx1-ubyte.gz"


def paraphrase_set(root: Path) -> Path:
    text = "A film that I liked a lot"
    (root / "train.csv").write_text(f"content\tlabel\tid\n{text}\tpos\tpos_0_9.txt\n")
    (root / "para_0.txt").write_text(f"{text}\n")
    return root / "para_0.txt"


def paraphrase_table(root: Path) -> Path:
    return paraphrase_set(root).with_name("train.csv")


def faces_list(root: Path) -> Path:
    write_mtfl(root, train=3, test=3)
    return next(root.rglob("testing.txt"))


def faces_points(root: Path) -> Path:
    write_imm(root, train=3, test=3)
    return next(root.rglob("aflw_test_keypoints.mat"))


SETS: dict[str, tuple[Callable[[Path], Path], Callable[[str], Any]]] = {
    "imdb": (imdb_set, load_imdb),
    "cifar": (cifar_set, read_cifar10),
    "cifar, binary": (binary_set, read_cifar10),
    "idx": (idx_set, read_mnist),
    "idx, packed": (packed_set, read_mnist),
    "paraphrases": (paraphrase_set, read_paraphrases),
    "table of paraphrases": (paraphrase_table, read_paraphrases),
    "list of faces": (faces_list, read_faces),
    "points of faces": (faces_points, read_faces),
}


@pytest.mark.parametrize("kind", ["link out", "pipe", "device", "circle"])
@pytest.mark.parametrize("name", SETS)
def test_published_sets_are_plain_files_within_their_folder(
    name: str, kind: str, tmp_path: Path
) -> None:
    write, read = SETS[name]
    (tmp_path / "set").mkdir()
    path = write(tmp_path / "set")
    confined(lambda: read(str(tmp_path / "set")) and None)
    path.rename(tmp_path / "elsewhere")
    targets = {"link out": tmp_path / "elsewhere", "device": "/dev/zero", "circle": path.name}
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(targets[kind])
    said = message_of(lambda: read(str(tmp_path / "set")), room=2**29)
    assert path.name in said


def test_a_folder_of_reviews_may_not_lead_out(tmp_path: Path) -> None:
    folder = imdb_set(tmp_path / "set").parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is a link that points outside" in message_of(lambda: load_imdb(str(tmp_path / "set")))


def test_a_review_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    os.truncate(imdb_set(tmp_path / "set"), 2**40)
    assert "0_2.txt has over 16 MiB, too large for a review" in message_of(
        lambda: load_imdb(str(tmp_path / "set"))
    )


@pytest.mark.parametrize("name", ["../0.jpg", "/etc/hostname", "..\\0.jpg", "C:\\0.jpg"])
def test_a_list_of_faces_may_not_lead_out(name: str, tmp_path: Path) -> None:
    path = faces_list(tmp_path)
    path.write_text(f"{name} 1 2 3 4 5 1 2 3 4 5 1 1 1 1\n")
    assert "is outside" in message_of(lambda: read_faces(str(tmp_path)))
