"""A trial from start to finish: its run, pruned where others were better at the same step, and what it came to.

MERGED:
A sweep: trials are trained until there are as many as were asked for, whoever else is at work on them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

from optuna import TrialPruned
from optuna.trial import Trial, TrialState

from l2i.config import Run, replace
from l2i.errors import InputError, NonFiniteCost
from l2i.experiments.tuning.space import SweepPlan, apply_values
from l2i.experiments.tuning.study import STORAGE_ERRORS, TrialClaim, TuningStudy, retry_storage_call, suggest_value
from l2i.training.loading import read_metric_rows
from l2i.training.progress import make_throttled_printer
from l2i.training.run import train
from l2i.training.run_dir import Result, resolve_run_dir
from l2i.training.trainer import Trainer

METRIC_ATTR, TEST_ATTR, REASON_ATTR = "figure", "test", "reason"  # attributes of a trial


class ClaimLost(Exception):
    """A process was silent for so long that another one is at work on its trial."""


class PruningCallback:
    """Reports the validation figure at the evaluations of a trial, and ends those that are to be pruned."""

    def __init__(self, trial: Trial, claim: TrialClaim, run: Run) -> None:
        self.trial, self.claim, self.run = trial, claim, run
        self.reported_steps = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.print_progress = make_throttled_printer()

    def __call__(self, trainer: Trainer, step: int) -> None:
        if self.claim.is_lost:
            raise ClaimLost
        if step % self.run.eval_every or step == self.run.steps or step in self.reported_steps:
            return  # those of the final figure alone come too late, and those before a cut were reported
        metric = float(read_metric_rows(resolve_run_dir(self.run))[-1]["validation"] or 0)
        metric_label = f"validation {trainer.task.metric_name}"
        self.print_progress(f"trial {self.trial.number}: step {step:,} of {self.run.steps:,}, {metric_label} {metric:.2f}")
        with suppress(*STORAGE_ERRORS):  # training goes on while the storage does not answer
            if not self.reported_steps:
                self.trial.set_user_attr(METRIC_ATTR, trainer.task.metric_name)
            self.reported_steps.add(step)
            self.trial.report(metric, step)
            if self.trial.should_prune():
                raise TrialPruned


def make_trial_run(plan: SweepPlan, trial: Trial) -> Run:
    """The run of a trial, its values drawn where they were not."""
    values = {path: suggest_value(trial, path, search_range) for path, search_range in plan.space.items()}
    return replace(apply_values(plan.run, plan.space, values), out=str(plan.get_trial_dir(trial.number)))


def train_trial(study: TuningStudy, number: int, claim: TrialClaim) -> bool:
    """Train a trial, or go on with it, and put down what it came to; False where another process has taken it over."""
    trial = study.start_trial(number)
    run = make_trial_run(study.plan, trial)
    callback = PruningCallback(trial, claim, run)
    if resolve_run_dir(run).exists():
        print(f"trial {number}: going on", file=sys.stderr, flush=True)
    try:
        result = train(run, quiet=True, on_evaluation=callback)
    except TrialPruned:
        return finish_trial(study, trial, claim, TrialState.PRUNED)
    except NonFiniteCost as error:
        return finish_trial(study, trial, claim, TrialState.FAIL, {REASON_ATTR: str(error)})
    except ClaimLost:
        return False
    if result.validation is None:
        raise InputError("settings are chosen by validation samples and there are none; set --data.num-validation")
    return finish_trial(study, trial, claim, TrialState.COMPLETE, build_trial_attrs(run, result), result.validation)


def build_trial_attrs(run: Run, result: Result) -> dict[str, object]:
    """What is kept of a trained trial beside its validation figure; its test figure decides nothing."""
    has_test_metric = read_metric_rows(resolve_run_dir(run))[-1]["test"] is not None
    return {METRIC_ATTR: result.metric_name, TEST_ATTR: result.metric if has_test_metric else None}


def finish_trial(
    study: TuningStudy,
    trial: Trial,
    claim: TrialClaim,
    state: TrialState,
    attrs: dict[str, object] | None = None,
    value: float | None = None,
) -> bool:
    """Mark a trial as finished, for good; False where it is no longer this process's to finish."""
    if not retry_storage_call(claim.send_heartbeat):
        return False
    for name, attr_value in (attrs or {}).items():
        retry_storage_call(partial(trial.set_user_attr, name, attr_value))
    retry_storage_call(lambda: study.optuna_study.tell(trial.number, value, state, skip_if_finished=True))
    return True
