"""Where a sweep is kept: a database that all its processes reach, by its URL.

MERGED:
Who is at work on which part of a sweep: a row in the storage with a sign of life, and a lock on this machine.

A row is made and handed over by single statements of SQL, so a part has one holder on every database. A holder that was
killed is known at once where its lock lies: the lock is free and has its name in it. Elsewhere its row has to be silent
for a while.

The trials of a sweep, in Optuna's study: made once, each taken by one process, all of them counted.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import IO, Any, Self, TypeVar
from uuid import uuid4

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import Column, DateTime, MetaData, String, Table, and_, delete, func, insert, select, update
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from l2i.errors import InputError
from l2i.experiments.tuning.space import SearchRange, SweepPlan, Value, format_trial_name

T = TypeVar("T")

SQLITE_TIMEOUT_SECONDS = 60.0  # seconds that SQLite waits for another process to end its writing
MAX_OPEN_ATTEMPTS = 10  # at opening a database that another process is just setting up
RETRY_DELAYS = (1, 2, 4, 8, 15, 30, 60)  # seconds between attempts at a storage that does not answer
STORAGE_ERRORS = (SQLAlchemyError, StorageInternalError)


@contextmanager
def open_storage(url: str) -> Iterator[RDBStorage]:
    """The storage, made where it is not there; an InputError where there can be none."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed_url = parse_storage_url(url)
    storage = create_storage(parsed_url)
    try:
        yield storage
    except STORAGE_ERRORS as error:
        raise OSError(f"the storage {redact_url(parsed_url)} failed ({summarize_error(error)}); the same command goes on") from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def parse_storage_url(url: str) -> URL:
    """The URL, with a folder for a file of SQLite."""
    try:
        parsed_url = make_url(url)
    except (SQLAlchemyError, ValueError):
        raise make_url_error(url, "this is no URL of a database") from None
    if parsed_url.get_backend_name() == "sqlite":
        if parsed_url.database in (None, "", ":memory:"):
            raise make_url_error(url, "a database in memory can be neither shared nor continued")
        try:
            Path(parsed_url.database or "").parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise make_url_error(url, f"its folder cannot be made ({error.strerror})") from None
    return parsed_url


def create_storage(url: URL) -> RDBStorage:
    """The storage behind a URL; another process may be making its tables at the same time."""
    is_sqlite = url.get_backend_name() == "sqlite"
    engine_kwargs: dict[str, Any] = {"connect_args": {"timeout": SQLITE_TIMEOUT_SECONDS}} if is_sqlite else {"pool_pre_ping": True}
    escaped_url = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    for attempt in range(MAX_OPEN_ATTEMPTS):
        try:
            return RDBStorage(escaped_url, engine_kwargs=engine_kwargs)
        except (*STORAGE_ERRORS, ImportError, RuntimeError, ValueError, TypeError) as error:
            race_match = re.search(r"already exists|unique|duplicate|locked", summarize_error(error), re.IGNORECASE)
            if not race_match or attempt == MAX_OPEN_ATTEMPTS - 1:
                raise make_open_error(url, error) from None
            time.sleep(0.1 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def make_open_error(url: URL, error: Exception) -> Exception:
    """What is said of a storage that cannot be opened."""
    if isinstance(error, ImportError):
        return InputError(f"--storage {redact_url(url)}: its driver is not installed ({summarize_error(error)}); pip install it")
    if re.search(r"disk|full", summarize_error(error)):
        return OSError(f"the storage {redact_url(url)} cannot be written ({summarize_error(error)}); is its disk full?")
    return make_url_error(redact_url(url), summarize_error(error))


def make_url_error(url: str, why: str) -> InputError:
    """The error for a storage that cannot be used."""
    return InputError(f"--storage {url}: {why}; give a URL such as sqlite:///FOLDER/study.db or postgresql://HOST/NAME")


def redact_url(url: URL) -> str:
    """A URL without its password."""
    return url.render_as_string(hide_password=True)


def summarize_error(error: BaseException) -> str:
    """What went wrong at the bottom of it, in a line."""
    cause = error.__cause__ or getattr(error, "orig", None) or error
    cause = getattr(cause, "orig", None) or cause
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def retry_storage_call(call: Callable[[], T]) -> T:
    """What `call` gives, tried again for two minutes while the storage does not answer."""
    for seconds in RETRY_DELAYS:
        try:
            return call()
        except STORAGE_ERRORS:
            time.sleep(seconds)
    return call()


if sys.platform != "win32":
    import fcntl

HAS_FILE_LOCKS = sys.platform != "win32"
HEARTBEAT_SECONDS = 20.0  # seconds between signs of life
HEARTBEAT_TIMEOUT = timedelta(seconds=120)  # of silence, after which a holder on another machine is taken for dead

CLAIMS_TABLE = Table(
    "l2i_claims",
    MetaData(),
    Column("study", String(512), primary_key=True),
    Column("part", String(32), primary_key=True),
    Column("owner", String(512), nullable=False),
    Column("beat", DateTime, nullable=False),
)


class ClaimRegistry:
    """The parts of one study, to be taken by one process each."""

    def __init__(self, engine: Engine, study_name: str, folder: Path) -> None:
        self.engine, self.study_name, self.folder = engine, study_name, folder
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # another process may be making it
            with suppress(SQLAlchemyError):
                CLAIMS_TABLE.create(engine, checkfirst=True)

    def acquire(self, part: str) -> TrialClaim | None:
        """The part for this process; None where another is at work on it."""
        lock = try_lock_file(self.folder / part)
        if lock is None:
            return None
        owner = f"{platform.node()}/{os.getpid()}/{uuid4().hex}"
        if not self.write_owner(part, owner, lock):
            lock.close()
            return None
        return TrialClaim(self.engine, self.make_key_filter(part), owner, lock)

    def make_key_filter(self, part: str) -> Any:
        return and_(CLAIMS_TABLE.c.study == self.study_name, CLAIMS_TABLE.c.part == part)

    def write_owner(self, part: str, owner: str, lock: IO[str]) -> bool:
        """Put `owner` down as the holder, where there is none or it is dead."""
        lock.seek(0)
        previous_owner, now_clause = lock.read(), func.now()
        with self.engine.begin() as connection:
            row = connection.execute(select(CLAIMS_TABLE.c.owner, CLAIMS_TABLE.c.beat, now_clause).where(self.make_key_filter(part))).first()
        if row is not None:
            killed_here = HAS_FILE_LOCKS and row[0] == previous_owner and previous_owner.startswith(f"{platform.node()}/")
            timed_out = row[2].replace(tzinfo=None) - row[1] > HEARTBEAT_TIMEOUT
            if not killed_here and not timed_out:
                return False
        lock.truncate(0)
        lock.write(owner)
        lock.flush()
        try:
            with self.engine.begin() as connection:
                if row is None:
                    insertion = insert(CLAIMS_TABLE).values(study=self.study_name, part=part, owner=owner, beat=now_clause)
                    return connection.execute(insertion).rowcount == 1
                takeover = update(CLAIMS_TABLE).where(self.make_key_filter(part), CLAIMS_TABLE.c.owner == row[0]).values(owner=owner, beat=now_clause)
                return connection.execute(takeover).rowcount == 1
        except IntegrityError:
            return False


class TrialClaim:
    """A part held by this process, with signs of life from a thread; at its end the part is free."""

    def __init__(self, engine: Engine, key_filter: Any, owner: str, lock: IO[str]) -> None:
        self.engine, self.owner_filter, self.lock = engine, and_(key_filter, CLAIMS_TABLE.c.owner == owner), lock
        self.stop_event, self.is_lost = Event(), False
        self.thread = Thread(target=self.run_heartbeats, daemon=True)

    def send_heartbeat(self) -> bool:
        """Give a sign of life; False where another process has taken the part over."""
        with self.engine.begin() as connection:
            self.is_lost = connection.execute(update(CLAIMS_TABLE).where(self.owner_filter).values(beat=func.now())).rowcount != 1
        return not self.is_lost

    def run_heartbeats(self) -> None:
        while not self.stop_event.wait(HEARTBEAT_SECONDS) and not self.is_lost:
            with suppress(SQLAlchemyError):  # it may answer again the next time
                self.send_heartbeat()

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_event.set()
        self.thread.join()
        self.release()

    def release(self) -> None:
        """Leave the part to others."""
        with suppress(SQLAlchemyError), self.engine.begin() as connection:
            connection.execute(delete(CLAIMS_TABLE).where(self.owner_filter))
        self.lock.close()


def try_lock_file(path: Path) -> IO[str] | None:
    """The file at `path`, locked for this process; None where another process has it."""
    file = path.open("a+", encoding="utf-8")
    if HAS_FILE_LOCKS:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
    return file


NUM_STARTUP_TRIALS = 5  # trials drawn at random before Optuna models what is good, and trained whole before others are pruned
PRUNING_WARMUP_FRACTION = 0.25  # of the steps, in which no trial is pruned
IDENTITY_ATTR = "l2i"  # the attribute of a study that says what it is of


class TuningStudy:
    """Optuna's study of a plan, with who is at work on which trial."""

    def __init__(self, plan: SweepPlan, storage: RDBStorage) -> None:
        self.plan, self.storage = plan, storage
        self.claims = ClaimRegistry(storage.engine, plan.study_name, plan.folder / "claims")
        with self.wait_for_claim("setup"):
            self.optuna_study = optuna.create_study(
                storage=storage, study_name=plan.study_name, direction="minimize", load_if_exists=True
            )
            self.check_identity()
            for number in range(len(self.get_trials()), plan.num_trials):
                self.optuna_study.enqueue_trial(self.get_recipe_values() if number == 0 else {})
        if plan.prune:
            warmup_steps = int(PRUNING_WARMUP_FRACTION * plan.run.steps)
            self.optuna_study.pruner = optuna.pruners.MedianPruner(n_startup_trials=NUM_STARTUP_TRIALS, n_warmup_steps=warmup_steps)
        else:
            self.optuna_study.pruner = optuna.pruners.NopPruner()

    def wait_for_claim(self, part: str) -> TrialClaim:
        """A part that is held for moments only."""
        deadline = time.monotonic() + 2 * HEARTBEAT_TIMEOUT.total_seconds()
        while (claim := self.claims.acquire(part)) is None:
            if time.monotonic() > deadline:
                raise InputError(f"another process keeps {self.plan.study_name} to itself; stop it, or give another --study")
            time.sleep(0.05)
        return claim

    def check_identity(self) -> None:
        """That a study of this name is of this plan; a new one is made so."""
        expected, stored = self.plan.build_identity(), self.optuna_study.user_attrs.get(IDENTITY_ATTR)
        if stored is None and self.get_trials():
            raise InputError(f"the study {self.plan.study_name} there is none of l2i's; give another --study")
        if stored is None:
            self.optuna_study.set_user_attr(IDENTITY_ATTR, expected)
            return
        mismatches = [
            f"{name} is {stored.get(name)} there and {expected.get(name)} here"
            for name in sorted(stored.keys() | expected.keys())
            if stored.get(name) != expected.get(name)
        ]
        if mismatches:
            more = f"; {len(mismatches) - 4} more" if len(mismatches) > 4 else ""
            raise InputError(
                f"the study {self.plan.study_name} is of other settings ({'; '.join(mismatches[:4])}{more}); "
                "give another --study, or those settings"
            )

    def get_recipe_values(self) -> dict[str, Value]:
        """What the first trial is given: the recipe's values, as far as they lie in the space."""
        return {path: search_range.recipe_value for path, search_range in self.plan.space.items() if search_range.includes_recipe_value and search_range.recipe_value is not None}

    def get_trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        return self.optuna_study.get_trials(deepcopy=False)

    def claim_next_trial(self) -> tuple[int, TrialClaim] | None:
        """The first trial that is not finished and that nobody is at work on."""
        for number, trial in enumerate(self.get_trials()[: self.plan.num_trials]):
            if trial.state.is_finished():
                continue
            claim = self.claims.acquire(format_trial_name(number))
            if claim is None:
                continue
            if not self.get_trials()[number].state.is_finished():
                return number, claim
            claim.release()  # it was finished between the two looks
        return None

    def start_trial(self, number: int) -> Trial:
        """A trial for which values can be drawn, and reported; what was drawn and reported before stays."""
        study_id = self.storage.get_study_id_from_name(self.plan.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        self.optuna_study.sampler = make_sampler(self.plan.run.seed, number)
        return Trial(self.optuna_study, trial_id)


def make_sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """Optuna's default, drawing for each trial from a seed of its own, whichever process trains it."""
    trial_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=trial_seed, n_startup_trials=NUM_STARTUP_TRIALS, multivariate=True, constant_liar=True)


def suggest_value(trial: Trial, path: str, search_range: SearchRange) -> Value:
    """A value for a field of the trial."""
    if search_range.is_int:
        return trial.suggest_int(path, int(search_range.low), int(search_range.high), log=search_range.log)
    return trial.suggest_float(path, search_range.low, search_range.high, log=search_range.log)


@contextmanager
def open_study(plan: SweepPlan) -> Iterator[TuningStudy]:
    """The study of a plan, made where it is not there."""
    with open_storage(plan.storage_url) as storage:
        yield TuningStudy(plan, storage)
