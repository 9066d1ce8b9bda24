import base64
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from user_data import class_folders, picture, read, written

from l2i.errors import InputError
from l2i.files.output import report_progress
from l2i.fit.readers.image_files import ImageSpec
from l2i.fit.readers.images import check_image_memory, choose_side, points_from_square
from l2i.fit.readers.new_rows import read_new


def wrong(path: Path, *target: str, **options: object) -> str:
    with pytest.raises(InputError) as error:
        read(path, *target, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_class_folders_are_classes_and_others_unlabelled(tmp_path: Path) -> None:
    source = read(class_folders(tmp_path))
    assert (
        isinstance(source.inputs, np.ndarray)
        and source.classes == ("cat", "dog")
        and source.target_names == ("class",)
    )
    assert source.given_labels.tolist() == [0, 0, 0, 1, 1, 1, -1, -1]
    assert source.ids[0] == "cat/0.png" and source.ids[-1] == "unlabeled/deep/1.jpg"
    assert source.inputs.shape == (8, 3, 16, 16) and source.inputs.dtype == np.uint8
    assert abs(source.inputs[0].reshape(3, -1).mean(1) - [200, 80, 20]).max() < 1
    assert (
        source.options["side"] == 16
        and source.options["channels"] == 3
        and source.options["layout"] == "folder"
    )
    assert source.sizes is not None and source.sizes[0].tolist() == [20, 16]
    assert any("resized to 16 × 16 (centre crop)" in note for note in source.notes)


def test_formats_sizes_and_modes_may_differ(tmp_path: Path) -> None:
    class_folders(tmp_path)
    picture(tmp_path / "cat" / "a.GIF", width=100, height=7)
    picture(tmp_path / "dog" / "b.webp", width=7, height=40)
    Image.fromarray(np.full((9, 9), 40_000, dtype=np.uint16)).save(tmp_path / "dog" / "c.png")
    picture(tmp_path / "unlabelled" / "d.bmp")
    source = read(tmp_path, size=12)
    assert source.inputs.shape == (12, 3, 12, 12)
    assert np.all(source.inputs[source.ids.index("dog/c.png")] == 40_000 >> 8)


def test_images_that_are_all_grey_have_one_channel_even_if_stored_in_colour(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", colour=(90,))
    class_folders(tmp_path / "b", colour=(90, 90, 90))
    assert read(tmp_path / "a").inputs.shape[1] == read(tmp_path / "b").inputs.shape[1] == 1
    assert read(tmp_path / "a", grey="no").inputs.shape[1] == 3
    assert read(class_folders(tmp_path / "c"), grey="yes").options["channels"] == 1


def test_the_size_is_the_nearest_to_the_median_shorter_side() -> None:
    def side(shorter: list[int], size: int = 0, *, points: bool = False) -> int:
        return choose_side(size, np.array([[500, s] for s in shorter]), points=points)

    assert [side([s, s, 400]) for s in (5, 13, 21, 28, 300)] == [8, 16, 24, 32, 32]
    assert side([300], points=True) == 60 and side([300], 48) == 48
    with pytest.raises(InputError, match="--size 3 is too small"):
        side([300], 3)


def test_images_beyond_four_gibibytes_are_refused_with_a_size_that_fits() -> None:
    check_image_memory(1_000_000, ImageSpec(32, 3, False))
    with pytest.raises(InputError, match=r"would take 11\.4 GiB; use --size 32 or less"):
        check_image_memory(1_000_000, ImageSpec(64, 3, False))
    with pytest.raises(InputError, match="use fewer images"):
        check_image_memory(10**9, ImageSpec(8, 3, False))


def test_unreadable_images_are_named_and_counted_or_skipped_and_noted(tmp_path: Path) -> None:
    class_folders(tmp_path)
    for number in range(4):
        written(tmp_path / "cat" / f"bad{number}.jpg", "no image")
    whole = picture(tmp_path / "dog" / "cut.png", width=90, height=90).read_bytes()
    (tmp_path / "dog" / "cut.png").write_bytes(whole[: len(whole) // 2])
    message = wrong(tmp_path)
    assert "5 of 13 images cannot be read: cat/bad0.jpg (not an image), cat/bad1.jpg" in message
    assert "bad3" not in message and "--skip-unreadable" in message
    source = read(tmp_path, skip_unreadable=True)
    assert (
        len(source.ids) == len(source.given_labels) == len(source.inputs) == 8
        and "dog/cut.png" not in source.ids
    )
    assert any(
        "5 of 13 images cannot be read" in note and "skipped" in note for note in source.notes
    )


def test_a_class_that_is_left_without_images_is_no_class(tmp_path: Path) -> None:
    class_folders(tmp_path)
    (tmp_path / "eel").mkdir()
    written(tmp_path / "eel" / "bad.png", "no image")
    assert read(tmp_path, skip_unreadable=True).classes == ("cat", "dog")


def test_an_image_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path)
    Image.new("1", (8000, 6251)).save(tmp_path / "cat" / "huge.png")
    assert "cat/huge.png (8000 × 6251 pixels, more than 50,000,000)" in wrong(tmp_path)


def test_a_file_that_pretends_to_be_an_image_is_not_opened_by_other_decoders(
    tmp_path: Path,
) -> None:
    class_folders(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "x.png", format="TIFF")
    assert "cat/x.png (not an image)" in wrong(tmp_path)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "data")
    outside = picture(tmp_path / "outside.png")
    (root / "cat" / "link.png").symlink_to(outside)
    assert "is a broken link, or one that points outside" in wrong(root)


def test_links_in_circles_end(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    (root / "unlabeled" / "deep" / "round").symlink_to(root / "unlabeled")
    assert len(read(root).ids) == 8


def test_folders_that_are_wrong_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty is empty; make one folder" in wrong(empty)
    picture(tmp_path / "flat" / "a.png")
    assert "flat has no class folders" in wrong(tmp_path / "flat")
    root = class_folders(tmp_path / "hole")
    (root / "eel").mkdir()
    assert "class folder" in wrong(root) and "contains no images" in wrong(root)
    class_folders(tmp_path / "nested" / "train")
    assert "contains folders, such as 'cat'" in wrong(tmp_path / "nested")
    picture(tmp_path / "one" / "cat" / "a.png")
    assert "only one class, 'cat'" in wrong(tmp_path / "one")


def test_images_beside_the_class_folders_are_noted(tmp_path: Path) -> None:
    picture(class_folders(tmp_path) / "a.png")
    source = read(tmp_path)
    assert len(source.ids) == 8 and any(
        "ignored 1 image outside the class folders" in note for note in source.notes
    )


def test_options_of_tables_are_refused_for_folders(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    assert "--target applies only to tables" in wrong(root, "y")
    assert "is a folder, whose subfolders are classes" in wrong(root, task="regression")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    (root / "cat").chmod(0)
    try:
        assert "cannot be read (Permission denied)" in wrong(root)
    finally:
        (root / "cat").chmod(0o700)


def faces(folder: Path, lines: list[str]) -> Path:
    picture(folder / "in" / "a.png", width=120, height=60)
    picture(folder / "in" / "b.png", width=30, height=90)
    picture(folder / "in" / "c.png")
    return written(folder / "faces.csv", "\n".join(["file,x1,y1,x2,y2,who", *lines]) + "\n")


FACES = ["in/a.png,12,30,60,6,u", "in/b.png,3,9,30,90,v", "in/c.png,,,,,w"]


def test_landmarks_move_with_the_images_and_back(tmp_path: Path) -> None:
    source = read(faces(tmp_path, FACES), "x1", "y1", "x2", "y2", image="file", id="who")
    assert source.points and source.inputs.shape == (3, 3, 60, 60) and source.ids == ["u", "v", "w"]
    np.testing.assert_allclose(source.given_labels[:2], [[6, 30, 30, 6], [6, 6, 60, 60]])
    assert np.isnan(source.given_labels[2]).all() and source.sizes is not None
    np.testing.assert_allclose(
        points_from_square(source.given_labels, source.sizes, 60)[1], [3, 9, 30, 90]
    )
    assert any("2 landmarks x, y" in note and "--landmarks no" in note for note in source.notes)


def test_images_of_a_table_are_named_by_their_paths_unless_some_are_there_twice(
    tmp_path: Path,
) -> None:
    names = ("x1", "y1", "x2", "y2")
    path = faces(tmp_path, FACES)
    paths = ["in/a.png", "in/b.png", "in/c.png"]
    assert read(path, *names, image="file").ids == paths
    source = read(path, *names, image="file", id="file")
    assert source.ids == paths
    new = written(tmp_path / "new.csv", "file\nin/c.png\nin/a.png\n")
    assert read_new(str(new), source.options, None).ids == ["in/c.png", "in/a.png"]
    twice = faces(tmp_path, [*FACES, FACES[0]])
    assert read(twice, *names, image="file").ids == ["1", "2", "3", "4"]
    assert "id 'in/a.png' in row 4 is a duplicate" in wrong(twice, *names, image="file", id="file")


def test_a_landmark_lies_on_the_same_spot_of_the_resized_image(tmp_path: Path) -> None:
    pixels = np.zeros((80, 160), dtype=np.uint8)
    pixels[20:24, 120:128] = 255  # centred on x 124, y 22
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels[:, ::-1]).save(tmp_path / "b.png")
    path = written(tmp_path / "a.csv", "file,x1,y1,x2,y2\na.png,124,22,0,0\nb.png,36,22,1,1\n")
    source = read(path, "x1", "y1", "x2", "y2", image="file")
    for image, given in zip(source.inputs[:, 0].astype(float), source.given_labels, strict=True):
        rows, columns = np.indices(image.shape) + 0.5
        centre = [(columns * image).sum() / image.sum(), (rows * image).sum() / image.sum()]
        np.testing.assert_allclose(centre, given[:2], atol=0.5)


def test_targets_outside_of_the_images_are_plain_numbers_unless_said_otherwise(
    tmp_path: Path,
) -> None:
    path = faces(tmp_path, [FACES[0], "in/b.png,31,9,30,90,v", FACES[2]])
    source = read(path, "x1", "y1", "x2", "y2", image="file")
    assert (
        not source.points
        and source.given_labels[1].tolist() == [31, 9, 30, 90]
        and source.inputs.shape[2] < 60
    )
    assert any("--landmarks yes" in note for note in source.notes)
    assert read(path, "x1", "y1", "x2", "y2", image="file", landmarks="yes").points
    assert not read(
        faces(tmp_path, FACES), "x1", "y1", "x2", "y2", image="file", landmarks="no"
    ).points
    assert "even number of columns" in wrong(path, "x1", "y1", "x2", image="file", landmarks="yes")


def test_a_column_of_images_can_have_classes_and_paths_within_the_folder(tmp_path: Path) -> None:
    lines = [FACES[0], f"{tmp_path}/in/b.png,3,9,30,90,v", "in\\c.png,,,,,"]
    source = read(faces(tmp_path, lines), "who", image="file")
    assert (
        source.classes == ("u", "v")
        and source.given_labels.tolist() == [0, 1, -1]
        and source.ids == ["in/a.png", f"{tmp_path}/in/b.png", "in\\c.png"]
    )
    assert "ignored (only images are used): 'x1', 'y1', 'x2', 'y2'" in source.notes


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "in/../../secret.png", "/etc/secret.png", "C:\\secret.png", "out/s.png"],
)
def test_paths_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "secret.png")
    (tmp_path / "data").mkdir()
    picture(tmp_path / "other" / "s.png")
    (tmp_path / "data" / "out").symlink_to(tmp_path / "other")
    path = faces(tmp_path / "data", [FACES[0], FACES[1], f"{name},,,,,w"])
    assert "row 3" in wrong(path, "x1", image="file") and "is outside" in wrong(
        path, "x1", image="file"
    )


def test_landmarks_must_be_whole_and_paths_there(tmp_path: Path) -> None:
    points = ("x1", "y1", "x2", "y2")
    assert "row 2 has some targets, but 'y2' is blank" in wrong(
        faces(tmp_path, [FACES[0], "in/b.png,3,9,30,,v", FACES[2]]), *points, image="file"
    )
    assert "row 3: the image path is blank" in wrong(
        faces(tmp_path, [*FACES[:2], ",1,1,1,1,w"]), *points, image="file"
    )
    missing = faces(tmp_path, [*FACES, "in/none.png,,,,,x"])
    assert "1 of 4 images cannot be read: in/none.png (missing)" in wrong(
        missing, *points, image="file"
    )
    kept = read(missing, *points, image="file", skip_unreadable=True)
    assert kept.ids == ["in/a.png", "in/b.png", "in/c.png"]


def test_a_thumbnail_is_the_image_at_most_96_pixels_wide(tmp_path: Path) -> None:
    source = read(class_folders(tmp_path), size=128)
    sample = source.make_preview(0)
    assert sample.png_base64 is not None and sample.fields is None
    image = Image.open(io.BytesIO(base64.b64decode(sample.png_base64)))
    assert (
        image.format == "PNG"
        and image.size == (96, 96)
        and image.getpixel((50, 50)) == (200, 80, 20)
    )


def test_progress_is_told_now_and_then() -> None:
    heard: list[str] = []
    assert list(report_progress("abc", 3, "read", heard.append, interval_s=0)) == ["a", "b", "c"]
    assert heard == ["read 1 of 3 images", "read 2 of 3 images", "read 3 of 3 images"]
    assert (
        list(report_progress("abc", 3, "read", heard.append)) == ["a", "b", "c"] and len(heard) == 3
    )
