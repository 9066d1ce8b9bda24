"""The trials of a sweep, in Optuna's study: made once, each taken by one process, all of them counted."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from l2i.errors import InputError
from l2i.tune.claims import GRACE, Claim, Claims
from l2i.tune.plan import Plan, part_of
from l2i.tune.space import Range, Value
from l2i.tune.storage import opened

FIRST = 5  # trials drawn at random before Optuna models what is good, and trained whole before others are pruned
EARLY = 0.25  # of the steps, in which no trial is pruned
IDENTITY = "l2i"  # the attribute of a study that says what it is of


class Study:
    """Optuna's study of a plan, with who is at work on which trial."""

    def __init__(self, plan: Plan, storage: RDBStorage) -> None:
        self.plan, self.storage = plan, storage
        self.claims = Claims(storage.engine, plan.study, plan.folder / "claims")
        with self.waited("setup"):
            self.study = optuna.create_study(
                storage=storage, study_name=plan.study, direction="minimize", load_if_exists=True
            )
            self.check()
            for number in range(len(self.trials()), plan.trials):
                self.study.enqueue_trial(self.recipes_own() if number == 0 else {})
        if plan.prune:
            warm = int(EARLY * plan.run.steps)
            self.study.pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST, n_warmup_steps=warm)
        else:
            self.study.pruner = optuna.pruners.NopPruner()

    def waited(self, part: str) -> Claim:
        """A part that is held for moments only."""
        end = time.monotonic() + 2 * GRACE.total_seconds()
        while (claim := self.claims.take(part)) is None:
            if time.monotonic() > end:
                raise InputError(f"another process keeps {self.plan.study} to itself; stop it, or give another --study")
            time.sleep(0.05)
        return claim

    def check(self) -> None:
        """That a study of this name is of this plan; a new one is made so."""
        here, there = self.plan.identity(), self.study.user_attrs.get(IDENTITY)
        if there is None and self.trials():
            raise InputError(f"the study {self.plan.study} there is none of l2i's; give another --study")
        if there is None:
            self.study.set_user_attr(IDENTITY, here)
            return
        unlike = [
            f"{name} is {there.get(name)} there and {here.get(name)} here"
            for name in sorted(there.keys() | here.keys())
            if there.get(name) != here.get(name)
        ]
        if unlike:
            more = f"; {len(unlike) - 4} more" if len(unlike) > 4 else ""
            raise InputError(
                f"the study {self.plan.study} is of other settings ({'; '.join(unlike[:4])}{more}); "
                "give another --study, or those settings"
            )

    def recipes_own(self) -> dict[str, Value]:
        """What the first trial is given: the recipe's values, as far as they lie in the space."""
        return {path: found.own for path, found in self.plan.space.items() if found.starts and found.own is not None}

    def trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        return self.study.get_trials(deepcopy=False)

    def take(self) -> tuple[int, Claim] | None:
        """The first trial that is not finished and that nobody is at work on."""
        for number, trial in enumerate(self.trials()[: self.plan.trials]):
            if trial.state.is_finished():
                continue
            claim = self.claims.take(part_of(number))
            if claim is None:
                continue
            if not self.trials()[number].state.is_finished():
                return number, claim
            claim.release()  # it was finished between the two looks
        return None

    def begun(self, number: int) -> Trial:
        """A trial for which values can be drawn, and reported; what was drawn and reported before stays."""
        study_id = self.storage.get_study_id_from_name(self.plan.study)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        self.study.sampler = sampler(self.plan.run.seed, number)
        return Trial(self.study, trial_id)


def sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """Optuna's default, drawing for each trial from a seed of its own, whichever process trains it."""
    own = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=own, n_startup_trials=FIRST, multivariate=True, constant_liar=True)


def draw(trial: Trial, path: str, found: Range) -> Value:
    """A value for a field of the trial."""
    if found.whole:
        return trial.suggest_int(path, int(found.low), int(found.high), log=found.log)
    return trial.suggest_float(path, found.low, found.high, log=found.log)


@contextmanager
def study_of(plan: Plan) -> Iterator[Study]:
    """The study of a plan, made where it is not there."""
    with opened(plan.url) as storage:
        yield Study(plan, storage)
