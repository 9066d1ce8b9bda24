"""Checkpoints: tensors as safetensors, the rest as JSON in one file with a checksum, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from l2i.batch import Params
from l2i.errors import InputError

KEEP = 2


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` so that a reader, or a crash, sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)  # the new name, too, must outlive a power cut
        os.fsync(folder)
        os.close(folder)


def save_checkpoint(folder: Path, step: int, tensors: Params, meta: dict[str, Any]) -> None:
    """Save the state after `step` steps; older checkpoints than the one before it go."""
    folder.mkdir(exist_ok=True)
    kept = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    rest = json.dumps(meta)
    write_whole(path_of(folder, step), save(kept, {"json": rest, "digest": digest(kept, rest)}))
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink()


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"{step:010d}.safetensors"


def digest(tensors: Params, rest: str) -> str:
    """A checksum of all that a checkpoint holds."""
    total = hashlib.blake2b(rest.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def checkpoints(folder: Path) -> list[Path]:
    """Those there are, oldest first."""
    return sorted(folder.glob("*.safetensors"))


def load_checkpoint(path: Path) -> tuple[Params, dict[str, Any]] | None:
    """Its tensors and the rest, or None where the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            written = file.metadata()
        if written["digest"] != digest(tensors, written["json"]):
            return None
        meta: dict[str, Any] = json.loads(written["json"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
    return tensors, meta


def newest_whole(folder: Path) -> tuple[Params, dict[str, Any]]:
    """The newest checkpoint that can be read; raises where none can."""
    damaged: list[Path] = []
    for path in reversed(checkpoints(folder)):
        loaded = load_checkpoint(path)
        if loaded is not None:
            for bad in damaged:
                bad.replace(bad.with_suffix(".damaged"))  # no longer one of those kept
            return loaded
        damaged.append(path)
    raise InputError(
        f"no whole checkpoint is left in {folder}; train in another --out, or remove the run folder to start again"
    )
