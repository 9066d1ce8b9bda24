"""Who is at work on which part of a sweep: a row in the storage with a sign of life, and a lock on this machine.

A row is made and handed over by single statements of SQL, so a part has one holder on every database. A holder that was
killed is known at once where its lock lies: the lock is free and has its name in it. Elsewhere its row has to be silent
for a while.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import IO, Any, Self
from uuid import uuid4

from sqlalchemy import Column, DateTime, MetaData, String, Table, and_, delete, func, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

if sys.platform != "win32":
    import fcntl

LOCKS = sys.platform != "win32"
BEAT = 20.0  # seconds between signs of life
GRACE = timedelta(seconds=120)  # of silence, after which a holder on another machine is taken for dead

TABLE = Table(
    "l2i_claims",
    MetaData(),
    Column("study", String(512), primary_key=True),
    Column("part", String(32), primary_key=True),
    Column("owner", String(512), nullable=False),
    Column("beat", DateTime, nullable=False),
)


class Claims:
    """The parts of one study, to be taken by one process each."""

    def __init__(self, engine: Engine, study: str, folder: Path) -> None:
        self.engine, self.study, self.folder = engine, study, folder
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # another process may be making it
            with suppress(SQLAlchemyError):
                TABLE.create(engine, checkfirst=True)

    def take(self, part: str) -> Claim | None:
        """The part for this process; None where another is at work on it."""
        lock = locked(self.folder / part)
        if lock is None:
            return None
        owner = f"{platform.node()}/{os.getpid()}/{uuid4().hex}"
        if not self.written(part, owner, lock):
            lock.close()
            return None
        return Claim(self.engine, self.key(part), owner, lock)

    def key(self, part: str) -> Any:
        return and_(TABLE.c.study == self.study, TABLE.c.part == part)

    def written(self, part: str, owner: str, lock: IO[str]) -> bool:
        """Put `owner` down as the holder, where there is none or it is dead."""
        lock.seek(0)
        last, sign = lock.read(), func.now()
        with self.engine.begin() as connection:
            row = connection.execute(select(TABLE.c.owner, TABLE.c.beat, sign).where(self.key(part))).first()
        if row is not None:
            killed_here = LOCKS and row[0] == last and last.startswith(f"{platform.node()}/")
            silent = row[2].replace(tzinfo=None) - row[1] > GRACE
            if not killed_here and not silent:
                return False
        lock.truncate(0)
        lock.write(owner)
        lock.flush()
        try:
            with self.engine.begin() as connection:
                if row is None:
                    new = insert(TABLE).values(study=self.study, part=part, owner=owner, beat=sign)
                    return connection.execute(new).rowcount == 1
                changed = update(TABLE).where(self.key(part), TABLE.c.owner == row[0]).values(owner=owner, beat=sign)
                return connection.execute(changed).rowcount == 1
        except IntegrityError:
            return False


class Claim:
    """A part held by this process, with signs of life from a thread; at its end the part is free."""

    def __init__(self, engine: Engine, key: Any, owner: str, lock: IO[str]) -> None:
        self.engine, self.mine, self.lock = engine, and_(key, TABLE.c.owner == owner), lock
        self.ended, self.lost = Event(), False
        self.thread = Thread(target=self.beating, daemon=True)

    def beat(self) -> bool:
        """Give a sign of life; False where another process has taken the part over."""
        with self.engine.begin() as connection:
            self.lost = connection.execute(update(TABLE).where(self.mine).values(beat=func.now())).rowcount != 1
        return not self.lost

    def beating(self) -> None:
        while not self.ended.wait(BEAT) and not self.lost:
            with suppress(SQLAlchemyError):  # it may answer again the next time
                self.beat()

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()
        self.release()

    def release(self) -> None:
        """Leave the part to others."""
        with suppress(SQLAlchemyError), self.engine.begin() as connection:
            connection.execute(delete(TABLE).where(self.mine))
        self.lock.close()


def locked(path: Path) -> IO[str] | None:
    """The file at `path`, locked for this process; None where another process has it."""
    file = path.open("a+", encoding="utf-8")
    if LOCKS:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
    return file
