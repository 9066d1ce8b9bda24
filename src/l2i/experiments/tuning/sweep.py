"""A trial from start to finish: its run, pruned where others were better at the same step, and what it came to.

MERGED:
A sweep: trials are trained until there are as many as were asked for, whoever else is at work on them.
"""

from __future__ import annotations

import sys

from l2i.errors import InputError
from l2i.experiments.tuning.space import SweepPlan
from l2i.experiments.tuning.study import open_study
from l2i.experiments.tuning.summary import render_summary, render_trial_line
from l2i.experiments.tuning.trial import train_trial
from l2i.files.atomic import write_atomic

STUDY_NAME_FILE = "study.txt"  # the name of the study whose trials lie in a folder


def run_sweep(plan: SweepPlan) -> str:
    """Train what is left of a sweep, a line a trial on stderr, and return what it came to."""
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{plan.folder} cannot be the folder of a sweep ({error.strerror}); give another --out"
        ) from None
    check_sweep_dir(plan)
    with open_study(plan) as study:
        while (claimed := study.claim_next_trial()) is not None:
            number, claim = claimed
            with claim:
                is_finished = train_trial(study, number, claim)
            if is_finished:
                print(render_trial_line(plan, study.get_trials(), number), file=sys.stderr, flush=True)
        return render_summary(plan, study.get_trials())


def check_sweep_dir(plan: SweepPlan) -> None:
    """That the folder is this study's: another's trials would be taken for its own."""
    name_file = plan.folder / STUDY_NAME_FILE
    if not name_file.exists():
        write_atomic(name_file, plan.study_name.encode())
    stored_name = name_file.read_text(encoding="utf-8", errors="replace").strip()
    if stored_name != plan.study_name:
        raise InputError(
            f"{plan.folder} holds the sweep '{stored_name}'; give another --out, or go on with --study '{stored_name}'"
        )
