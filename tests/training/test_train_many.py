"""Runs side by side come to what they come to alone."""

import json
import signal
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from l2i import Run, recipes, replace, train
from l2i.errors import NonFiniteCost, Stopped
from l2i.training import logger
from l2i.training.run import benefits_from_parallel, train_many


def runs_in(folder: Path, **changes: object) -> list[Run]:
    base = replace(
        recipes.get("digits/mean-teacher-l2i-40"),
        steps=6,
        eval_every=3,
        save_every=3,
        threads=1,
        **changes,
    )
    return [replace(base, seed=seed, out=str(folder / f"seed{seed}")) for seed in range(3)]


def metrics(folder: Path) -> list[str]:
    """All that was measured, by run."""
    return [(folder / f"seed{seed}" / "metrics.jsonl").read_text() for seed in range(3)]


@pytest.mark.parametrize("at_once", [2, 3])
def test_runs_side_by_side_are_those_runs_alone(at_once: int, tmp_path: Path) -> None:
    alone = [train(run, quiet=True) for run in runs_in(tmp_path / "alone", device="cpu")]
    together = list(
        train_many(runs_in(tmp_path / "together", device="cpu"), concurrent_runs=at_once)
    )
    assert [r.metric for r in together] == [r.metric for r in alone]
    assert metrics(tmp_path / "together") == metrics(tmp_path / "alone")
    assert [r.seed for r in together] == [0, 1, 2]
    beside = [2, 2, 1] if at_once == 2 else [3, 3, 3]
    assert ([r.concurrent_runs for r in together], {r.concurrent_runs for r in alone}) == (
        beside,
        {1},
    )


def test_runs_that_are_done_are_not_trained_again(tmp_path: Path) -> None:
    runs = runs_in(tmp_path, device="cpu")
    second = train(runs[1], quiet=True)
    results = list(train_many(runs, concurrent_runs=3))
    assert results[1] == second
    assert all(
        json.loads((tmp_path / f"seed{seed}" / "result.json").read_text())["steps"] == 6
        for seed in range(3)
    )


def test_a_signal_stops_all_after_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from l2i.training import run as module

    original = module.TrainingLoop.evaluate

    def stopping(self: module.TrainingLoop, step: int) -> object:
        if self.run.seed == 1:
            signal.raise_signal(signal.SIGTERM)
        return original(self, step)

    monkeypatch.setattr(module.TrainingLoop, "evaluate", stopping)
    with pytest.raises(Stopped):
        list(train_many(runs_in(tmp_path, device="cpu"), concurrent_runs=3))
    monkeypatch.undo()
    resumed = list(train_many(runs_in(tmp_path, device="cpu"), concurrent_runs=3))
    alone = [train(run, quiet=True) for run in runs_in(tmp_path / "alone", device="cpu")]
    assert [r.metric for r in resumed] == [r.metric for r in alone]


def test_where_one_run_fails_the_others_are_finished_first(tmp_path: Path) -> None:
    runs = runs_in(tmp_path, device="cpu")
    runs[1] = replace(runs[1], optim={"lr": 1e30})
    with pytest.raises(NonFiniteCost):
        list(train_many(runs, concurrent_runs=3))
    assert [(tmp_path / f"seed{seed}" / "result.json").exists() for seed in range(3)] == [
        True,
        False,
        True,
    ]


def test_networks_with_dropout_take_turns(tmp_path: Path) -> None:
    changes = {"device": "cpu", "model": {"name": "conv", "width": 4, "dropout": 0.5}}
    together = list(train_many(runs_in(tmp_path / "together", **changes), concurrent_runs=3))
    alone = [train(run, quiet=True) for run in runs_in(tmp_path / "alone", **changes)]
    assert [(r.metric, r.concurrent_runs) for r in together] == [(r.metric, 1) for r in alone]
    assert metrics(tmp_path / "together") == metrics(tmp_path / "alone")


def test_a_run_that_is_done_first_does_not_wait_for_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count()
    clock = SimpleNamespace(monotonic=lambda: next(calls), time=time.time, time_ns=time.time_ns)
    monkeypatch.setattr(logger, "time", clock)  # a second passes whenever the time is read
    runs = runs_in(tmp_path, device="cpu")[:2]
    runs[0] = replace(runs[0], steps=1)
    short, long = train_many(runs, concurrent_runs=2)
    assert short.seconds < long.seconds


def test_on_a_cpu_runs_take_turns() -> None:
    assert not benefits_from_parallel(replace(recipes.get("digits"), device="cpu"))
