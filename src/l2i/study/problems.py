"""The problems of the study, the arms that are compared on each, and what the arms are tuned over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from l2i import config, recipes
from l2i.config import Run

Arm = Literal["baseline", "longer", "control", "l2i"]
ARMS: tuple[Arm, ...] = ("baseline", "longer", "control", "l2i")
WATCHED: tuple[Arm, ...] = ("baseline", "control", "l2i")  # arms that are looked at on their way
TRIALS = ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.3), (1.0, 3.0))  # times the recipe's rate and λ
TUNING = (1000, 1001)  # seeds that settings are chosen on


@dataclass(frozen=True)
class Problem:
    """A method on a data set with few labels: the recipe with L2I, whose twins are the other arms."""

    name: str
    cell: str

    def run(self, arm: Arm, *, lr: float = 1.0, weight: float = 1.0, pace: float = 1.0) -> Run:
        """An arm's run; with its learning rate and λ so many times the recipe's, and `pace` times the steps."""
        run = recipes.get(self.cell)
        if arm in ("baseline", "longer"):
            run = config.replace(run, l2i={"outer_update": "off"})
        if arm == "control":
            run = config.replace(run, l2i={"through": "parameters"})
        if arm == "longer":
            run = config.replace(run, steps=round(run.steps * pace))
        method = replace(run.method, weight=run.method.weight * weight)
        return config.replace(run, method=method, optim={"lr": run.optim.lr * lr})


PROBLEMS: dict[str, Problem] = {
    name: Problem(name, cell)
    for name, cell in {
        "digits-fixmatch": "digits/fixmatch-l2i-40",
        "digits-mean-teacher": "digits/mean-teacher-l2i-40",
        "fashion-fixmatch": "fashion/fixmatch-l2i-50",
        "breast-cancer-pseudo-label": "breast-cancer/pseudo-label-l2i-20",
        "diabetes-mean-teacher": "diabetes/mean-teacher-l2i-50",
        "friedman-mean-teacher": "friedman/mean-teacher-l2i-60",
        "small-faces-mean-teacher": "small-faces/mean-teacher-l2i-91",
        "small-faces-pseudo-label": "small-faces/pseudo-label-l2i-91",
    }.items()
}
