"""File locks, which the system releases when the process that holds them ends."""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl

HAS_FILE_LOCKS = sys.platform != "win32"
_HELD_FILES: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def try_lock(path: Path) -> IO[str] | None:
    """Open a file, made if missing, and lock it; return None if another process holds the lock.

    Closing the file releases the lock. Windows has no such locks: the file is only opened there.
    """
    file = path.open("a+", encoding="utf-8")
    if HAS_FILE_LOCKS:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
    _HELD_FILES.add(file)
    return file


def _close_inherited_locks() -> None:
    """Close a fork's copies: workers that outlive a killed process must not keep its locks."""
    for file in list(_HELD_FILES):
        with suppress(OSError):
            file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)
