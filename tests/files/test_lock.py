"""Locks of folders: one holder at a time, and none that outlives its process."""

import os
import sys
from pathlib import Path

import pytest

from l2i.files.lock import try_lock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")


def test_a_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    first = try_lock(tmp_path / ".lock")
    assert first is not None
    assert try_lock(tmp_path / ".lock") is None
    first.close()
    second = try_lock(tmp_path / ".lock")
    assert second is not None
    second.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_worker_that_outlives_its_process_keeps_no_lock(tmp_path: Path) -> None:
    """As after SIGKILL of a run with workers: the next command need not wait for them."""
    lock = try_lock(tmp_path / ".lock")
    assert lock is not None
    read_end, write_end = os.pipe()
    is_up, up = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(write_end)
        os.write(up, b"x")
        os.read(read_end, 1)  # until the other end is closed
        os._exit(0)
    os.close(read_end)
    os.read(is_up, 1)
    assert try_lock(tmp_path / ".lock") is None  # the fork did not release it
    lock.close()
    again = try_lock(tmp_path / ".lock")
    os.close(write_end)
    os.waitpid(worker, 0)
    assert again is not None
    again.close()
