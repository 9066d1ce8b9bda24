"""A stranger's arrays: archives that unpack to more than they say, lying headers, pickles."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bombs import MIB, zeros_packed
from confined import confined, message_of, refused
from numpy.lib import format as npy

from l2i.data.datasets.faces import read_faces
from l2i.fit.candidates import read_snapshots
from l2i.fit.options import ReadOptions
from l2i.fit.readers.source import read_source


def header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    """The start of an .npy that claims to hold an array."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def bomb(path: Path, name: str, start: bytes, mebibytes: int, *, says: int | None = None) -> Path:
    """An archive whose one array unpacks to so many MiB; its directory may give another size."""
    packed = zeros_packed(start, mebibytes)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.npy", packed)
        member = archive.infolist()[0]
        archive.fp.seek(8)  # type: ignore[union-attr]
        archive.fp.write(zipfile.ZIP_DEFLATED.to_bytes(2, "little"))  # type: ignore[union-attr]
        archive.fp.seek(archive.start_dir)  # type: ignore[union-attr]
        member.compress_type = zipfile.ZIP_DEFLATED
        member.file_size = len(start) + mebibytes * MIB if says is None else says
    return path


def with_x(path: Path, content: bytes, **options: Any) -> Path:
    """An archive of whatever bytes as x, and a y of two classes."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("x.npy", content)
        file = io.BytesIO()
        np.save(file, np.array([0, 1, -1]))
        archive.writestr("y.npy", file.getvalue())
    return path


def test_an_archive_that_unpacks_to_eight_gibibytes_is_refused_unread(tmp_path: Path) -> None:
    path = bomb(tmp_path / "data.npz", "x", header((1024, MIB)), 8192)
    assert path.stat().st_size < 10 * MIB
    line = refused("fit", "data.npz", cwd=tmp_path)
    assert (
        "data.npz would take 8.0 GiB of memory, more than 1 GiB and 20 times its size on disk"
        in line
    )
    assert "write it with numpy.savez" in line


def test_faces_are_refused_alike(tmp_path: Path) -> None:
    bomb(tmp_path / "faces.npz", "x_train", header((2 * MIB, 60, 60), "|u1"), 8192)
    assert "would take 8.0 GiB of memory" in message_of(lambda: read_faces(str(tmp_path)))


@pytest.mark.parametrize(
    ("rows", "says"), [(1024, 1000), (1024, 2**29), (8, len(header((8, MIB))) + 2**26)]
)
def test_a_directory_that_lies_about_the_size_is_no_way_around_the_limit(
    tmp_path: Path, rows: int, says: int
) -> None:
    bomb(tmp_path / "data.npz", "x", header((rows, MIB)), 4096, says=says)
    assert "is damaged, or not an .npz" in refused("fit", "data.npz", cwd=tmp_path, room=2**29)


def test_an_archive_that_really_shrinks_a_lot_is_read(tmp_path: Path) -> None:
    x = np.zeros((4000, 1000), dtype=np.uint8)
    x[::2, 0] = 1
    np.savez_compressed(tmp_path / "data.npz", x=x, y=np.arange(4000) % 2)
    assert x.nbytes > 100 * (tmp_path / "data.npz").stat().st_size
    assert confined(lambda: len(read_source(str(tmp_path / "data.npz"), ReadOptions()).ids)) == 4000


@pytest.mark.parametrize("shape", [(10**12, 2), (2**62, 4), (-1, 3), (10**6, 10**6, 10**6)])
def test_a_header_that_claims_a_gigantic_shape_makes_no_room_for_it(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    with_x(tmp_path / "data.npz", header(shape) + bytes(48))
    assert "is damaged, or not an .npz" in refused("fit", "data.npz", cwd=tmp_path, room=2**29)


def test_small_numbers_may_not_become_a_large_table(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "data.npz",
        x=np.zeros((200_000, 1000), dtype=bool),
        y=np.zeros(200_000, dtype=int),
    )
    assert "would take 1.5 GiB of memory" in refused("fit", "data.npz", cwd=tmp_path, room=10**9)


def test_a_million_columns_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "data.npz", x=np.zeros((3, 10**6), dtype=np.uint8), y=np.array([0, 1, -1])
    )
    assert "data.npz has 1,000,000 columns, more than 100,000" in refused(
        "fit", "data.npz", cwd=tmp_path
    )


class Touch:
    """What a pickle runs when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["x", "y"])
def test_arrays_of_objects_are_not_unpickled(tmp_path: Path, name: str) -> None:
    arrays = {"x": np.zeros((3, 2)), "y": np.arange(3)}
    objects = np.array([Touch(tmp_path / "touched")] * 3, dtype=object)
    np.savez(tmp_path / "data.npz", **{**arrays, name: objects})
    assert "without Python objects" in refused("fit", "data.npz", cwd=tmp_path)
    assert not (tmp_path / "touched").exists()


def test_a_header_of_nested_literals_is_not_parsed(tmp_path: Path) -> None:
    text = b"{'descr': " + b"(" * 30_000 + b")" * 30_000 + b"}\n"
    start = npy.magic(2, 0) + len(text).to_bytes(4, "little") + text
    with_x(tmp_path / "data.npz", start)
    assert "is damaged, or not an .npz" in refused("fit", "data.npz", cwd=tmp_path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packers_that_numpy_does_not_use_are_not_unpacked(tmp_path: Path, kind: int) -> None:
    with_x(tmp_path / "data.npz", header((3, 2)) + bytes(48), compression=kind)
    assert "is damaged, or not an .npz" in refused("fit", "data.npz", cwd=tmp_path)


def test_names_that_lead_out_and_thousands_of_them_are_names_alone(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with zipfile.ZipFile(inner / "data.npz", "w") as archive:
        for name in ("../x", "/tmp/x", *(f"a{i}" for i in range(20_000))):
            archive.writestr(f"{name}.npy", b"")
    line = refused("fit", "data.npz", cwd=inner)
    assert "has no array x, only ../x, /tmp/x, a0" in line
    assert "and 19,994 more" in line
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("000000010.npy", header((10**12,), "<i4") + bytes(40)),
        ("000000010.npy", b"\x80\x04cos\nsystem\n(S'touch touched'\ntR."),
        ("000000010.npy", header((0,), "|O") + b"cos\nsystem\n(S'touch touched'\ntR."),
        ("evil.npy", header((1,), "<i4") + bytes(4)),
    ],
)
def test_snapshots_are_read_no_further_than_they_are_whole(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert "is damaged; fit again" in message_of(lambda: read_snapshots(tmp_path, 100), room=2**29)
    assert not Path("touched").exists()
