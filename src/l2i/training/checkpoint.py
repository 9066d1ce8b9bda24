"""Checkpoints: tensors as safetensors with JSON metadata and a checksum, written atomically."""

from __future__ import annotations

import errno
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from l2i.bilevel.functional import Params
from l2i.errors import DamagedFile, DiskFull, InputError, NonFiniteCost
from l2i.files.output import is_disk_full, write_atomic
from l2i.training.metrics import NON_FINITE_ADVICE, check_finite

DEFAULT_KEEP = 2
DAMAGED_ERRORS = (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, RecursionError)
METADATA_COUNTS = ("step", "metrics_size", "concurrent_runs")  # of the metadata, ints
MAX_NUMBER = 2**53  # in the metadata
HEADER_ALIGNMENT = 8  # bytes, of the first tensor in a file
DTYPE_NAMES = {  # in safetensors files
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Checkpoint = tuple[Params, dict[str, Any]]  # tensors and metadata


@contextmanager
def translate_disk_full(folder: Path) -> Iterator[None]:
    """Turn the OSError of a full disk into DiskFull; complete files stay as they were."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        has_checkpoint = bool(list_checkpoints(folder / "checkpoints"))
        state = "the last checkpoint is intact: " if has_checkpoint else ""
        advice = f"{state}free some space, then the same command resumes"
        problem = f"the disk is full: cannot write {error.filename or folder} ({error.strerror})"
        raise DiskFull(f"{problem}; {advice}") from None


def get_checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"{step:010d}.safetensors"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted(folder.glob("*.safetensors"))


def save_checkpoint(
    folder: Path, step: int, tensors: Params, meta: dict[str, Any], *, keep: int = DEFAULT_KEEP
) -> None:
    """Save the state after `step` steps, and remove all but the last `keep` checkpoints."""
    folder.mkdir(exist_ok=True)
    host_tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata_json = json.dumps(meta)
    header = {"json": metadata_json, "digest": compute_digest(host_tensors, metadata_json)}
    write_atomic(get_checkpoint_path(folder, step), _iter_safetensors(host_tensors, header))
    for old_path in list_checkpoints(folder)[:-keep]:
        old_path.unlink(missing_ok=True)


def _iter_safetensors(tensors: Params, metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a safetensors file: the size of its header, the header, the tensors.

    The library's `save` holds the GIL, and its `save_file` reports a full disk without an errno.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        dtype, shape = DTYPE_NAMES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    header_json = json.dumps(header, separators=(",", ":")).encode()
    header_json += b" " * (-len(header_json) % HEADER_ALIGNMENT)
    yield len(header_json).to_bytes(8, "little") + header_json
    for _, tensor in ordered:
        yield _view_bytes(tensor)


def _view_bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def compute_digest(tensors: Params, metadata_json: str) -> str:
    """Return a checksum of everything in a checkpoint."""
    hasher = hashlib.blake2b(metadata_json.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hasher.update(_view_bytes(tensor))
    return hasher.hexdigest()


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Return the tensors and metadata of a checkpoint, or None if the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata()
        if header["digest"] != compute_digest(tensors, header["json"]):
            return None
        meta: dict[str, Any] = json.loads(header["json"])
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):  # removed, or on a bad sector
            return None
        problem = f"{path} cannot be read ({error.strerror})"
        raise InputError(f"{problem}; fix that, and try again") from None
    except DAMAGED_ERRORS as error:
        if "memory" in str(error):
            raise
        return None
    return (tensors, meta) if _is_valid(meta) else None


def _is_valid(meta: object) -> bool:
    """Return whether the metadata of an untrusted checkpoint has the types this package writes."""
    if not isinstance(meta, dict) or not isinstance(meta.get("config", {}), dict):
        return False
    counts = [meta[name] for name in METADATA_COUNTS if name in meta]
    seconds = meta.get("seconds", 0.0)
    has_types = all(type(v) is int for v in counts) and type(seconds) in (int, float)
    return "step" in meta and has_types and all(0 <= v < MAX_NUMBER for v in (*counts, seconds))


def load_latest_checkpoint(
    folder: Path, on_damaged: Callable[[str], None] | None = None
) -> Checkpoint:
    """Return the newest undamaged checkpoint; with `on_damaged`, put damaged ones aside."""
    damaged: list[Path] = []
    for path in reversed(list_checkpoints(folder)):
        loaded = load_checkpoint(path)
        if loaded is None:
            damaged.append(path)
            continue
        if on_damaged is not None:
            for bad in damaged:
                step = loaded[1]["step"]
                on_damaged(f"{bad} is damaged; resuming from the previous one, at step {step:,}")
                bad.replace(bad.with_suffix(".damaged"))  # no longer counted
        return loaded
    fix = "train with a different --out, or remove the run folder to start again"
    raise DamagedFile(f"no intact checkpoint is left in {folder}; {fix}")


def serialize(tensors: Params, meta: dict[str, Any]) -> bytes:
    """Serialize a state to send it to other processes."""
    metadata_json = json.dumps(meta).encode()
    return len(metadata_json).to_bytes(8, "little") + metadata_json + save(tensors)


def deserialize(content: bytes) -> Checkpoint:
    """Return the state that `serialize` was given."""
    end = 8 + int.from_bytes(content[:8], "little")
    return load(content[end:]), json.loads(content[8:end])


class AsyncCheckpointer:
    """Write checkpoints in a background thread, in order; errors are raised at the next call."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="l2i checkpoints")
        self.pending: deque[Future[None]] = deque()

    def save(
        self,
        folder: Path,
        step: int,
        tensors: Params,
        meta: dict[str, Any],
        *,
        keep: int = DEFAULT_KEEP,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy the tensors and write them after `before_write`; at most two saves are pending."""
        self.wait(max_pending=1)
        device = next((t.device for t in tensors.values() if t.is_cuda), None)
        with nullcontext() if device is None else torch.cuda.device(device):
            copies = {name: t.detach().clone() for name, t in tensors.items() if not t.is_cuda}
            copies |= _copy_to_host({name: t.detach() for name, t in tensors.items() if t.is_cuda})
            copy_event = None if device is None else torch.cuda.current_stream().record_event()

        def write() -> None:
            if copy_event is not None:
                copy_event.synchronize()
            _check_state_finite(step, copies)
            before_write()
            save_checkpoint(folder, step, copies, meta, keep=keep)

        self.pending.append(self.thread.submit(write))

    def raise_pending(self) -> None:
        """Raise the errors of finished saves."""
        while self.pending and self.pending[0].done():
            self.pending.popleft().result()

    def wait(self, *, max_pending: int = 0) -> None:
        """Wait until everything is on disk, or all but the last `max_pending` saves."""
        while len(self.pending) > max_pending:
            self.pending.popleft().result()

    def close(self) -> None:
        self.thread.shutdown()


def _check_state_finite(step: int, copies: Params) -> None:
    if "meter.first_bad" in copies:
        check_finite(copies["meter.first_bad"])
    for name, tensor in copies.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            problem = f"{name} is NaN or infinite at step {step}"
            raise NonFiniteCost(f"{problem}; {NON_FINITE_ADVICE}")


def _copy_to_host(tensors: Params) -> Params:
    """Start to copy GPU tensors without waiting, those of one dtype in a single transfer."""
    copies: Params = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
        same_dtype = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        flat = torch.cat([tensor.reshape(-1) for tensor in same_dtype.values()])
        buffer = flat.to("cpu", non_blocking=True)
        parts = buffer.split([tensor.numel() for tensor in same_dtype.values()])
        for (name, tensor), part in zip(same_dtype.items(), parts, strict=True):
            copies[name] = part.view(tensor.shape)
    return copies
