import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat, savemat

from formats import save_image, write_faces, write_imm, write_mtfl
from l2i.data.datasets.faces import (
    CROP_OFFSET_RATIO,
    CROP_SIDE_RATIO,
    crop_face,
    read_face_arrays,
    read_faces,
    read_grayscale,
    read_imm,
    read_mtfl,
    resolve_listed_path,
)
from l2i.data.samples import Samples
from l2i.errors import InputError

REAL = os.environ.get("L2I_DATA")
real = pytest.mark.skipif(REAL is None, reason="L2I_DATA names no folder of real data")
ATTRIBUTES = "1 1 1 1"


def dots(face: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Where the light within 3 pixels of each point has its centre."""
    ys, xs = torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="ij")
    actual = []
    for x, y in points.view(-1, 2):
        light = (face[0].float() - 70).clamp(min=0) * ((xs - x) ** 2 + (ys - y) ** 2 <= 9)
        actual.append(torch.stack([(light * xs).sum(), (light * ys).sum()]) / light.sum())
    return torch.stack(actual)


def assert_faces(actual: Samples, count: int) -> None:
    assert (actual.x.dtype, actual.y.dtype) == (torch.uint8, torch.float32)
    assert actual.x.shape == (count, 1, 60, 60)
    assert actual.y.shape == (count, 10)
    for face, points in zip(actual.x, actual.y, strict=True):
        assert (dots(face, points) - points.view(-1, 2)).norm(dim=1).max() < 1


@pytest.mark.parametrize(
    ("write", "read"),
    [(write_imm, read_imm), (write_mtfl, read_mtfl), (write_faces, read_face_arrays)],
)
def test_each_layout_puts_landmarks_where_its_images_show_them(
    tmp_path: Path, write: Any, read: Any
) -> None:
    root = str(write(tmp_path, train=9, test=5))
    for actual, whichever, count in zip(read(root), read_faces(root), (9, 5), strict=True):
        assert_faces(actual, count)
        assert torch.equal(actual.x, whichever.x)
        assert torch.equal(actual.y, whichever.y)


def test_imm_points_scale_with_width_and_height(tmp_path: Path) -> None:
    root = write_imm(tmp_path, train=6, test=2)
    mat = loadmat(root / "aflw_train_keypoints.mat")
    height, width = mat["hw"][3]
    y, x = (torch.from_numpy(column.copy()) for column in mat["gt"][3].T)  # as height and width are
    expected = torch.stack([x * 60 / width, y * 60 / height], dim=1).float()
    assert torch.allclose(read_imm(str(root))[0].y[3].view(5, 2), expected)


def test_a_faces_file_may_be_given_itself(tmp_path: Path) -> None:
    path = (write_faces(tmp_path, train=3, test=2) / "faces.npz").rename(tmp_path / "mine.npz")
    assert len(read_face_arrays(str(path))[1].x) == len(read_faces(str(path))[1].x) == 2


def test_training_crops_have_the_test_crops_scale_and_place(tmp_path: Path) -> None:
    train = read_mtfl(str(write_mtfl(tmp_path)))[0].y.view(-1, 5, 2)
    low, high = train.amin(1), train.amax(1)
    extent = (high - low).amax(1)
    assert torch.allclose(60 / extent, torch.tensor(CROP_SIDE_RATIO), rtol=0.02)
    offset = (30 - (low + high) / 2) / extent[:, None]
    assert torch.allclose(offset, torch.tensor(CROP_OFFSET_RATIO).expand_as(offset), atol=0.02)


def test_a_crop_beyond_the_border_repeats_it(tmp_path: Path) -> None:
    image = np.full((50, 50), 90, np.uint8)
    image[:, 0] = 200
    save_image(tmp_path / "edge.png", image)
    points = np.array([[2, 10], [22, 10], [12, 20], [4, 30], [20, 30]], float)
    face = crop_face(tmp_path / "edge.png", points)
    side = round(CROP_SIDE_RATIO * 20)
    beyond = int((side / 2 - 12 - CROP_OFFSET_RATIO[0] * 20) * 60 / side) - 2
    assert beyond > 5
    assert (face.image[:, :beyond] == 200).all()
    assert (face.image[:, -20:] == 90).all()


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "..\\secret.png", "/etc/secret.png", "C:\\x.png", "a\\..\\..\\x", "\\x"],
)
def test_listed_paths_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    save_image(tmp_path / "secret.png", np.zeros((60, 60), np.uint8))
    root = write_mtfl(tmp_path / "mtfl", train=2, test=2)
    (root / "testing.txt").write_text(f"{name} 1 2 3 4 5 1 2 3 4 5 {ATTRIBUTES}\n")
    with pytest.raises(InputError, match=r"testing\.txt.*is outside"):
        read_mtfl(str(root))
    with pytest.raises(InputError, match="is outside"):
        resolve_listed_path(tmp_path / "output", name, tmp_path / "list")


def test_a_missing_or_unreadable_image_is_named(tmp_path: Path) -> None:
    root = write_imm(tmp_path, train=3, test=2)
    image = root / "output" / "test-0001.jpg"
    image.write_bytes(image.read_bytes()[:300])
    with pytest.raises(InputError, match=r"test-0001\.jpg is not a readable image"):
        read_imm(str(root))
    image.unlink()
    with pytest.raises(InputError, match=r"test-0001\.jpg is listed but missing"):
        read_imm(str(root))


@pytest.mark.parametrize("side", [8_000, 11_000, 60_000])
def test_an_image_that_would_fill_the_memory_is_refused(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b""))
    )
    with pytest.raises(
        InputError, match=r"bomb\.png.*(more than 50,000,000 pixels|DecompressionBomb)"
    ):
        read_grayscale(tmp_path / "bomb.png")


def test_lists_and_points_that_do_not_match_are_told(tmp_path: Path) -> None:
    root = write_imm(tmp_path, train=3, test=2)
    points = loadmat(root / "aflw_test_keypoints.mat")
    mat = root / "aflw_train_keypoints.mat"
    gt, hw = points["gt"], points["hw"]
    savemat(mat, {"gt": np.concatenate([gt, gt]), "hw": np.concatenate([hw, hw[:1]])})
    with pytest.raises(InputError, match=r"landmarks are float64 \[4, 5, 2\], but 3 images"):
        read_imm(str(root))
    savemat(mat, {"gt": gt, "hw": hw})
    with pytest.raises(InputError, match="for each of 3 images"):
        read_imm(str(root))
    savemat(mat, {"gt": gt})
    with pytest.raises(InputError, match="lacks gt and hw"):
        read_imm(str(root))
    mat.write_bytes(b"no mat file" * 50)
    with pytest.raises(InputError, match=r"aflw_train_keypoints\.mat is missing, damaged"):
        read_imm(str(root))


@pytest.mark.parametrize(
    "line",
    [
        "a.jpg 1 2 3",
        "a.jpg" + " x" * 14,
        f"a.jpg {'nan ' * 10}{ATTRIBUTES}",
        f"1 2 3 4 5 1 2 3 4 5 {ATTRIBUTES}",
    ],
)
def test_a_line_that_is_no_path_and_numbers_is_told(tmp_path: Path, line: str) -> None:
    root = write_mtfl(tmp_path, train=2, test=2)
    (root / "training.txt").write_text(f"\n{line}\n")
    with pytest.raises(InputError, match=r"training\.txt: .* is not a path and 14 numbers"):
        read_mtfl(str(root))


@pytest.mark.parametrize(
    "numbers",
    ["5 5 5 5 5 5 5 5 5 5", "-90 -80 -70 -90 -80 1 2 3 4 5", "0 9e5 0 9e5 0 0 0 0 9e5 9e5"],
)
def test_landmarks_that_are_no_face_in_the_image_are_told(tmp_path: Path, numbers: str) -> None:
    root = write_mtfl(tmp_path, train=2, test=2)
    (root / "training.txt").write_text(rf"lfw_5590\Some_One_0000.jpg {numbers} {ATTRIBUTES}")
    with pytest.raises(InputError, match=r"Some_One_0000\.jpg do not match a face"):
        read_mtfl(str(root))


def test_an_empty_or_missing_list_is_told(tmp_path: Path) -> None:
    root = write_mtfl(tmp_path, train=2, test=2)
    (root / "testing.txt").write_text("\n \n")
    with pytest.raises(InputError, match=r"testing\.txt lists no images"):
        read_mtfl(str(root))
    (root / "testing.txt").unlink()
    with pytest.raises(InputError, match=r"testing\.txt cannot be read"):
        read_mtfl(str(root))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": np.zeros((3, 50, 50), np.uint8)}, r"images are uint8 \[3, 50, 50\]"),
        ({"x_train": np.zeros((3, 60, 60))}, "images are float64"),
        ({"y_test": np.zeros((9, 5, 2))}, r"landmarks are float64 \[9, 5, 2\], but 2 images"),
        ({"y_test": np.full((2, 5, 2), np.nan)}, "some landmarks are NaN or infinite"),
        ({"y_test": np.array([None])}, "plain arrays"),  # objects, which a pickle would bring
        ({"y_test": None}, "plain arrays"),
    ],
)
def test_wrong_arrays_are_told(
    tmp_path: Path, changed: dict[str, np.ndarray | None], message: str
) -> None:
    path = write_faces(tmp_path, train=3, test=2) / "faces.npz"
    with np.load(path) as file:
        arrays = {**file, **changed}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=message):
        read_face_arrays(str(tmp_path))


def test_a_damaged_faces_file_is_told(tmp_path: Path) -> None:
    path = write_faces(tmp_path, train=3, test=2) / "faces.npz"
    raw = path.read_bytes()
    for damaged in (raw[:200], raw[: len(raw) // 2], b"", b"garbage" * 99):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"faces\.npz is damaged"):
            read_face_arrays(str(tmp_path))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match=r"faces\.npz is damaged"):
        read_face_arrays(str(tmp_path))


@pytest.mark.parametrize("read", [read_faces, read_imm, read_mtfl, read_face_arrays])
def test_missing_faces_say_what_to_get_and_where_to_put_it(tmp_path: Path, read: Any) -> None:
    (tmp_path / "file").touch()
    for root in (None, str(tmp_path), str(tmp_path / "nowhere"), str(tmp_path / "file")):
        with pytest.raises(InputError, match="were not found") as caught:
            read(root)
        for part in ("aflw_release-2.zip", "TCDCN.html", "faces.npz", "--data.root"):
            assert part in str(caught.value)


def test_an_image_of_another_kind_is_not_decoded(tmp_path: Path) -> None:
    Image.new("L", (60, 60)).save(tmp_path / "face.gif")
    with pytest.raises(InputError, match=r"face\.gif is not a readable image"):
        read_grayscale(tmp_path / "face.gif")


@real
def test_the_real_faces_are_those_the_crop_was_measured_on() -> None:
    train, test = read_faces(REAL)
    assert (len(train.x), len(test.x)) == (10_000, 2_995)
    points = test.y.view(-1, 5, 2)
    low, high = points.amin(1), points.amax(1)
    assert abs(60 / float((high - low).amax(1).mean()) - CROP_SIDE_RATIO) < 0.01
    offset = (30 - (low + high) / 2).mean(0) / 60 * CROP_SIDE_RATIO
    assert torch.allclose(offset, torch.tensor(CROP_OFFSET_RATIO), atol=1e-3)


@pytest.mark.parametrize(("write", "folder"), [(write_imm, "aflw_release-2"), (write_mtfl, "MTFL")])
def test_the_folder_that_an_archive_unpacks_to_is_found(
    write: Any, folder: str, tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir()
    write(tmp_path / folder, train=3, test=2)
    assert [len(part.x) for part in read_faces(str(tmp_path))] == [3, 2]


def test_landmarks_that_are_turned_round_are_found(tmp_path: Path) -> None:
    write_faces(tmp_path)
    with np.load(tmp_path / "faces.npz") as whole:
        arrays = dict(whole)
    turned = {
        name: value[..., ::-1] if name.startswith("y") else value for name, value in arrays.items()
    }
    np.savez(tmp_path / "faces.npz", **turned)
    with pytest.raises(InputError, match="landmarks must be x, y"):
        read_face_arrays(str(tmp_path))


def test_a_face_with_both_eyes_at_one_point_is_named(tmp_path: Path) -> None:
    write_faces(tmp_path)
    with np.load(tmp_path / "faces.npz") as whole:
        arrays = dict(whole)
    arrays["y_test"][3, 0] = arrays["y_test"][3, 1]
    np.savez(tmp_path / "faces.npz", **arrays)
    with pytest.raises(InputError, match="face 3 has both eyes at the same point"):
        read_face_arrays(str(tmp_path))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    root = write_imm(tmp_path / "set", train=3, test=2)
    image = next((root / "output").iterdir())
    image.rename(tmp_path / "elsewhere.jpg")
    image.symlink_to(tmp_path / "elsewhere.jpg")
    with pytest.raises(InputError, match="is a link that points outside"):
        read_imm(str(root))
