"""A stranger's images: more pixels than memory, chunks that unpack to more, other formats."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from bombs import zlib_zeros
from confined import confined, message_of, refused
from PIL import Image

from l2i.data.datasets.faces import read_mtfl
from l2i.files.images import ImageFiles
from l2i.fit.options import ReadOptions
from l2i.fit.readers.folders import ImageFileList
from l2i.fit.readers.image_files import ImageSpec, decode_image_files
from l2i.fit.readers.source import read_source


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *others: bytes, data: bytes | None = None) -> bytes:
    """A grey PNG with more chunks before its pixels, all of them black."""
    pixels = zlib.compress(bytes((width + 1) * height), 9) if data is None else data
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + start
        + b"".join(others)
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


def jpeg(width: int, height: int) -> bytes:
    """The start of a JPEG, up to where its pixels should be."""
    frame = struct.pack(">BHHBBBB", 8, height, width, 1, 1, 0x11, 0)
    return b"\xff\xd8\xff\xc0" + struct.pack(">H", 2 + len(frame)) + frame + b"\xff\xd9"


def gif(width: int, height: int) -> bytes:
    """One black pixel on a large canvas."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return screen + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00;"


def bmp(width: int, height: int) -> bytes:
    return (
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)
    )


def webp(width: int, height: int) -> bytes:
    size = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + size + b"VP8L" + struct.pack("<I", 0)
    return b"RIFF" + struct.pack("<I", len(body)) + body


BOMBS = {
    "png.png": png(100_000, 100_000, data=b""),
    "png-of-8000.png": png(8000, 8000, data=b""),
    "jpeg.jpg": jpeg(60_000, 60_000),
    "gif.gif": gif(60_000, 60_000),
    "bmp.bmp": bmp(100_000, 100_000),
    "webp.webp": webp(2**14, 2**14),
}
CHUNKS = {b"zTXt": b"words\0\0", b"iTXt": b"words\0\1\0\0\0", b"iCCP": b"colours\0\0"}


def folder(root: Path, **images: bytes) -> Path:
    """Two classes, and whatever images among the cats."""
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((9, 9), 40 * number, dtype=np.uint8)).save(
                root / name / f"{number}.png"
            )
    for name, content in images.items():
        (root / "cat" / name).write_bytes(content)
    return root


@pytest.mark.parametrize("name", BOMBS)
def test_an_image_of_too_many_pixels_is_refused_by_fit_and_where_files_are_decoded_later(
    name: str, tmp_path: Path
) -> None:
    folder(tmp_path / "own", **{name: BOMBS[name]})
    line = refused("fit", "own", cwd=tmp_path, room=2**29)
    assert f"cat/{name}" in line
    assert (
        "50,000,000" in line or name == "webp.webp"
    )  # whose own library makes room first, and is refused it
    image = str(tmp_path / "own" / "cat" / name)
    assert image in message_of(lambda: ImageFiles([image], 72).read(), room=2**29)


def test_a_face_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    for name in ("training.txt", "testing.txt"):
        (tmp_path / name).write_text("face.jpg 1 2 3 4 5 1 2 3 4 5 1 1 1 1\n")
    (tmp_path / "face.jpg").write_bytes(BOMBS["jpeg.jpg"])
    assert "face.jpg has more than 50,000,000 pixels" in message_of(
        lambda: read_mtfl(str(tmp_path)), room=2**29
    )


@pytest.mark.parametrize("kind", CHUNKS)
def test_a_chunk_that_unpacks_to_a_multiple_is_not_unpacked(kind: bytes, tmp_path: Path) -> None:
    folder(
        tmp_path / "own", **{"bomb.png": png(4, 4, chunk(kind, CHUNKS[kind] + zlib_zeros(1024)))}
    )
    line = refused("fit", "own", cwd=tmp_path, room=2**29)
    assert "cat/bomb.png (damaged: " in line


def test_the_largest_image_that_may_be_is_read_within_memory(tmp_path: Path) -> None:
    content = png(7000, 7000)
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(content)
    paths = [str(path) for path in sorted(tmp_path.iterdir())]

    def read() -> int:
        return len(
            decode_image_files(
                ImageFileList(paths, paths),
                lambda *_: ImageSpec(16, 3, False),
                skip_unreadable=False,
            ).indices
        )

    assert confined(read, room=10**9) == 2


def test_thin_images_and_films_are_read_as_one_small_square(tmp_path: Path) -> None:
    folder(tmp_path / "own", **{"tall.png": png(1, 100_000), "wide.png": png(100_000, 1)})
    frames = [Image.fromarray(np.full((9, 9), shade % 256, dtype=np.uint8)) for shade in range(200)]
    frames[0].save(tmp_path / "own" / "dog" / "film.gif", save_all=True, append_images=frames[1:])
    assert confined(lambda: read_source(str(tmp_path / "own"), ReadOptions()).inputs.shape) == (
        7,
        1,
        8,
        8,
    )


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
        b"(touched) (w) file closefile\nshowpage\n",
        b"\x00\x00\x00\x0cjP  \r\n\x87\n",
        b"P6\n3 3\n255\n" + bytes(27),
        b"II*\x00\x08\x00\x00\x00",
        b"",
    ],
    ids=["postscript", "jpeg 2000", "ppm", "tiff", "empty"],
)
def test_files_of_other_decoders_are_no_images_whatever_their_name(
    content: bytes, tmp_path: Path
) -> None:
    folder(tmp_path / "own", **{"odd.png": content})
    reason = "not an image" if content else "an empty file"
    assert f"cat/odd.png ({reason})" in refused("fit", "own", cwd=tmp_path)
    assert not Path("touched").exists()


def test_images_cut_short_are_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, size=(60, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    folder(tmp_path / "own", **{"cut.png": whole[: len(whole) // 2], "start.png": whole[:20]})
    line = refused("fit", "own", cwd=tmp_path)
    assert "2 of 6 images cannot be read: cat/cut.png (damaged: image file is truncated" in line
