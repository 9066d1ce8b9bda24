"""Every setting of the study can be trained with, and changes what it says."""

import math

import pytest

from l2i import Run, replace
from l2i.study.found import SETTINGS
from l2i.study.problems import PROBLEMS
from l2i.study.settings import fitting, with_changes
from l2i.study.trial import tried

CLASSES, TARGETS = (PROBLEMS[name].run("l2i") for name in ("digits-fixmatch", "friedman-mean-teacher"))
FITTING = {f"{run.data.name}, {name}": each for run in (CLASSES, TARGETS) for name, each in fitting(run)}


def test_every_setting_fits_one_of_the_problems() -> None:
    assert {name.partition(", ")[2] for name in FITTING} == set(SETTINGS)


@pytest.mark.parametrize("name", FITTING)
def test_a_setting_trains(name: str) -> None:
    sizes = {"labeled": 8, "unlabeled": 8}
    run = replace(FITTING[name], device="cpu", steps=2, eval_every=2, model={"width": 8}, batch=sizes)
    line = tried(run)
    assert math.isfinite(line["figure"]) and line["steps"] == 2
    assert ("c_h" in line) == (run.l2i.outer_update != "off")


def test_settings_of_classes_and_of_targets_are_left_out_elsewhere() -> None:
    classes, targets = ({name for name, _ in fitting(run)} for run in (CLASSES, TARGETS))
    assert targets - classes == {"labels and distance: squashed by tanh"}
    assert {name.partition(": ")[2] for name in classes - targets} >= {"cross-entropy", "sharpened", "masked"}


def test_no_two_settings_are_the_same_run() -> None:
    for run in (CLASSES, TARGETS):
        changed: list[Run] = [each for _, each in fitting(run)]
        assert all(changed.count(each) == 1 for each in changed)


def test_a_batch_and_a_rate_are_multiples_of_the_runs_own() -> None:
    changed = with_changes(CLASSES, {"batch": 0.25, "outer_rate": 0.1})
    assert changed.batch.holdout == CLASSES.batch.holdout / 4
    assert changed.l2i.outer_rate == pytest.approx(0.1 * CLASSES.optim.lr)
    assert with_changes(CLASSES, {}) == CLASSES
