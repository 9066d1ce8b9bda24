"""Every setting of the study can be trained with, and changes what it says."""

import math
from itertools import combinations

import pytest
import torch
from benchmarks.ablation.grid import GROUP_BY_SETTING, PROBLEMS, apply_changes, iter_settings
from benchmarks.ablation.runner import run_trial

from l2i import Run, replace
from l2i.training.optimizer import compute_lr_factor
from l2i.training.schedules import StepScalars

CLASSES, TARGETS = (PROBLEMS[name].make_run("l2i") for name in ("digits-fixmatch", "friedman-mean-teacher"))
FOLLOWING = "ρ on a schedule: ρ 1, following λ"
FITTING = {f"{run.data.name}, {name}": each for run in (CLASSES, TARGETS) for name, each in iter_settings(run)}


def test_every_setting_fits_one_of_the_problems() -> None:
    assert {name.partition(", ")[2] for name in FITTING} == set(GROUP_BY_SETTING)


@pytest.mark.parametrize("name", FITTING)
def test_a_setting_trains(name: str) -> None:
    sizes = {"labeled": 8, "unlabeled": 8}
    run = replace(FITTING[name], device="cpu", steps=2, eval_every=2, model={"width": 8}, batch=sizes)
    line = run_trial(run)
    assert math.isfinite(line["metric"]) and line["steps"] == 2
    assert ("c_h" in line) == (run.l2i.update != "off")


def test_settings_of_classes_and_of_targets_are_left_out_elsewhere() -> None:
    classes, targets = ({name for name, _ in iter_settings(run)} for run in (CLASSES, TARGETS))
    assert targets - classes == {"labels and distance: squashed by tanh", FOLLOWING}  # λ of FixMatch has no ramp
    assert {name.partition(": ")[2] for name in classes - targets} >= {"cross-entropy", "sharpened", "masked"}


def comes_to(run: Run) -> tuple[Run, list[float]]:
    """What is trained: ρ step by step, and all else."""
    clock = StepScalars(run, torch.device("cpu"), torch.float32)
    shares = [clock.compute_rho_factor(t, compute_lr_factor(run.optim, t, run.steps)) for t in range(run.steps)]
    return replace(run, l2i={"rho": 0.0, "rho_schedule": "constant"}), [run.l2i.rho * share for share in shares]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_two_settings_are_the_same_run(problem: str) -> None:
    found = {name: comes_to(run) for name, run in iter_settings(PROBLEMS[problem].make_run("l2i"))}
    assert [(a, b) for a, b in combinations(found, 2) if found[a] == found[b]] == []


@pytest.mark.parametrize("problem", PROBLEMS)
def test_following_the_weight_is_a_setting_where_the_weight_grows(problem: str) -> None:
    grows = problem.endswith("mean-teacher") or problem.startswith("small-faces")
    assert (FOLLOWING in dict(iter_settings(PROBLEMS[problem].make_run("l2i")))) == grows


def test_names_say_what_is_changed() -> None:
    for name, run in FITTING.items():
        assert run.l2i.preserve_step_norm == ("gradient not lengthened" in name)
        assert (run.l2i.fade, run.l2i.rho_least) in ([(0.5, 0.1), (1.0, 0.1)] if "fading" in name else [(0, 0)])


def test_a_batch_and_a_rate_are_multiples_of_the_runs_own() -> None:
    changed = apply_changes(CLASSES, {"batch": 0.25, "outer_rate": 0.1})
    assert changed.batch.holdout == CLASSES.batch.holdout / 4
    assert changed.l2i.outer_rate == pytest.approx(0.1 * CLASSES.optim.lr)
    assert apply_changes(CLASSES, {}) == CLASSES
