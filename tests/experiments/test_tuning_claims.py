"""A part of a sweep has one holder, also among machines that share nothing but the database."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from l2i.experiments.tuning.study import ClaimRegistry, TrialClaim


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'study.db'}", connect_args={"timeout": 60})
    yield made
    made.dispose()


def raced(engine: Engine, tmp_path: Path, count: int = 8) -> list[TrialClaim]:
    """The claims won when several machines, each with its own folder, take one part at once."""
    machines = [ClaimRegistry(engine, "study", tmp_path / f"machine-{i}") for i in range(count)]
    barrier, got = threading.Barrier(count), []

    def take(claims: ClaimRegistry) -> None:
        barrier.wait()
        claim = claims.acquire("trial-0000")
        if claim is not None:
            got.append(claim)

    threads = [threading.Thread(target=take, args=(claims,)) for claims in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


@pytest.mark.parametrize("before", [None, "elsewhere/1/1"])
def test_of_many_that_take_a_part_one_gets_it(
    before: str | None, engine: Engine, tmp_path: Path
) -> None:
    ClaimRegistry(engine, "study", tmp_path / "machine-0")
    for _ in range(5):
        if before is not None:  # a holder that is silent for long
            with engine.begin() as connection:
                values = {"owner": before}
                row = (
                    "INSERT INTO l2i_claims VALUES ('study', 'trial-0000', :owner, "
                    "datetime('now', '-1 hour'))"
                )
                connection.execute(text(row), values)
        (claim,) = raced(engine, tmp_path)
        assert claim.send_heartbeat() and raced(engine, tmp_path) == []
        claim.release()


def test_a_holder_knows_when_it_was_taken_over(engine: Engine, tmp_path: Path) -> None:
    first = ClaimRegistry(engine, "study", tmp_path / "one").acquire("trial-0000")
    assert first is not None and first.send_heartbeat()
    with engine.begin() as connection:
        connection.execute(text("UPDATE l2i_claims SET beat = datetime('now', '-1 hour')"))
    second = ClaimRegistry(engine, "study", tmp_path / "two").acquire("trial-0000")
    assert second is not None and second.send_heartbeat()
    assert not first.send_heartbeat() and first.is_lost
    first.release()
    assert second.send_heartbeat(), "what is let go of is one's own alone"
    second.release()


def test_parts_and_studies_are_held_apart(engine: Engine, tmp_path: Path) -> None:
    one, other = (ClaimRegistry(engine, name, tmp_path / name) for name in ("one", "other"))
    held = [one.acquire("trial-0000"), one.acquire("trial-0001"), other.acquire("trial-0000")]
    assert None not in held and one.acquire("trial-0000") is None
    for claim in held:
        assert claim is not None
        claim.release()
    again = one.acquire("trial-0000")
    assert again is not None
    again.release()
