"""Write files atomically, and check output paths before any work is done for them."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from l2i.errors import DiskFull, InputError
from l2i.files.digest import hash_content, hash_file

PARTIAL_SUFFIX = ".partial"  # of files that are not finished
MAX_NAME_BYTES = 255  # of a file name, on all common file systems
# files that mark a folder as a finished fit, an unfinished one, or a run
RUN_MARKERS = (
    ("fit.json", "rows.parquet"),
    ("identity.json", ".lock"),
    ("config.json", "checkpoints", "metrics.jsonl"),
)
REPORT_INTERVAL_S = 5.0
ItemT = TypeVar("ItemT")
ProgressCallback = Callable[[str], object]
"""Called with a line to report."""


def write_atomic(
    path: Path, content: bytes | Iterable[bytes | memoryview], *, mode: int | None = None
) -> None:
    """Write `content` so that a reader sees all of it or nothing, even after a crash.

    The unfinished file has a name of its own: two processes that write one file cannot mix. A link
    at `path` is replaced, not followed. `mode` sets the permissions, by default those of new files.
    """
    partial = _make_partial_path(path)
    with name_file_in_errors(path):
        try:
            with open(partial, "xb", opener=_make_opener(mode)) as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                if mode is not None and os.name == "posix":
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        if os.name == "posix":  # the rename, too, must survive a power cut
            directory_fd = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory_fd)
            finally:
                os.close(directory_fd)


def _make_partial_path(path: Path) -> Path:
    """Return a new name beside `path`, cut so that it is no longer than a name may be."""
    suffix = f".{os.getpid():x}-{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
    stem = path.name
    while stem and len(os.fsencode(stem + suffix)) > MAX_NAME_BYTES:
        stem = stem[:-1]
    return path.with_name(stem + suffix)


def _make_opener(mode: int | None) -> Callable[[str, int], int]:
    """Return an opener of new files that nobody else can read until they have their `mode`."""
    return lambda name, flags: os.open(name, flags, 0o666 if mode is None else 0o600)


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Let an OSError within name the file, as those of writing and flushing do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_disk_full(error: OSError) -> bool:
    """Return whether there is no space left, by the disk, a quota or a limit on file sizes."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output_file(
    out: str | Path,
    suffixes: tuple[str, ...],
    *,
    data: Iterable[Path] = (),
    overwrite: bool = False,
) -> Path:
    """Return where `out` lies, all links resolved, after checking that nothing is destroyed there.

    It may not be one of the `data` files, nor lie in such a folder or in one that `l2i` trained in.
    Any other file that exists must be as `l2i` wrote it, unless `overwrite`.
    """
    path = Path(out)
    with translate_write_errors(out):
        if path.is_dir():
            raise InputError(f"cannot write '{out}': it is a folder; add a file name")
        if path.suffix.lower() not in suffixes:
            raise InputError(f"cannot write '{out}': it must end in {' or '.join(suffixes)}")
        if not path.absolute().parent.is_dir():
            raise InputError(f"cannot write '{out}': its folder does not exist; create it first")
        _check_not_data(path, data)
        check_not_in_run(path)
        if path.exists() and not overwrite and not was_written(path):
            problem = "it exists, and l2i has no record of writing it, or it has changed since"
            fix = "choose a different path, or add --overwrite"
            raise InputError(f"cannot write '{out}': {problem}; {fix}")
        return Path(os.path.realpath(path))


def _check_not_data(path: Path, data: Iterable[Path]) -> None:
    real_path = Path(os.path.realpath(path))
    for source in data:
        if not path.exists() or not source.exists():
            continue
        is_same = path.samefile(source)
        if is_same or (source.is_dir() and real_path.is_relative_to(os.path.realpath(source))):
            problem = f"it is{'' if is_same else ' inside'} your data {source}"
            raise InputError(f"cannot write '{path}': {problem}; choose a different path")


def check_not_in_run(path: Path) -> None:
    """Check that a path to write lies in no folder that `l2i` trained in."""
    for folder in Path(os.path.realpath(path)).parents:
        if any(all((folder / name).exists() for name in names) for names in RUN_MARKERS):
            problem = f"it is inside {folder}, which l2i trained in"
            raise InputError(f"cannot write '{path}': {problem}; choose a different path")


def write_output(target: Path, content: bytes, shown: str | Path | None = None) -> None:
    """Write a file for the user, keep its permissions, and remember what was written.

    `target` is what `check_output_file` returned: a link that came there since is not followed.
    Errors name the file as `shown`, the name that the user gave.
    """
    with translate_write_errors(target if shown is None else shown):
        mode = target.lstat().st_mode if os.path.lexists(target) else 0
        if mode and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
        write_atomic(target, content, mode=stat.S_IMODE(mode) if stat.S_ISREG(mode) else None)
    with suppress(OSError, RuntimeError):  # without the note, replacing it takes --overwrite
        note = _get_note_path(target)
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, hash_content(content).encode())


def was_written(path: Path) -> bool:
    """Return whether a file is as `write_output` left it."""
    target = Path(os.path.realpath(path))
    try:
        digest = _get_note_path(target).read_text(encoding="ascii")
        return target.is_file() and hash_file(target) == digest
    except (OSError, ValueError, RuntimeError):  # there may be no home for the notes
        return False


def _get_note_path(target: Path) -> Path:
    return get_cache_dir() / "written" / hash_content(os.fsencode(target))


def get_cache_dir() -> Path:
    """Return the folder for files that can be made again, and for notes on what was written."""
    default_folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "l2i")
    return Path(os.environ.get("L2I_CACHE") or default_folder).expanduser()


@contextmanager
def translate_write_errors(out: str | Path) -> Iterator[None]:
    """Turn an OSError while writing `out` into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            problem = f"the disk is full: cannot write '{out}' ({error.strerror})"
            raise DiskFull(f"{problem}; free some space, then repeat the command") from None
        raise InputError(
            f"cannot write '{out}': {error.strerror}; choose a different path"
        ) from None


def check_outside_data(folder: Path, data: Path) -> None:
    """Check that a fit is not written into a data folder, whose subfolders are read as classes."""
    try:
        is_inside = data.is_dir() and folder.resolve().is_relative_to(data.resolve())
    except OSError:  # an impossible name, which is reported when it is read or written
        return
    if is_inside:
        problem = f"--out {folder} is inside the data folder {data.resolve()}"
        raise InputError(f"{problem}; choose a different --out")


def ignore_progress(line: str) -> None:
    """Report progress to nobody."""


def report_progress(
    items: Iterable[ItemT],
    total: int,
    action: str,
    progress: ProgressCallback,
    interval_s: float = REPORT_INTERVAL_S,
    noun: str = "images",
) -> Iterator[ItemT]:
    """Yield the items, and report now and then how many are done."""
    last_report = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if time.monotonic() - last_report >= interval_s:
            progress(f"{action} {number:,} of {total:,} {noun}")
            last_report = time.monotonic()
