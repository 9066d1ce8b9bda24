"""Checkpoints: tensors as safetensors, the rest as JSON in one file with a checksum, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def write_atomic(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
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
        directory_fd = os.open(path.parent, os.O_RDONLY)  # the new name, too, must outlive a power cut
        os.fsync(directory_fd)
        os.close(directory_fd)
