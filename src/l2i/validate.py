"""Checks of a run as a whole, before anything is read or written."""

from l2i.config import L2I, Run
from l2i.errors import InputError


def validate(run: Run) -> None:
    """Raise InputError, saying what to do, where the fields of `run` cannot go together."""
    _positive(run)
    _outer(run, run.l2i)


def _positive(run: Run) -> None:
    least_one = {
        "steps": run.steps,
        "eval_every": run.eval_every,
        "save_every": run.save_every,
        "batch.labeled": run.batch.labeled,
        "batch.unlabeled": run.batch.unlabeled,
        "batch.holdout": run.batch.holdout,
        "l2i.inner_steps": run.l2i.inner_steps,
        "model.width": run.model.width,
    }
    for name, value in least_one.items():
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    if run.threads < 0:
        raise InputError(f"threads={run.threads} must not be negative; 0 leaves the choice to torch")
    if run.seed < 0:
        raise InputError(f"seed={run.seed} must not be negative")
    if not run.optim.lr > 0:
        raise InputError(f"optim.lr={run.optim.lr} must be above 0")
    if not 0 <= run.optim.ema_decay < 1:
        raise InputError(f"optim.ema_decay={run.optim.ema_decay} must be at least 0 and below 1")
    if run.optim.schedule == "step" and not run.optim.milestones:
        raise InputError("optim.schedule='step' needs optim.milestones, the steps at which the rate falls")


def _outer(run: Run, l2i: L2I) -> None:
    if l2i.outer_update == "off":
        return
    if not run.method.imputes:
        raise InputError(
            f"{run.method.name} imputes no labels, so there is nothing to learn; use l2i.outer_update='off'"
        )
    if l2i.outer_update == "paper" and l2i.eta is None:
        raise InputError(
            "l2i.outer_update='paper' looks ahead by a real step; set l2i.eta "
            "(the released code has 50·lr·batch·classes)"
        )
    if l2i.hypergradient == "unrolled" and l2i.eta is None:
        raise InputError("l2i.hypergradient='unrolled' takes a real inner step; set l2i.eta")
    if l2i.eta is not None and not l2i.eta > 0:
        raise InputError(f"l2i.eta={l2i.eta} must be above 0")
    if l2i.rho < 0:
        raise InputError(f"l2i.rho={l2i.rho} must not be negative")
    if l2i.hypergradient.startswith("last_layer") and l2i.inner_steps != 1:
        raise InputError(
            f"l2i.inner_steps={l2i.inner_steps} needs l2i.hypergradient='exact'; the last layer takes one step"
        )
    if l2i.outer_optimizer == "own" and l2i.outer_rate is None:
        raise InputError("l2i.outer_optimizer='own' needs l2i.outer_rate, its learning rate")
