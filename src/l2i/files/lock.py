"""File locks, which the system releases when the process that holds them ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl

HAS_FILE_LOCKS = sys.platform != "win32"


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
    return file
