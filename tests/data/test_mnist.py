import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from formats import grey_images, idx, write_idx
from l2i.data.datasets.mnist import load_fashion_mnist, read_fashion_mnist, read_mnist
from l2i.errors import InputError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inner", [".", "fashion-mnist"])
def test_images_and_classes_come_back_as_they_were_written(
    tmp_path: Path, packed: bool, inner: str
) -> None:
    write_idx(tmp_path / inner, per_class=12, test_per_class=3, packed=packed)
    for actual, (images, labels) in zip(
        read_fashion_mnist(str(tmp_path)),
        (grey_images(12, seed=1), grey_images(3, seed=2)),
        strict=True,
    ):
        assert (actual.x.dtype, actual.y.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(actual.x.numpy(), images[:, None])
        assert np.array_equal(actual.y.numpy(), labels)


def test_the_two_sets_may_lie_beside_each_other(tmp_path: Path) -> None:
    write_idx(tmp_path / "fashion-mnist", per_class=2)
    write_idx(tmp_path / "mnist", per_class=3, packed=True)
    assert len(read_fashion_mnist(str(tmp_path))[0].x) == 20
    assert len(read_mnist(str(tmp_path))[0].x) == 30


def test_some_files_may_be_packed_and_others_not(tmp_path: Path) -> None:
    plain = read_mnist(str(write_idx(tmp_path)))
    packed = gzip.compress((tmp_path / IMAGES).read_bytes())
    (tmp_path / IMAGES).rename(tmp_path / "elsewhere")
    (tmp_path / f"{IMAGES}.gz").write_bytes(packed)
    assert torch.equal(read_mnist(str(tmp_path))[0].x, plain[0].x)


def test_the_set_has_ten_classes_and_the_pixels_of_its_training_images(tmp_path: Path) -> None:
    data = load_fashion_mnist(str(write_idx(tmp_path)))
    images, _ = grey_images(12, seed=1)
    assert (data.classes, data.has_landmarks, data.eye_indices) == (10, False, None)
    assert data.normalization is not None
    assert data.normalization.mean.item() == pytest.approx(images.mean())
    assert data.normalization.std.item() == pytest.approx(images.std())


SOME = np.zeros((120, 28, 28), np.uint8)
WRONG: dict[str, tuple[str, bytes, str]] = {
    "labels in place of images": (
        IMAGES,
        idx(np.zeros(120)),
        "not an idx file of images × rows × columns",
    ),
    "images in place of labels": (LABELS, idx(SOME), "not an idx file of labels"),
    "numbers of other kinds": (
        IMAGES,
        b"\0\0\x0d\3" + idx(SOME)[4:],
        "not an idx file of images × rows × columns",
    ),
    "nothing": (IMAGES, b"", "not an idx file of images × rows × columns"),
    "half a header": (
        IMAGES,
        idx(SOME)[:10],
        "0 × 0 images × rows × columns, which cannot be right",
    ),
    "no images": (
        IMAGES,
        idx(np.zeros((0, 28, 28))),
        "its header claims 0 × 28 × 28 images × rows × columns",
    ),
    "no labels": (LABELS, idx(np.zeros(0)), "its header claims 0 labels"),
    "no pixels": (IMAGES, idx(np.zeros((120, 28, 0))), "120 × 28 × 0 images"),
    "gigantic images": (
        IMAGES,
        idx(np.zeros((1, 1, 257))),
        "its header claims 1 × 1 × 257 images × rows × columns",
    ),
    "a byte less": (
        IMAGES,
        idx(SOME)[:-1],
        "does not contain the 94,080 bytes that its header states",
    ),
    "a byte more": (
        LABELS,
        idx(np.zeros(120)) + b"\0",
        "does not contain the 120 bytes that its header states",
    ),
    "fewer labels": (LABELS, idx(np.zeros(119)), "119 labels and 120 images do not match"),
    "a class too many": (LABELS, idx(np.arange(120) // 11), "label 10 is not between 0 and 9"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_contents_are_told_with_the_file(tmp_path: Path, name: str, packed: bool) -> None:
    file, content, message = WRONG[name]
    write_idx(tmp_path, packed=packed)
    path = tmp_path / (file + packed * ".gz")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError) as caught:
        read_fashion_mnist(str(tmp_path))
    said = str(caught.value)
    assert str(path) in said
    assert message in said
    assert "download it again from https://github.com/zalandoresearch/fashion-mnist" in said
    assert "\n" not in said


def test_any_damage_to_the_packing_is_told(tmp_path: Path) -> None:
    path = write_idx(tmp_path, packed=True) / f"{IMAGES}.gz"
    whole = path.read_bytes()
    wrong_checksum = whole[:-8] + struct.pack("<I", 1) + whole[-4:]
    cut_short = [
        whole[:length] for length in (0, 5, 30, len(whole) // 2, len(whole) - 8, len(whole) - 1)
    ]
    for content in (
        *cut_short,
        whole + b"\0",
        whole + whole,
        wrong_checksum,
        b"no gzip file",
        idx(SOME),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{path.name}: it is damaged"):
            read_mnist(str(tmp_path))


def test_training_and_test_images_must_be_of_one_size(tmp_path: Path) -> None:
    write_idx(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((40, 20, 28))))
    with pytest.raises(
        InputError,
        match="training and test images differ in size, 28×28 and 20×28 pixels; "
        "download all four files",
    ):
        read_mnist(str(tmp_path))


@pytest.mark.parametrize(
    ("read", "parts"),
    [
        (read_mnist, ("MNIST was", "http://yann.lecun.com/exdb/mnist/")),
        (
            read_fashion_mnist,
            ("Fashion-MNIST was", "apt install dataset-fashion-mnist", "/usr/share/datasets"),
        ),
    ],
)
def test_a_missing_set_says_where_to_get_it_and_where_to_put_it(
    tmp_path: Path, read: Any, parts: Any
) -> None:
    (tmp_path / "file").touch()
    for root in (None, str(tmp_path), str(tmp_path / "nowhere"), str(tmp_path / "file")):
        with pytest.raises(InputError, match="was not found") as caught:
            read(root)
        for part in (*parts, "--data.root", "L2I_DATA"):
            assert part in str(caught.value)


def test_a_set_with_a_file_missing_names_it(tmp_path: Path) -> None:
    (write_idx(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        InputError, match=r"neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte\.gz is in"
    ):
        read_mnist(str(tmp_path))
