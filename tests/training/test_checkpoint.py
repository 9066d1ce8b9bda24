"""Checkpoints: their bytes on disk, and the metadata that is believed."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path

import pytest
import torch

from l2i.errors import DamagedFile, DiskFull
from l2i.training.checkpoint import (
    compute_digest,
    deserialize,
    get_checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    load_latest_checkpoint,
    save_checkpoint,
    serialize,
    translate_disk_full,
)

TENSORS = {
    "b": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "c": torch.tensor([[1.5, -2.0]]),
    "a": torch.tensor(True),
    "d": torch.arange(2, dtype=torch.float64),
}


def read_header(path: Path) -> tuple[int, dict[str, dict[str, list[int]]]]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return size, json.loads(content[8 : 8 + size])


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 12, TENSORS, {"step": 12, "seconds": 1.5})
    (path,) = list_checkpoints(tmp_path)
    assert path == get_checkpoint_path(tmp_path, 12) == tmp_path / "0000000012.safetensors"
    loaded = load_checkpoint(path)
    assert loaded is not None
    tensors, meta = loaded
    assert meta == {"step": 12, "seconds": 1.5} and tensors.keys() == TENSORS.keys()
    assert all(
        torch.equal(tensors[n], t) and tensors[n].dtype == t.dtype for n, t in TENSORS.items()
    )


def test_every_tensor_of_a_file_begins_at_a_multiple_of_its_elements_size(tmp_path: Path) -> None:
    """So that a reader can map the file into memory."""
    save_checkpoint(tmp_path, 1, TENSORS, {"step": 1})
    size, header = read_header(tmp_path / "0000000001.safetensors")
    assert size % 8 == 0
    for name, tensor in TENSORS.items():
        start, end = header[name]["data_offsets"]
        assert start % tensor.element_size() == 0
        assert end - start == tensor.numel() * tensor.element_size()


def test_a_checksum_is_that_of_metadata_names_types_shapes_and_values() -> None:
    expected = hashlib.blake2b(b"{}", digest_size=16)
    expected.update(b"a torch.bool []" + b"\x01")
    expected.update(b"b torch.uint8 [3]" + b"\x01\x02\x03")
    tensors = {name: TENSORS[name] for name in ("b", "a")}
    assert compute_digest(tensors, "{}") == expected.hexdigest()


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"step": -1},
        {"step": 1.0},
        {"step": True},
        {"step": 1, "seconds": "1"},
        {"step": 1, "seconds": -0.5},
        {"step": 1, "seconds": float("nan")},
        {"step": 1, "seconds": float("inf")},
        {"step": 1, "config": []},
        {"step": 1, "metrics_size": -1},
        {"step": 1, "metrics_size": "1"},
        [1],
    ],
)
def test_metadata_of_other_types_is_damage(meta: object, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, TENSORS, meta)  # type: ignore[arg-type]
    assert load_checkpoint(tmp_path / "0000000001.safetensors") is None


def test_metadata_may_begin_at_zero(tmp_path: Path) -> None:
    meta = {"step": 0, "seconds": 0.0, "metrics_size": 0, "config": {}}
    save_checkpoint(tmp_path, 0, TENSORS, meta)
    loaded = load_checkpoint(tmp_path / "0000000000.safetensors")
    assert loaded is not None and loaded[1] == meta


def test_the_newest_checkpoints_are_kept_in_number_order(tmp_path: Path) -> None:
    for step in (2, 10, 100):
        save_checkpoint(tmp_path, step, TENSORS, {"step": step}, keep=2)
    assert [path.stem for path in list_checkpoints(tmp_path)] == ["0000000010", "0000000100"]


def test_damaged_checkpoints_are_put_aside_on_request_alone(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, TENSORS, {"step": step}, keep=3)
    for step in (2, 3):
        path = get_checkpoint_path(tmp_path, step)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert load_latest_checkpoint(tmp_path)[1]["step"] == 1
    assert len(list_checkpoints(tmp_path)) == 3
    heard: list[str] = []
    assert load_latest_checkpoint(tmp_path, heard.append)[1]["step"] == 1
    assert len(heard) == 2 and all("at step 1" in line for line in heard)
    assert [path.stem for path in list_checkpoints(tmp_path)] == ["0000000001"]
    assert len(list(tmp_path.glob("*.damaged"))) == 2
    get_checkpoint_path(tmp_path, 1).write_bytes(b"")
    with pytest.raises(DamagedFile, match="no intact checkpoint is left"):
        load_latest_checkpoint(tmp_path)


def test_a_state_is_the_same_after_it_was_sent() -> None:
    tensors, meta = deserialize(serialize(TENSORS, {"step": 3, "name": "ä"}))
    assert meta == {"step": 3, "name": "ä"}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_full_disk_says_whether_a_checkpoint_is_there(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left", "file")
    no_checkpoint = r"cannot write file \(No space left\); free some space"
    with pytest.raises(DiskFull, match=no_checkpoint), translate_disk_full(tmp_path):
        raise error
    (tmp_path / "checkpoints").mkdir()
    save_checkpoint(tmp_path / "checkpoints", 1, TENSORS, {"step": 1})
    one_checkpoint = "; the last checkpoint is intact: free some space"
    with pytest.raises(DiskFull, match=one_checkpoint), translate_disk_full(tmp_path):
        raise error
    with pytest.raises(PermissionError), translate_disk_full(tmp_path):
        raise PermissionError(errno.EACCES, "no")
