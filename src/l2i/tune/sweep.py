"""A sweep: trials are trained until there are as many as were asked for, whoever else is at work on them."""

from __future__ import annotations

import sys

from l2i.errors import InputError
from l2i.training.checkpoint import write_whole
from l2i.tune.plan import Plan
from l2i.tune.printed import line, outcome
from l2i.tune.study import study_of
from l2i.tune.trial import finish

MARK = "study.txt"  # the name of the study whose trials lie in a folder


def sweep(plan: Plan) -> str:
    """Train what is left of a sweep, a line a trial on stderr, and return what it came to."""
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{plan.folder} cannot be the folder of a sweep ({error.strerror}); give another --out"
        ) from None
    belongs(plan)
    with study_of(plan) as study:
        while (found := study.take()) is not None:
            number, claim = found
            with claim:
                done = finish(study, number, claim)
            if done:
                print(line(plan, study.trials(), number), file=sys.stderr, flush=True)
        return outcome(plan, study.trials())


def belongs(plan: Plan) -> None:
    """That the folder is this study's: another's trials would be taken for its own."""
    mark = plan.folder / MARK
    if not mark.exists():
        write_whole(mark, plan.study.encode())
    there = mark.read_text(encoding="utf-8", errors="replace").strip()
    if there != plan.study:
        raise InputError(
            f"{plan.folder} holds the sweep '{there}'; give another --out, or go on with --study '{there}'"
        )
