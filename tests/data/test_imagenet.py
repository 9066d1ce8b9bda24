import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from image_folders import write_class_folders
from l2i.data.datasets.imagenet import read_class_folders
from l2i.errors import InputError
from l2i.files.images import MAX_PIXELS, ImageFiles


def saved(
    folder: Path, image: Image.Image, name: str = "image.png", **options: object
) -> ImageFiles:
    image.save(folder / name, **options)
    return ImageFiles([str(folder / name)], 16)


def ramp(width: int, height: int) -> Image.Image:
    """Red grows by one level a pixel from the left, green from the top."""
    red, green = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([red, green, 0 * red], axis=2).astype(np.uint8))


def test_classes_are_numbered_by_name_and_files_are_sorted(tmp_path: Path) -> None:
    train, held = read_class_folders(
        str(write_class_folders(tmp_path, classes=3, per_class=4)), size=16
    )
    assert train.x.shape == (12, 3, 16, 16)
    assert (train.x.dtype, train.x.ndim, len(train.x)) == (torch.uint8, 4, 12)
    assert train.y.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert held.y.tolist() == [0, 0, 1, 1, 2, 2]
    paths = [train.x.paths[row] for row in range(12)]
    assert paths == sorted(paths)


def test_the_colour_of_every_format_and_mode_survives(tmp_path: Path) -> None:
    train, _ = read_class_folders(
        str(write_class_folders(tmp_path, classes=2, per_class=20)), size=16
    )
    images = train.x.read()
    assert images.shape == train.x.shape
    assert images.dtype == torch.uint8
    red, _, blue = images.float().mean(dim=(2, 3)).unbind(1)
    grey = red == blue
    assert int(grey.sum()) == 8  # one in five is grey
    assert torch.equal((red > blue)[~grey], (train.y == 1)[~grey])


def test_taking_rows_reads_nothing_and_keeps_their_order(tmp_path: Path) -> None:
    train, _ = read_class_folders(str(write_class_folders(tmp_path)), size=16)
    whole, index = train.x.read(), torch.tensor([7, 0, 7, 3])
    chosen = train.take(index)
    assert isinstance(chosen.x, ImageFiles)
    assert chosen.x.paths is train.x.paths
    assert torch.equal(chosen.x.read(), whole[index])
    assert torch.equal(chosen.x.read(torch.tensor([2, 1])), whole[[7, 0]])
    assert torch.equal(chosen.x[1:].read(slice(0, 2)), whole[[0, 7]])
    assert torch.equal(train.x[train.y == 1].read(), whole[train.y == 1])
    assert train.x[:0].read().shape == (0, 3, 16, 16)


def test_files_pickle_whole(tmp_path: Path) -> None:
    files = read_class_folders(str(write_class_folders(tmp_path)), size=16)[0].x[2:5]
    assert torch.equal(pickle.loads(pickle.dumps(files)).read(), files.read())


def test_many_paths_take_little_more_than_their_letters() -> None:
    paths = [f"/images/train/n{i % 1000:08d}/n{i % 1000:08d}_{i}.JPEG" for i in range(100_000)]
    files = ImageFiles(np.array(paths), 72)
    assert files.paths[99_999] == paths[-1]
    assert len(pickle.dumps(files)) < sum(map(len, paths)) + 17 * len(paths)


@pytest.mark.parametrize(("width", "height"), [(16, 40), (41, 16), (16, 16)])
def test_an_image_of_the_right_shorter_side_is_cropped_and_no_pixel_changes(
    tmp_path: Path, width: int, height: int
) -> None:
    image = saved(tmp_path, ramp(width, height)).read()[0]
    left, top = (width - 16) // 2, (height - 16) // 2
    assert image[0, 0].tolist() == list(range(left, left + 16))
    assert image[1, :, 0].tolist() == list(range(top, top + 16))


@pytest.mark.parametrize(
    ("name", "width", "height"), [("a.png", 64, 128), ("a.png", 8, 12), ("a.jpg", 250, 160)]
)
def test_other_images_are_resized_alike_in_both_directions(
    tmp_path: Path, name: str, width: int, height: int
) -> None:
    image = saved(tmp_path, ramp(width, height), name).read()[0].float()
    scale = min(width, height) / 16
    inner = image[:, 2:-2, 2:-2]  # a resampled border is flatter
    assert float(inner[0].diff(dim=1).mean()) == pytest.approx(scale, rel=0.1)
    assert float(inner[1].diff(dim=0).mean()) == pytest.approx(scale, rel=0.1)
    assert float(image[0].mean()) == pytest.approx((width - 1) / 2, abs=1.5)
    assert float(image[1].mean()) == pytest.approx((height - 1) / 2, abs=1.5)


def test_grey_of_16_bits_keeps_its_scale(tmp_path: Path) -> None:
    grey = Image.fromarray(np.full((16, 16), 200 * 256, dtype=np.uint16))
    assert saved(tmp_path, grey).read().unique().tolist() == [200]


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = ramp(16, 16).convert("P")
    assert saved(tmp_path, image, transparency=bytes(range(256))).read().shape == (1, 3, 16, 16)


def test_upper_case_suffixes_count_and_other_files_do_not(tmp_path: Path) -> None:
    inside = write_class_folders(tmp_path, classes=1, per_class=2) / "train" / "class000"
    (inside / "image00000.jpg").rename(inside / "image00000.JPEG")
    for name in ("notes.txt", "._image.jpg", "image.tar"):
        (inside / name).write_text("no image")
    assert len(read_class_folders(str(tmp_path), size=16)[0].x) == 2


def test_the_folder_may_be_called_validation(tmp_path: Path) -> None:
    write_class_folders(tmp_path)
    (tmp_path / "val").rename(tmp_path / "validation")
    assert len(read_class_folders(str(tmp_path))[1].x) == 9


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "gone"])
def test_a_damaged_image_is_named(tmp_path: Path, damage: str) -> None:
    files = saved(tmp_path, ramp(100, 100), "broken.jpg")
    path = tmp_path / "broken.jpg"
    content = {"cut": path.read_bytes()[:900], "empty": b"", "text": b"no image", "gone": b""}[
        damage
    ]
    path.write_bytes(content)
    if damage == "gone":
        path.unlink()
    with pytest.raises(InputError, match=r"cannot read image .*broken\.jpg .*replace or remove it"):
        files.read()


@pytest.mark.parametrize("side", [7_200, 9_600, 14_000])
def test_an_image_that_would_fill_the_memory_is_refused_unread(tmp_path: Path, side: int) -> None:
    assert side * side > MAX_PIXELS
    files = saved(tmp_path, Image.new("1", (side, side)))
    with pytest.raises(InputError, match=r"image\.png .*pixels"):
        files.read()


def test_a_link_within_the_root_is_followed_and_one_out_of_it_refused(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path / "root", classes=2, per_class=2)
    (root / "train" / "class002").symlink_to(root / "train" / "class001")
    assert read_class_folders(str(root))[0].y.tolist() == [0, 0, 1, 1, 2, 2]
    outside = tmp_path / "secret.png"
    ramp(16, 16).save(outside)
    (root / "train" / "class000" / "link.png").symlink_to(outside)
    with pytest.raises(
        InputError,
        match=r"link\.png is a broken link, or one that points outside .*replace it with a copy",
    ):
        read_class_folders(str(root))


def test_a_missing_root_says_where_to_get_the_images(tmp_path: Path) -> None:
    for root in (None, str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(
            InputError, match=r"image-net\.org.*decathlon.*train/CLASS.*--data\.root"
        ):
            read_class_folders(root)


def test_folders_that_do_not_fit_say_what_to_do(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path)
    (root / "val" / "class002").rename(root / "val" / "other")
    with pytest.raises(InputError, match="other has no folder in train; rename it"):
        read_class_folders(str(root))
    (root / "train" / "another").mkdir()
    with pytest.raises(InputError, match="another contains no images"):
        read_class_folders(str(root))


def test_validation_classes_keep_the_numbers_of_the_training_ones(tmp_path: Path) -> None:
    root = write_class_folders(tmp_path, classes=3, per_class=4)
    shutil.rmtree(root / "val" / "class000")
    assert set(read_class_folders(str(root))[1].y.tolist()) == {1, 2}
