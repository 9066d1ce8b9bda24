"""A trial from start to finish: its run, pruned where others were better at the same step, and what it came to."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

from optuna import TrialPruned
from optuna.trial import Trial, TrialState

from l2i.config import Run, replace
from l2i.errors import InputError, NonFiniteCost
from l2i.training.folder import Result, folder_of
from l2i.training.load import read_rows
from l2i.training.log import seldom
from l2i.training.run import train
from l2i.training.trainer import Trainer
from l2i.tune.claims import Claim
from l2i.tune.plan import Plan
from l2i.tune.space import with_values
from l2i.tune.storage import BROKEN, patiently
from l2i.tune.study import Study, draw

FIGURE, TEST, REASON = "figure", "test", "reason"  # attributes of a trial


class TakenOver(Exception):
    """A process was silent for so long that another one is at work on its trial."""


class Watcher:
    """Reports the validation figure at the evaluations of a trial, and ends those that are to be pruned."""

    def __init__(self, trial: Trial, claim: Claim, run: Run) -> None:
        self.trial, self.claim, self.run = trial, claim, run
        self.reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.say = seldom()

    def __call__(self, trainer: Trainer, step: int) -> None:
        if self.claim.lost:
            raise TakenOver
        if step % self.run.eval_every or step == self.run.steps or step in self.reported:
            return  # those of the final figure alone come too late, and those before a cut were reported
        figure = float(read_rows(folder_of(self.run))[-1]["validation"] or 0)
        name = f"validation {trainer.task.figure_name}"
        self.say(f"trial {self.trial.number}: step {step:,} of {self.run.steps:,}, {name} {figure:.2f}")
        with suppress(*BROKEN):  # training goes on while the storage does not answer
            if not self.reported:
                self.trial.set_user_attr(FIGURE, trainer.task.figure_name)
            self.reported.add(step)
            self.trial.report(figure, step)
            if self.trial.should_prune():
                raise TrialPruned


def run_of(plan: Plan, trial: Trial) -> Run:
    """The run of a trial, its values drawn where they were not."""
    values = {path: draw(trial, path, found) for path, found in plan.space.items()}
    return replace(with_values(plan.run, plan.space, values), out=str(plan.folder_of(trial.number)))


def finish(study: Study, number: int, claim: Claim) -> bool:
    """Train a trial, or go on with it, and put down what it came to; False where another process has taken it over."""
    trial = study.begun(number)
    run = run_of(study.plan, trial)
    watcher = Watcher(trial, claim, run)
    if folder_of(run).exists():
        print(f"trial {number}: going on", file=sys.stderr, flush=True)
    try:
        result = train(run, quiet=True, watch=watcher)
    except TrialPruned:
        return told(study, trial, claim, TrialState.PRUNED)
    except NonFiniteCost as error:
        return told(study, trial, claim, TrialState.FAIL, {REASON: str(error)})
    except TakenOver:
        return False
    if result.validation is None:
        raise InputError("settings are chosen by validation samples and there are none; set --data.num-validation")
    return told(study, trial, claim, TrialState.COMPLETE, attributes(run, result), result.validation)


def attributes(run: Run, result: Result) -> dict[str, object]:
    """What is kept of a trained trial beside its validation figure; its test figure decides nothing."""
    tested = read_rows(folder_of(run))[-1]["test"] is not None
    return {FIGURE: result.figure_name, TEST: result.figure if tested else None}


def told(
    study: Study,
    trial: Trial,
    claim: Claim,
    state: TrialState,
    attributes: dict[str, object] | None = None,
    value: float | None = None,
) -> bool:
    """Mark a trial as finished, for good; False where it is no longer this process's to finish."""
    if not patiently(claim.beat):
        return False
    for name, about in (attributes or {}).items():
        patiently(partial(trial.set_user_attr, name, about))
    patiently(lambda: study.study.tell(trial.number, value, state, skip_if_finished=True))
    return True
