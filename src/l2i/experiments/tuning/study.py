"""The trials of a sweep: Optuna's study in a shared database, and who is at work on which trial.

Each trial is claimed by one process, by a row in the database with a heartbeat and a lock file on
this machine. A row is inserted or taken over by single SQL statements, so it has one owner on every
database. An owner that was killed is recognised at once on its own machine, where its lock file is
free and names it; elsewhere its heartbeat has to time out.
"""

from __future__ import annotations

import os
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any, Self, TypeVar
from uuid import uuid4

import numpy as np
import optuna
import sqlalchemy as sql
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from l2i.errors import InputError
from l2i.experiments.tuning.space import SweepPlan, Value, format_trial_name
from l2i.files.lock import HAS_FILE_LOCKS, try_lock
from l2i.training.run_dir import find_differences

T = TypeVar("T")

SQLITE_TIMEOUT_SECONDS = 60.0  # for another process to finish writing
MAX_OPEN_ATTEMPTS = 10  # while another process sets up the database
RETRY_DELAYS = (1, 2, 4, 8, 15, 30, 60)  # seconds between calls to a storage that does not answer
STORAGE_ERRORS = (SQLAlchemyError, StorageInternalError)
HEARTBEAT_SECONDS = 20.0
HEARTBEAT_TIMEOUT = timedelta(seconds=120)  # after which an owner on another machine counts as dead
NUM_STARTUP_TRIALS = 5  # drawn at random before TPE models the space, and never pruned
PRUNING_WARMUP_FRACTION = 0.25  # of the steps, in which no trial is pruned
IDENTITY_ATTR = "l2i"  # user attribute of a study: what its trials have in common
METRIC_ATTR, TEST_ATTR, REASON_ATTR = "metric", "test", "reason"  # user attributes of a trial

CLAIMS = sql.Table(
    "l2i_claims",
    sql.MetaData(),
    sql.Column("study", sql.String(512), primary_key=True),
    sql.Column("part", sql.String(32), primary_key=True),
    sql.Column("owner", sql.String(512), nullable=False),
    sql.Column("beat", sql.DateTime, nullable=False),
)


@contextmanager
def open_study(plan: SweepPlan) -> Iterator[TuningStudy]:
    """Open the study of a plan, created if missing."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = _parse_storage_url(plan.storage_url)
    storage = _create_storage(url)
    try:
        yield TuningStudy(plan, storage)
    except STORAGE_ERRORS as error:
        reason = _summarize_error(error)
        raise OSError(f"storage {url!r} failed ({reason}); the same command resumes") from None
    finally:
        storage.remove_session()
        storage.engine.dispose()


class TuningStudy:
    """Optuna's study of a plan, and the claims on its trials."""

    def __init__(self, plan: SweepPlan, storage: RDBStorage) -> None:
        self.plan, self.storage = plan, storage
        self.claims = ClaimRegistry(storage.engine, plan.study_name, plan.folder / "claims")
        with self._wait_for_claim("setup"):
            self.optuna_study = optuna.create_study(
                storage=storage,
                study_name=plan.study_name,
                direction="minimize",
                load_if_exists=True,
            )
            self._check_identity()
            for number in range(len(self.get_trials()), plan.num_trials):
                self.optuna_study.enqueue_trial(self._get_recipe_values() if number == 0 else {})
        warmup_steps = int(PRUNING_WARMUP_FRACTION * plan.run.steps)
        pruner = optuna.pruners.MedianPruner(NUM_STARTUP_TRIALS, warmup_steps)
        self.optuna_study.pruner = pruner if plan.prune else optuna.pruners.NopPruner()

    def _wait_for_claim(self, part: str) -> TrialClaim:
        """Claim a part that others hold only for moments."""
        deadline = time.monotonic() + 2 * HEARTBEAT_TIMEOUT.total_seconds()
        while (claim := self.claims.acquire(part)) is None:
            if time.monotonic() > deadline:
                raise InputError(
                    f"another process is blocking study {self.plan.study_name}; "
                    "stop it, or choose a different --study"
                )
            time.sleep(0.05)
        return claim

    def _check_identity(self) -> None:
        """Check that a study of this name is of this plan; mark a new one so."""
        name, expected = self.plan.study_name, self.plan.build_identity()
        stored = self.optuna_study.user_attrs.get(IDENTITY_ATTR)
        if stored is None and self.get_trials():
            raise InputError(f"study {name} was not created by l2i; choose a different --study")
        if stored is None:
            self.optuna_study.set_user_attr(IDENTITY_ATTR, expected)
        elif mismatches := find_differences(stored, expected):
            more = f"; {len(mismatches) - 4} more" if len(mismatches) > 4 else ""
            raise InputError(
                f"study {name} has different settings ({'; '.join(mismatches[:4])}{more}); "
                "choose a different --study, or use those settings"
            )

    def _get_recipe_values(self) -> dict[str, Value]:
        """Return the values of the first trial: the recipe's, as far as they lie in the space."""
        return {
            path: search_range.recipe_value
            for path, search_range in self.plan.space.items()
            if search_range.includes_recipe_value and search_range.recipe_value is not None
        }

    def get_trials(self) -> list[FrozenTrial]:
        """Return all trials, by number."""
        return self.optuna_study.get_trials(deepcopy=False)

    def claim_next_trial(self) -> tuple[int, TrialClaim] | None:
        """Claim the first trial that is not finished and that nobody is at work on."""
        for number, trial in enumerate(self.get_trials()[: self.plan.num_trials]):
            if trial.state.is_finished():
                continue
            claim = self.claims.acquire(format_trial_name(number))
            if claim is None:
                continue
            if not self.get_trials()[number].state.is_finished():
                return number, claim
            claim.release()  # it was finished before it was claimed
        return None

    def start_trial(self, number: int) -> tuple[Trial, dict[str, Value]]:
        """Start or resume a trial; return it and its values, drawn unless they were before."""
        study_id = self.storage.get_study_id_from_name(self.plan.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        self.optuna_study.sampler = _make_sampler(self.plan.run.seed, number)
        trial = Trial(self.optuna_study, trial_id)
        values: dict[str, Value] = {}
        for path, bounds in self.plan.space.items():
            if bounds.is_int:
                low, high = int(bounds.low), int(bounds.high)
                values[path] = trial.suggest_int(path, low, high, log=bounds.log)
            else:
                values[path] = trial.suggest_float(path, bounds.low, bounds.high, log=bounds.log)
        return trial, values


def _make_sampler(run_seed: int, number: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's default sampler with a seed for this trial, whichever process trains it."""
    seed = int(np.random.SeedSequence((run_seed, number)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=NUM_STARTUP_TRIALS, multivariate=True, constant_liar=True
        )


class ClaimRegistry:
    """The parts of one study, each claimed by at most one process."""

    def __init__(self, engine: Engine, study_name: str, folder: Path) -> None:
        self.engine, self.study_name, self.folder = engine, study_name, folder
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # another process may be creating it
            with suppress(SQLAlchemyError):
                CLAIMS.create(engine, checkfirst=True)

    def acquire(self, part: str) -> TrialClaim | None:
        """Claim a part for this process; return None if another is at work on it."""
        lock = try_lock(self.folder / part)
        if lock is None:
            return None
        owner = f"{platform.node()}/{os.getpid()}/{uuid4().hex}"
        if not self._write_owner(part, owner, lock):
            lock.close()
            return None
        return TrialClaim(self.engine, self._match_part(part), owner, lock)

    def _match_part(self, part: str) -> Any:
        return sql.and_(CLAIMS.c.study == self.study_name, CLAIMS.c.part == part)

    def _write_owner(self, part: str, owner: str, lock: IO[str]) -> bool:
        """Make `owner` the owner of a part that has none or whose owner is dead."""
        lock.seek(0)
        locked_by, now = lock.read(), sql.func.now()
        query = sql.select(CLAIMS.c.owner, CLAIMS.c.beat, now).where(self._match_part(part))
        with self.engine.begin() as connection:
            row = connection.execute(query).first()
        if row is None:
            key = {"study": self.study_name, "part": part}
            statement: Any = sql.insert(CLAIMS).values(**key, owner=owner, beat=now)
        else:
            is_local = locked_by.startswith(f"{platform.node()}/")
            was_killed = HAS_FILE_LOCKS and row[0] == locked_by and is_local
            if not was_killed and row[2].replace(tzinfo=None) - row[1] <= HEARTBEAT_TIMEOUT:
                return False
            previous = sql.and_(self._match_part(part), CLAIMS.c.owner == row[0])
            statement = sql.update(CLAIMS).where(previous).values(owner=owner, beat=now)
        lock.truncate(0)
        lock.write(owner)
        lock.flush()
        try:
            with self.engine.begin() as connection:
                return connection.execute(statement).rowcount == 1
        except IntegrityError:
            return False


class TrialClaim:
    """A part held by this process, with heartbeats from a thread; it is released at the end."""

    def __init__(self, engine: Engine, part_clause: Any, owner: str, lock: IO[str]) -> None:
        self.engine, self.lock, self.is_lost = engine, lock, False
        self.own_row = sql.and_(part_clause, CLAIMS.c.owner == owner)
        self.stop_event = Event()
        self.thread = Thread(target=self._run_heartbeats, daemon=True)

    def send_heartbeat(self) -> bool:
        """Send a heartbeat; return False if another process has taken over."""
        statement = sql.update(CLAIMS).where(self.own_row).values(beat=sql.func.now())
        with self.engine.begin() as connection:
            self.is_lost = connection.execute(statement).rowcount != 1
        return not self.is_lost

    def _run_heartbeats(self) -> None:
        while not self.stop_event.wait(HEARTBEAT_SECONDS) and not self.is_lost:
            with suppress(SQLAlchemyError):  # it may answer the next time
                self.send_heartbeat()

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_event.set()
        self.thread.join()
        self.release()

    def release(self) -> None:
        """Leave the part to other processes."""
        with suppress(SQLAlchemyError), self.engine.begin() as connection:
            connection.execute(sql.delete(CLAIMS).where(self.own_row))
        self.lock.close()


def _parse_storage_url(url: str) -> URL:
    """Parse a URL, and create the folder of an SQLite file."""
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):
        raise _make_url_error(url, "not a database URL") from None
    if parsed.get_backend_name() == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise _make_url_error(url, "an in-memory database can be neither shared nor resumed")
        try:
            Path(parsed.database or "").parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _make_url_error(url, f"cannot create its folder ({error.strerror})") from None
    return parsed


def _create_storage(url: URL) -> RDBStorage:
    """Open a storage whose tables another process may be creating at the same time."""
    engine_kwargs: dict[str, Any] = {"pool_pre_ping": True}
    if url.get_backend_name() == "sqlite":
        engine_kwargs = {"connect_args": {"timeout": SQLITE_TIMEOUT_SECONDS}}
    escaped_url = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    for attempt in range(MAX_OPEN_ATTEMPTS):
        try:
            return RDBStorage(escaped_url, engine_kwargs=engine_kwargs)
        except (*STORAGE_ERRORS, ImportError, RuntimeError, ValueError, TypeError) as error:
            races = r"already exists|unique|duplicate|locked"
            is_race = re.search(races, _summarize_error(error), re.IGNORECASE)
            if not is_race or attempt == MAX_OPEN_ATTEMPTS - 1:
                raise _make_open_error(url, error) from None
            time.sleep(0.1 * (attempt + 1))
    raise AssertionError("the last attempt returns or raises")


def _make_open_error(url: URL, error: Exception) -> Exception:
    # repr() of a URL hides its password
    reason = _summarize_error(error)
    if isinstance(error, ImportError):
        return InputError(
            f"--storage {url!r}: its driver is not installed ({reason}); pip install it"
        )
    if re.search(r"disk|full", reason):
        return OSError(f"cannot write to storage {url!r} ({reason}); is its disk full?")
    return _make_url_error(repr(url), reason)


def _make_url_error(url: str, reason: str) -> InputError:
    return InputError(
        f"--storage {url}: {reason}; "
        "use a URL such as sqlite:///FOLDER/study.db or postgresql://HOST/NAME"
    )


def _summarize_error(error: BaseException) -> str:
    """Return the first line of the underlying error."""
    cause = error.__cause__ or getattr(error, "orig", None) or error
    cause = getattr(cause, "orig", None) or cause
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def retry_storage_call(call: Callable[[], T]) -> T:
    """Call a function, again for two minutes if the storage does not answer."""
    for seconds in RETRY_DELAYS:
        try:
            return call()
        except STORAGE_ERRORS:
            time.sleep(seconds)
    return call()
