"""Checkpoints: tensors as safetensors, the rest as JSON in one file with a checksum, written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from l2i.batch import Params
from l2i.errors import InputError, NoRoom
from l2i.training.streamed import pieces, values

KEEP = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NUMBERS = {"step": (int,), "metrics_size": (int,), "at_once": (int,), "seconds": (int, float)}  # beside the tensors


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """A disk that is full is called so; what was whole before stays so."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        there = bool(checkpoints(folder / "checkpoints"))
        whole = "the last checkpoint is whole: free some space, and the same command goes on from there"
        told = whole if there else "free some space, or give another --out"
        raise NoRoom(f"no room is left for {error.filename or folder} ({error.strerror}); {told}") from None


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write `content` so that a reader, or a crash, sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # anew: one that is there already may be a link
            file.writelines([content] if isinstance(content, bytes) else content)
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


def save_checkpoint(folder: Path, step: int, tensors: Params, meta: dict[str, Any], *, keep: int = KEEP) -> None:
    """Save the state after `step` steps; the last `keep` checkpoints stay, this one among them."""
    folder.mkdir(exist_ok=True)
    kept = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    rest = json.dumps(meta)
    write_whole(path_of(folder, step), pieces(kept, {"json": rest, "digest": digest(kept, rest)}))
    for old in checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)


def packed(tensors: Params, meta: dict[str, Any]) -> bytes:
    """A state in one piece, to be sent."""
    rest = json.dumps(meta).encode()
    return len(rest).to_bytes(8, "little") + rest + save(tensors)


def unpacked(content: bytes) -> tuple[Params, dict[str, Any]]:
    """The state of such a piece."""
    end = 8 + int.from_bytes(content[:8], "little")
    return load(content[end:]), json.loads(content[8:end])


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"{step:010d}.safetensors"


def digest(tensors: Params, rest: str) -> str:
    """A checksum of all that a checkpoint holds."""
    total = hashlib.blake2b(rest.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(values(tensor))
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
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):  # gone, or on a bad place of the disk
            return None
        raise InputError(f"{path} cannot be read ({error.strerror}); see to it, and try again") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        if "memory" in str(error):
            raise
        return None
    return (tensors, meta) if sound(meta) else None


def sound(meta: object) -> bool:
    """Whether what goes with the tensors is of the kinds that this package writes: a stranger's may not be."""
    if not isinstance(meta, dict) or not isinstance(meta.get("config", {}), dict) or "step" not in meta:
        return False
    return all(type(meta[name]) in kinds and 0 <= meta[name] < 2**53 for name, kinds in NUMBERS.items() if name in meta)


def newest_whole(folder: Path, told: Callable[[str], None] | None = None) -> tuple[Params, dict[str, Any]]:
    """The newest checkpoint that is whole; raises where none is.

    `told` hears of damaged ones, which are then put aside: it is for the process whose run it is.
    """
    damaged: list[Path] = []
    for path in reversed(checkpoints(folder)):
        loaded = load_checkpoint(path)
        if loaded is None:
            damaged.append(path)
            continue
        if told is not None:
            for bad in damaged:
                told(f"{bad} is damaged; going on from the one before it, of step {loaded[1]['step']:,}")
                bad.replace(bad.with_suffix(".damaged"))  # no longer one of those kept
        return loaded
    raise InputError(
        f"no whole checkpoint is left in {folder}; train in another --out, or remove the run folder to start again"
    )
