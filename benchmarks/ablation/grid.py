"""The problems of the study, the arms that are compared on each, and what the arms are tuned over.

MERGED:
The settings of L2I that the study changes, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_dataclass
from typing import Any, Literal

from l2i import config, recipes
from l2i.config import Run, replace
from l2i.config.validate import validate
from l2i.errors import InputError
from l2i.methods.outer_targets import CLASSIFICATION_ONLY

Arm = Literal["baseline", "longer", "control", "l2i"]
ARMS: tuple[Arm, ...] = ("baseline", "longer", "control", "l2i")
DYNAMICS_ARMS: tuple[Arm, ...] = ("baseline", "control", "l2i")  # arms that are looked at on their way
TUNING_GRID = ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.3), (1.0, 3.0))  # times the recipe's rate and λ
TUNING_SEEDS = (1000, 1001)  # seeds that settings are chosen on


@dataclass(frozen=True)
class Problem:
    """A method on a data set with few labels: the recipe with L2I, whose twins are the other arms."""

    name: str
    cell: str

    def make_run(self, arm: Arm, *, lr_factor: float = 1.0, weight_factor: float = 1.0, step_factor: float = 1.0) -> Run:
        """An arm's run; with its learning rate and λ so many times the recipe's, and `pace` times the steps."""
        run = recipes.get(self.cell)
        if arm in ("baseline", "longer"):
            run = config.replace(run, l2i={"update": "off"})
        if arm == "control":
            run = config.replace(run, l2i={"through": "parameters"})
        if arm == "longer":
            run = config.replace(run, steps=round(run.steps * step_factor))
        method = replace_dataclass(run.method, weight=run.method.weight * weight_factor)
        return config.replace(run, method=method, optim={"lr": run.optim.lr * lr_factor})


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


RHO_FADE = {"rho": 1.0, "fade": 0.5, "rho_least": 0.1}
UNIT_ETA = {"eta": 1.0}

SETTING_GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "what it is compared with": {
        "without L2I": {"update": "off"},
        "ρ 0.3, where the others start from": {},
        "control: an ordinary gradient": {"through": "parameters"},
    },
    "ρ constant": {f"ρ {rho:g}": {"rho": rho} for rho in (0.03, 0.1, 1.0, 3.0)},
    "ρ on a schedule": {
        "ρ 1, falling to 0": {"rho": 1.0, "rho_schedule": "falling"},
        "ρ 1, following λ": {"rho": 1.0, "rho_schedule": "weight"},
        "ρ 1, fading with C^H (p = 1/2)": RHO_FADE,
        "ρ 1, fading with C^H (p = 1)": {**RHO_FADE, "fade": 1.0},
        "ρ 3, fading with C^H (p = 1/2)": {**RHO_FADE, "rho": 3.0},
        "ρ 1, gradient not lengthened": {"rho": 1.0, "preserve_step_norm": True},
        "ρ 3, gradient not lengthened": {"rho": 3.0, "preserve_step_norm": True},
        "from a fifth of the steps on": {"start": 0.2},
        "from half of the steps on": {"start": 0.5},
        "every fifth step": {"every": 5},
    },
    "the inner step": {
        **{f"η {eta:g}": {"eta": eta} for eta in (0.01, 1.0, 100.0)},
        "η 1 with C^T": {**UNIT_ETA, "inner_supervised": True},
        "η 1, all parameters move": {**UNIT_ETA, "moves": "all"},
        "exact": {"hypergradient": "exact"},
        "exact, K = 2, η 1": {**UNIT_ETA, "hypergradient": "exact", "inner_steps": 2},
        "exact, K = 3, η 1": {**UNIT_ETA, "hypergradient": "exact", "inner_steps": 3},
        "the paper's closed form": {"hypergradient": "last_layer_paper"},
    },
    "labels and distance": {
        "learnable labels (L)": {"labels": "learnable"},
        "cross-entropy": {"outer_target": "cross_entropy"},
        "sharpened": {"outer_target": "sharpened"},
        "masked": {"outer_target": "masked"},
        "before the softmax": {"outer_target": "logits"},
        "squashed by tanh": {"outer_target": "tanh"},
    },
    "hold-out": {
        "separate (40 % of the labels)": {"holdout": "separate"},
        "batch × 1/4": {"batch": 0.25},
        "batch × 4": {"batch": 4.0},
    },
    "the paper's rule": {
        **{
            f"η {eta:g}, one optimizer": {"update": "paper", "eta": eta, "inner_supervised": True}
            for eta in (0.01, 1.0, 100.0)
        },
        **{
            f"η 1, an optimizer of its own at {fraction:g} of the rate": {
                "update": "paper",
                "inner_supervised": True,
                "outer_optimizer": "own",
                "outer_rate": fraction,
                **UNIT_ETA,
            }
            for fraction in (1.0, 0.1, 0.01)
        },
    },
}
GROUP_BY_SETTING = {f"{group}: {name}": group for group, names in SETTING_GROUPS.items() for name in names}
REGRESSION_ONLY_TARGETS = ("tanh",)


def iter_settings(run: Run) -> Iterator[tuple[str, Run]]:
    """Each setting by name, as a change of the run; those that make no sense for it are left out."""
    run = replace(run, l2i={"rho": 0.3})
    is_classification = run.method.name in ("fixmatch", "uda") or run.data.name in ("digits", "breast-cancer", "fashion-mnist")
    for group, settings in SETTING_GROUPS.items():
        for name, changes in settings.items():
            if changes.get("outer_target") in (REGRESSION_ONLY_TARGETS if is_classification else CLASSIFICATION_ONLY):
                continue
            if changes.get("rho_schedule") == "weight" and not run.method.rampup:  # then ρ is constant, as above
                continue
            changed_run = apply_changes(run, changes)
            try:
                validate(changed_run)
            except InputError:
                continue
            yield f"{group}: {name}", changed_run


def apply_changes(run: Run, changes: dict[str, Any]) -> Run:
    """The run with fields of L2I changed; a hold-out batch and an outer rate are multiples of the run's own."""
    overrides = dict(changes)
    batch_factor = overrides.pop("batch", 1.0)
    if "outer_rate" in overrides:
        overrides["outer_rate"] *= run.optim.lr
    return replace(run, l2i=overrides, batch={"holdout": max(1, round(run.batch.holdout * batch_factor))})
