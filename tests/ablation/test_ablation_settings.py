"""Every setting can be trained with, and changes what it says."""

import math
from itertools import combinations

import pytest
from benchmarks.ablation_cpu.grid import (
    GROUP_BY_SETTING,
    PROBLEMS,
    SETTING_GROUPS,
    apply_changes,
    iter_settings,
)
from benchmarks.ablation_cpu.runner import run_trial

from l2i import replace

CLASSES, TARGETS = (
    PROBLEMS[name].make_run("l2i") for name in ("digits-fixmatch", "friedman-mean-teacher")
)
GONE = {  # shown from stored records, and not run: their fields have left the library
    f"{group}: {name}"
    for group, settings in SETTING_GROUPS.items()
    for name, changes in settings.items()
    if changes is None
}
FITTING = {
    f"{run.data.name}, {name}": each
    for run in (CLASSES, TARGETS)
    for name, each in iter_settings(run)
}


def test_every_setting_fits_one_of_the_problems() -> None:
    assert {name.partition(", ")[2] for name in FITTING} == set(GROUP_BY_SETTING) - GONE


@pytest.mark.parametrize("name", FITTING)
def test_a_setting_trains(name: str) -> None:
    sizes = {"labeled": 8, "unlabeled": 8}
    run = replace(
        FITTING[name], device="cpu", steps=2, eval_every=2, model={"width": 8}, batch=sizes
    )
    line = run_trial(run)
    assert math.isfinite(line["metric"]) and line["steps"] == 2
    assert ("c_h" in line) == (run.l2i.update != "off")


def test_settings_that_are_gone_are_known_by_name_and_not_run() -> None:
    assert len(GONE) == 17 and set(GROUP_BY_SETTING) > GONE
    assert "labels and distance: through tanh" in GONE
    for run in (CLASSES, TARGETS):
        assert not GONE & {name for name, _ in iter_settings(run)}


def test_a_setting_that_does_not_suit_a_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    more = CLASSES.batch.unlabeled + 1
    monkeypatch.setitem(SETTING_GROUPS["hold-out"], "more than all", {"outer_batch_size": more})
    assert "hold-out: more than all" not in dict(iter_settings(CLASSES))
    larger = replace(CLASSES, batch={"unlabeled": more})
    assert "hold-out: more than all" in dict(iter_settings(larger))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_two_settings_are_the_same_run(problem: str) -> None:
    actual = dict(iter_settings(PROBLEMS[problem].make_run("l2i")))
    assert [(a, b) for a, b in combinations(actual, 2) if actual[a] == actual[b]] == []


def test_names_say_what_is_changed() -> None:
    for name, run in FITTING.items():
        assert run.l2i.preserve_step_norm == ("step norm preserved" in name)
        assert (run.l2i.ablation == "direct_gradient") == ("control" in name)
        assert (run.l2i.paper.inner_rate is not None) == ("η" in name)
        assert run.l2i.paper.inner_supervised == ("C^T" in name)


def test_a_batch_is_a_multiple_of_the_runs_own() -> None:
    changed = apply_changes(CLASSES, {"batch": 0.25})
    assert changed.batch.holdout == CLASSES.batch.holdout / 4
    assert apply_changes(CLASSES, {}) == CLASSES
