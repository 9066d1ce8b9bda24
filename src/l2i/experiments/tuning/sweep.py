"""A sweep: train its trials, pruned if others did better at the same step, until all are done."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from optuna import TrialPruned
from optuna.trial import Trial, TrialState

from l2i.config import Run, replace
from l2i.errors import InputError, NonFiniteCost
from l2i.experiments.tuning import study as tuning_study
from l2i.experiments.tuning.space import SweepPlan, apply_values, make_no_validation_error
from l2i.experiments.tuning.study import TrialClaim, TuningStudy
from l2i.experiments.tuning.summary import render_summary, render_trial_line
from l2i.files.output import write_atomic
from l2i.files.terminal import print_lines
from l2i.training.loading import read_metric_rows
from l2i.training.logger import make_throttled_printer
from l2i.training.run import train
from l2i.training.run_dir import resolve_run_dir
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
            f"cannot create folder {plan.folder} ({error.strerror}); choose a different --out"
        ) from None
    _check_sweep_dir(plan)
    with tuning_study.open_study(plan) as study:
        while (claimed := study.claim_next_trial()) is not None:
            number, claim = claimed
            with claim:
                is_finished = _train_trial(study, number, claim)
            if is_finished:
                line = render_trial_line(plan, study.get_trials(), number)
                print_lines(line, stderr=True)
        return render_summary(plan, study.get_trials())


def _check_sweep_dir(plan: SweepPlan) -> None:
    """Check that the folder is this study's: trials of another would be taken for its own."""
    name_file = plan.folder / STUDY_NAME_FILE
    if not name_file.exists():
        write_atomic(name_file, plan.study_name.encode())
    stored_name = name_file.read_text(encoding="utf-8", errors="replace").strip()
    if stored_name != plan.study_name:
        raise InputError(
            f"{plan.folder} contains the study '{stored_name}'; choose a different --out, "
            f"or continue it with --study '{stored_name}'"
        )


def _train_trial(study: TuningStudy, number: int, claim: TrialClaim) -> bool:
    """Train or resume a trial and store its outcome; return False if another has taken it over."""
    trial, values = study.start_trial(number)
    run = apply_values(study.plan.run, study.plan.space, values)
    run = replace(run, out=str(study.plan.get_trial_dir(number)))
    finish = partial(_finish_trial, trial, claim)
    if resolve_run_dir(run).exists():
        print_lines(f"trial {number}: resuming", stderr=True)
    try:
        result = train(run, quiet=True, on_evaluation=PruningCallback(trial, claim, run))
    except TrialPruned:
        return finish(TrialState.PRUNED, {}, None)
    except NonFiniteCost as error:
        return finish(TrialState.FAIL, {tuning_study.REASON_ATTR: str(error)}, None)
    except ClaimLost:
        return False
    if result.validation is None:
        raise make_no_validation_error()
    has_test_metric = read_metric_rows(resolve_run_dir(run))[-1]["test"] is not None
    test_metric = result.metric if has_test_metric else None  # stored, but it decides nothing
    attrs = {tuning_study.METRIC_ATTR: result.metric_name, tuning_study.TEST_ATTR: test_metric}
    return finish(TrialState.COMPLETE, attrs, result.validation)


class PruningCallback:
    """Report the validation metric of a trial at its evaluations, and stop it if it is pruned."""

    def __init__(self, trial: Trial, claim: TrialClaim, run: Run) -> None:
        self.trial, self.claim, self.run = trial, claim, run
        trials = trial.study.get_trials(deepcopy=False)
        self.reported_steps = set(trials[trial.number].intermediate_values)
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
        with suppress(*tuning_study.STORAGE_ERRORS):  # training continues while there is no answer
            if not self.reported_steps:
                self.trial.set_user_attr(tuning_study.METRIC_ATTR, trainer.task.metric_name)
            self.reported_steps.add(step)
            self.trial.report(metric, step)
            if self.trial.should_prune():
                raise TrialPruned


def _finish_trial(
    trial: Trial, claim: TrialClaim, state: TrialState, attrs: dict[str, Any], value: float | None
) -> bool:
    """Mark a trial as finished, unless another process has taken it over; return whether it was."""
    if not tuning_study.retry_storage_call(claim.send_heartbeat):
        return False
    for name, attr_value in attrs.items():
        tuning_study.retry_storage_call(partial(trial.set_user_attr, name, attr_value))
    tell = partial(trial.study.tell, trial.number, value, state, skip_if_finished=True)
    tuning_study.retry_storage_call(tell)
    return True
