"""The case of `l2i bench` that a script measures."""

from __future__ import annotations

import sys

import torch

from l2i import Run
from l2i.errors import InputError
from l2i.experiments.benchmark.cases import select_cases
from l2i.experiments.options import BenchOptions


def select_gpu_run(group: str, variant: str) -> Run | None:
    """Return the run of a case; None, with a message, if there is no GPU to measure it on."""
    options = BenchOptions(groups=(group,), variants=(variant,))
    try:
        case = select_cases(options, torch.device("cuda"))[group][0]
    except InputError as error:
        sys.exit(str(error))
    if not torch.cuda.is_available():
        print("this needs a GPU, and none was found")
        return None
    return case.run
