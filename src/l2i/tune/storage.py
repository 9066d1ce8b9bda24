"""Where a sweep is kept: a database that all its processes reach, by its URL."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from l2i.errors import InputError

T = TypeVar("T")

BUSY = 60.0  # seconds that SQLite waits for another process to end its writing
ATTEMPTS = 10  # at opening a database that another process is just setting up
AGAIN = (1, 2, 4, 8, 15, 30, 60)  # seconds between attempts at a storage that does not answer
BROKEN = (SQLAlchemyError, StorageInternalError)


@contextmanager
def opened(url: str) -> Iterator[RDBStorage]:
    """The storage, made where it is not there; an InputError where there can be none."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where = checked(url)
    storage = made(where)
    try:
        yield storage
    except BROKEN as error:
        raise OSError(f"the storage {shown(where)} failed ({reason(error)}); the same command goes on") from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def checked(url: str) -> URL:
    """The URL, with a folder for a file of SQLite."""
    try:
        where = make_url(url)
    except (SQLAlchemyError, ValueError):
        raise refused(url, "this is no URL of a database") from None
    if where.get_backend_name() == "sqlite":
        if where.database in (None, "", ":memory:"):
            raise refused(url, "a database in memory can be neither shared nor continued")
        try:
            Path(where.database or "").parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(url, f"its folder cannot be made ({error.strerror})") from None
    return where


def made(where: URL) -> RDBStorage:
    """The storage behind a URL; another process may be making its tables at the same time."""
    sqlite = where.get_backend_name() == "sqlite"
    settings: dict[str, Any] = {"connect_args": {"timeout": BUSY}} if sqlite else {"pool_pre_ping": True}
    whole = where.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    for attempt in range(ATTEMPTS):
        try:
            return RDBStorage(whole, engine_kwargs=settings)
        except (*BROKEN, ImportError, RuntimeError, ValueError, TypeError) as error:
            racing = re.search(r"already exists|unique|duplicate|locked", reason(error), re.IGNORECASE)
            if not racing or attempt == ATTEMPTS - 1:
                raise unusable(where, error) from None
            time.sleep(0.1 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def unusable(where: URL, error: Exception) -> Exception:
    """What is said of a storage that cannot be opened."""
    if isinstance(error, ImportError):
        return InputError(f"--storage {shown(where)}: its driver is not installed ({reason(error)}); pip install it")
    if re.search(r"disk|full", reason(error)):
        return OSError(f"the storage {shown(where)} cannot be written ({reason(error)}); is its disk full?")
    return refused(shown(where), reason(error))


def refused(url: str, why: str) -> InputError:
    """The error for a storage that cannot be used."""
    return InputError(f"--storage {url}: {why}; give a URL such as sqlite:///FOLDER/study.db or postgresql://HOST/NAME")


def shown(where: URL) -> str:
    """A URL without its password."""
    return where.render_as_string(hide_password=True)


def reason(error: BaseException) -> str:
    """What went wrong at the bottom of it, in a line."""
    cause = error.__cause__ or getattr(error, "orig", None) or error
    cause = getattr(cause, "orig", None) or cause
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def patiently(call: Callable[[], T]) -> T:
    """What `call` gives, tried again for two minutes while the storage does not answer."""
    for seconds in AGAIN:
        try:
            return call()
        except BROKEN:
            time.sleep(seconds)
    return call()
