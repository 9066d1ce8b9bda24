"""Checkpoints: tensors as safetensors, the rest as JSON in one file with a checksum, written whole or not at all.

MERGED:
Tensors in the format of safetensors, piece by piece: the library's own writer holds up other threads.
Checkpoints written beside the steps: these go on as soon as the state is copied.
"""

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

from l2i.bilevel.problem import Params
from l2i.errors import DiskFull, InputError, NonFiniteCost
from l2i.files.atomic import write_atomic
from l2i.training.metrics import check_finite

DEFAULT_KEEP = 2
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
METADATA_NUMBERS = {"step": (int,), "metrics_size": (int,), "concurrent_runs": (int,), "seconds": (int, float)}  # beside the tensors


@contextmanager
def translate_disk_full(folder: Path) -> Iterator[None]:
    """A disk that is full is called so; what was whole before stays so."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        has_checkpoint = bool(list_checkpoints(folder / "checkpoints"))
        resume_advice = "the last checkpoint is whole: free some space, and the same command goes on from there"
        advice = resume_advice if has_checkpoint else "free some space, or give another --out"
        raise DiskFull(f"no room is left for {error.filename or folder} ({error.strerror}); {advice}") from None


def save_checkpoint(folder: Path, step: int, tensors: Params, meta: dict[str, Any], *, keep: int = DEFAULT_KEEP) -> None:
    """Save the state after `step` steps; the last `keep` checkpoints stay, this one among them."""
    folder.mkdir(exist_ok=True)
    host_tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata_json = json.dumps(meta)
    write_atomic(get_checkpoint_path(folder, step), iter_safetensors(host_tensors, {"json": metadata_json, "digest": compute_digest(host_tensors, metadata_json)}))
    for old_path in list_checkpoints(folder)[:-keep]:
        old_path.unlink(missing_ok=True)


def serialize(tensors: Params, meta: dict[str, Any]) -> bytes:
    """A state in one piece, to be sent."""
    metadata_json = json.dumps(meta).encode()
    return len(metadata_json).to_bytes(8, "little") + metadata_json + save(tensors)


def deserialize(content: bytes) -> tuple[Params, dict[str, Any]]:
    """The state of such a piece."""
    end = 8 + int.from_bytes(content[:8], "little")
    return load(content[end:]), json.loads(content[8:end])


def get_checkpoint_path(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"{step:010d}.safetensors"


def compute_digest(tensors: Params, metadata_json: str) -> str:
    """A checksum of all that a checkpoint holds."""
    hasher = hashlib.blake2b(metadata_json.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hasher.update(view_bytes(tensor))
    return hasher.hexdigest()


def list_checkpoints(folder: Path) -> list[Path]:
    """Those there are, oldest first."""
    return sorted(folder.glob("*.safetensors"))


def load_checkpoint(path: Path) -> tuple[Params, dict[str, Any]] | None:
    """Its tensors and the rest, or None where the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            header = file.metadata()
        if header["digest"] != compute_digest(tensors, header["json"]):
            return None
        meta: dict[str, Any] = json.loads(header["json"])
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):  # gone, or on a bad place of the disk
            return None
        raise InputError(f"{path} cannot be read ({error.strerror}); see to it, and try again") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        if "memory" in str(error):
            raise
        return None
    return (tensors, meta) if is_valid(meta) else None


def is_valid(meta: object) -> bool:
    """Whether what goes with the tensors is of the kinds that this package writes: a stranger's may not be."""
    if not isinstance(meta, dict) or not isinstance(meta.get("config", {}), dict) or "step" not in meta:
        return False
    return all(type(meta[name]) in kinds and 0 <= meta[name] < 2**53 for name, kinds in METADATA_NUMBERS.items() if name in meta)


def latest_valid(folder: Path, on_damaged: Callable[[str], None] | None = None) -> tuple[Params, dict[str, Any]]:
    """The newest checkpoint that is whole; raises where none is.

    `told` hears of damaged ones, which are then put aside: it is for the process whose run it is.
    """
    damaged: list[Path] = []
    for path in reversed(list_checkpoints(folder)):
        loaded = load_checkpoint(path)
        if loaded is None:
            damaged.append(path)
            continue
        if on_damaged is not None:
            for damaged_path in damaged:
                on_damaged(f"{damaged_path} is damaged; going on from the one before it, of step {loaded[1]['step']:,}")
                damaged_path.replace(damaged_path.with_suffix(".damaged"))  # no longer one of those kept
        return loaded
    raise InputError(
        f"no whole checkpoint is left in {folder}; train in another --out, or remove the run folder to start again"
    )


DTYPE_NAMES = {
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
HEADER_ALIGNMENT = 8  # bytes: where the values begin


def iter_safetensors(tensors: Params, metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    """The file: its header's length, its header, and the values of each tensor, the widest types first."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        entry = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        header[name], start = entry, end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % HEADER_ALIGNMENT)
    yield len(head).to_bytes(8, "little") + head
    for _, tensor in ordered:
        yield view_bytes(tensor)


def view_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor that lies in memory, as they are there."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


BeforeWrite = Callable[[], None]


def do_nothing() -> None:
    """Nothing is to be done first."""


class AsyncCheckpointer:
    """Writes one after another, in order. What goes wrong with one is raised when they are next spoken of."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="l2i checkpoints")
        self.pending: deque[Future[None]] = deque()

    def save(
        self, folder: Path, step: int, tensors: Params, meta: dict[str, Any], *, keep: int = DEFAULT_KEEP, before_write: BeforeWrite = do_nothing
    ) -> None:
        """Save the tensors as they are now, after what is to be on disk `first`; waits for the one before the last."""
        while len(self.pending) > 1:
            self.pending.popleft().result()
        device = next((t.device for t in tensors.values() if t.is_cuda), None)
        with nullcontext() if device is None else torch.cuda.device(device):
            copies = {name: t.detach().clone() for name, t in tensors.items() if not t.is_cuda}
            copies |= copy_to_host({name: t.detach() for name, t in tensors.items() if t.is_cuda})
            copy_event = None if device is None else torch.cuda.current_stream().record_event()

        def write() -> None:
            if copy_event is not None:
                copy_event.synchronize()
            check_state_finite(step, copies)
            before_write()
            save_checkpoint(folder, step, copies, meta, keep=keep)

        self.pending.append(self.thread.submit(write))

    def raise_pending(self) -> None:
        """Raise what went wrong, where that is known by now."""
        while self.pending and self.pending[0].done():
            self.pending.popleft().result()

    def wait(self) -> None:
        """Until all is whole, and on disk."""
        while self.pending:
            self.pending.popleft().result()

    def close(self) -> None:
        self.thread.shutdown()


def check_state_finite(step: int, copies: Params) -> None:
    """Raise where a state holds what is no number."""
    if "meter.first_bad" in copies:
        check_finite(copies["meter.first_bad"])
    for name, tensor in copies.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")


def copy_to_host(tensors: Params) -> Params:
    """Copies of a GPU's tensors that are on their way: those of one kind travel in one piece, and nothing waits."""
    copies: Params = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors.values()):
        same_dtype = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        buffer = torch.cat([tensor.reshape(-1) for tensor in same_dtype.values()]).to("cpu", non_blocking=True)
        parts = buffer.split([tensor.numel() for tensor in same_dtype.values()])
        copies |= {name: part.view(same_dtype[name].shape) for name, part in zip(same_dtype, parts, strict=True)}
    return copies
