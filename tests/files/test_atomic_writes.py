"""Files are written so that their name is only ever that of a complete file."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from l2i.files.output import write_atomic
from l2i.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint

MIB = 2**20


class RecordedSyncs:
    """Calls of os.fsync: of what kind each was, and what the folder then held."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, dict[str, int]]] = []
        fsync = os.fsync

        def record(fd: int) -> None:
            state = os.fstat(fd)
            is_folder = stat.S_ISDIR(state.st_mode)
            if is_folder:
                assert state.st_ino == folder.stat().st_ino
            sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
            self.calls.append(("folder" if is_folder else "file", sizes))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", record)


@pytest.mark.skipif(os.name != "posix", reason="folders are synced on POSIX alone")
def test_the_file_is_on_disk_before_it_gets_its_name_and_the_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RecordedSyncs(tmp_path, monkeypatch)
    write_atomic(tmp_path / "out.bin", [b"a" * MIB, memoryview(b"b" * MIB)])
    (first, before), (second, after) = recorded.calls
    assert (first, second) == ("file", "folder")
    assert "out.bin" not in before and list(before.values()) == [2 * MIB]  # complete, unnamed
    assert after == {"out.bin": 2 * MIB}
    assert (tmp_path / "out.bin").read_bytes() == b"a" * MIB + b"b" * MIB


@pytest.mark.parametrize("content", [b"short", [b"sho", memoryview(b"rt")]])
def test_not_even_a_few_bytes_wait_in_a_buffer_when_the_file_is_synced(
    content: bytes | list[bytes | memoryview], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RecordedSyncs(tmp_path, monkeypatch)
    write_atomic(tmp_path / "out.bin", content)
    assert list(recorded.calls[0][1].values()) == [len(b"short")]


@pytest.mark.parametrize("earlier", [None, b"what was there"])
def test_a_reader_sees_the_file_that_was_there_until_the_new_one_is_complete(
    tmp_path: Path, earlier: bytes | None
) -> None:
    path = tmp_path / "out.bin"
    if earlier is not None:
        path.write_bytes(earlier)
    seen: list[bytes | None] = []

    def pieces() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x" * MIB  # more than any buffer holds
            seen.append(path.read_bytes() if path.exists() else None)

    write_atomic(path, pieces())
    assert seen == [earlier] * 3
    assert path.read_bytes() == b"x" * (3 * MIB)


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_write_that_is_broken_off_leaves_the_folder_as_it_was(
    tmp_path: Path, error: BaseException
) -> None:
    (tmp_path / "out.bin").write_bytes(b"what was there")

    def pieces() -> Iterator[bytes]:
        yield b"x" * MIB
        raise error

    with pytest.raises(type(error)):
        write_atomic(tmp_path / "out.bin", pieces())
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
    assert (tmp_path / "out.bin").read_bytes() == b"what was there"


def test_a_checkpoint_gets_its_name_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"w": torch.randn(MIB)}
    save_checkpoint(tmp_path, 1, tensors, {"step": 1})
    recorded = RecordedSyncs(tmp_path, monkeypatch)
    save_checkpoint(tmp_path, 2, tensors, {"step": 2})
    checkpoints = [
        {name for name in sizes if name.endswith(".safetensors")} for _, sizes in recorded.calls
    ]
    old, new = "0000000001.safetensors", "0000000002.safetensors"
    assert [kind for kind, _ in recorded.calls] == ["file", "folder"]
    assert checkpoints == [{old}, {old, new}]
    assert max(recorded.calls[0][1].values()) >= 4 * MIB


def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"w": torch.randn(9)}, {"step": step})
    before = list_checkpoints(tmp_path)

    def fail(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(tmp_path, 3, {"w": torch.randn(9)}, {"step": 3})
    assert list_checkpoints(tmp_path) == before
    assert all(load_checkpoint(path) is not None for path in before)
