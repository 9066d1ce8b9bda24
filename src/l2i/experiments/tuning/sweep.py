"""A sweep: train its trials, pruned if others did better at the same step, until all are done."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

from optuna import TrialPruned
from optuna.trial import Trial, TrialState

from l2i.config import Run, replace
from l2i.errors import InputError, NonFiniteCost
from l2i.experiments.tuning.space import SweepPlan, apply_values, make_no_validation_error
from l2i.experiments.tuning.study import (
    METRIC_ATTR,
    REASON_ATTR,
    STORAGE_ERRORS,
    TEST_ATTR,
    TrialClaim,
    TuningStudy,
    open_study,
    retry_storage_call,
)
from l2i.experiments.tuning.summary import render_summary, render_trial_line
from l2i.files.output import write_atomic
from l2i.training.loading import read_metric_rows
from l2i.training.logger import make_throttled_printer
from l2i.training.run import train
from l2i.training.run_dir import Result, resolve_run_dir
from l2i.training.trainer import Trainer

STUDY_NAME_FILE = "study.txt"  # holds the name of the study whose trials are in a folder


class ClaimLost(Exception):
    """Raised when a process was silent for so long that another took over its trial."""


def run_sweep(plan: SweepPlan) -> str:
    """Train what is left of a sweep, one line per trial on stderr, and return its summary."""
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{plan.folder} cannot be the folder of a sweep ({error.strerror}); "
            "choose a different --out"
        ) from None
    _check_sweep_dir(plan)
    with open_study(plan) as study:
        while (claimed := study.claim_next_trial()) is not None:
            number, claim = claimed
            with claim:
                is_finished = _train_trial(study, number, claim)
            if is_finished:
                line = render_trial_line(plan, study.get_trials(), number)
                print(line, file=sys.stderr, flush=True)
        return render_summary(plan, study.get_trials())


def _check_sweep_dir(plan: SweepPlan) -> None:
    """Check that the folder is this study's: trials of another would be taken for its own."""
    name_file = plan.folder / STUDY_NAME_FILE
    if not name_file.exists():
        write_atomic(name_file, plan.study_name.encode())
    stored_name = name_file.read_text(encoding="utf-8", errors="replace").strip()
    if stored_name != plan.study_name:
        raise InputError(
            f"{plan.folder} holds the sweep '{stored_name}'; choose a different --out, "
            f"or continue it with --study '{stored_name}'"
        )


def _train_trial(study: TuningStudy, number: int, claim: TrialClaim) -> bool:
    """Train or resume a trial and store its outcome; return False if another has taken it over."""
    trial, values = study.start_trial(number)
    run = apply_values(study.plan.run, study.plan.space, values)
    run = replace(run, out=str(study.plan.get_trial_dir(number)))
    finish = partial(_finish_trial, study, trial, claim)
    if resolve_run_dir(run).exists():
        print(f"trial {number}: resuming", file=sys.stderr, flush=True)
    try:
        result = train(run, quiet=True, on_evaluation=PruningCallback(trial, claim, run))
    except TrialPruned:
        return finish(TrialState.PRUNED)
    except NonFiniteCost as error:
        return finish(TrialState.FAIL, {REASON_ATTR: str(error)})
    except ClaimLost:
        return False
    if result.validation is None:
        raise make_no_validation_error()
    return finish(TrialState.COMPLETE, _build_trial_attrs(run, result), result.validation)


class PruningCallback:
    """Report the validation metric of a trial at its evaluations, and stop it if it is pruned."""

    def __init__(self, trial: Trial, claim: TrialClaim, run: Run) -> None:
        self.trial, self.claim, self.run = trial, claim, run
        self.reported_steps = set(
            trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        )
        self.print_progress = make_throttled_printer()

    def __call__(self, trainer: Trainer, step: int) -> None:
        if self.claim.is_lost:
            raise ClaimLost
        if step % self.run.eval_every or step == self.run.steps or step in self.reported_steps:
            return  # too late to prune, or reported before an interruption
        metric = float(read_metric_rows(resolve_run_dir(self.run))[-1]["validation"] or 0)
        self.print_progress(
            f"trial {self.trial.number}: step {step:,} of {self.run.steps:,}, "
            f"validation {trainer.task.metric_name} {metric:.2f}"
        )
        with suppress(*STORAGE_ERRORS):  # training continues while the storage does not answer
            if not self.reported_steps:
                self.trial.set_user_attr(METRIC_ATTR, trainer.task.metric_name)
            self.reported_steps.add(step)
            self.trial.report(metric, step)
            if self.trial.should_prune():
                raise TrialPruned


def _build_trial_attrs(run: Run, result: Result) -> dict[str, object]:
    """Return what is stored of a trained trial; its test metric decides nothing."""
    has_test_metric = read_metric_rows(resolve_run_dir(run))[-1]["test"] is not None
    return {METRIC_ATTR: result.metric_name, TEST_ATTR: result.metric if has_test_metric else None}


def _finish_trial(
    study: TuningStudy,
    trial: Trial,
    claim: TrialClaim,
    state: TrialState,
    attrs: dict[str, object] | None = None,
    value: float | None = None,
) -> bool:
    """Mark a trial as finished, unless another process has taken it over; return whether it was."""
    if not retry_storage_call(claim.send_heartbeat):
        return False
    for name, attr_value in (attrs or {}).items():
        retry_storage_call(partial(trial.set_user_attr, name, attr_value))
    retry_storage_call(
        lambda: study.optuna_study.tell(trial.number, value, state, skip_if_finished=True)
    )
    return True
