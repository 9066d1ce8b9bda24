"""Photos are turned upright by the orientation that a camera writes into their EXIF data."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from l2i.files.images import UPRIGHT, decode_image, get_orientation, get_upright_size, open_image

INVERSE = {6: 8, 8: 6}  # the others undo themselves
UPRIGHT_PHOTO = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (6, 10, 3), dtype=np.uint8)
)


def save(orientation: int, kind: str) -> bytes:
    """The file of a camera that was held so that its photo needs turning."""
    photo = UPRIGHT_PHOTO
    if orientation in UPRIGHT:
        photo = photo.transpose(UPRIGHT[INVERSE.get(orientation, orientation)])
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    photo.save(file, format=kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_becomes_the_upright_photo(orientation: int, kind: str) -> None:
    content = save(orientation, kind)
    decoded = np.asarray(decode_image(content, lambda image: image.convert("RGB"))).astype(int)
    assert decoded.shape == (6, 10, 3)
    gap = np.abs(decoded - np.asarray(UPRIGHT_PHOTO).astype(int)).mean()
    turned = np.abs(decoded[::-1] - np.asarray(UPRIGHT_PHOTO).astype(int)).mean()
    assert gap == 0 if kind != "JPEG" else gap < 0.8 * turned  # which loses detail
    with open_image(content) as image:
        assert get_upright_size(image) == (10, 6)


@pytest.mark.parametrize("orientation", [0, 9, 1000])
def test_an_orientation_that_does_not_exist_changes_nothing(orientation: int) -> None:
    with open_image(save(orientation, "PNG")) as image:
        assert get_orientation(image) == 1


def test_damaged_metadata_do_not_make_a_photo_unreadable() -> None:
    content = bytearray(save(6, "JPEG"))
    place = content.index(b"Exif") + 6
    content[place : place + 12] = b"\xff" * 12
    with open_image(bytes(content)) as image:
        assert get_orientation(image) == 1
