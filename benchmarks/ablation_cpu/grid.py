"""The problems, arms and settings of the ablation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_dataclass
from typing import Any, Literal

from l2i import config, recipes
from l2i.config import Run, replace
from l2i.config.validate import validate
from l2i.errors import InputError

Arm = Literal["baseline", "longer", "control", "l2i"]
ARMS: tuple[Arm, ...] = ("baseline", "longer", "control", "l2i")
DYNAMICS_ARMS: tuple[Arm, ...] = (
    "baseline",
    "control",
    "l2i",
)  # arms that are probed during training
TUNING_GRID = (
    (1.0, 1.0),
    (0.5, 1.0),
    (2.0, 1.0),
    (1.0, 0.3),
    (1.0, 3.0),
)  # factors of the recipe's learning rate and λ
TUNING_SEEDS = (1000, 1001)  # seeds that settings are chosen on


@dataclass(frozen=True)
class Problem:
    """A method on a dataset with few labels; the recipe with L2I defines all arms."""

    name: str
    cell: str

    def make_run(
        self,
        arm: Arm,
        *,
        lr_factor: float = 1.0,
        weight_factor: float = 1.0,
        step_factor: float = 1.0,
    ) -> Run:
        """Return an arm's run, with learning rate, λ and steps as multiples of the recipe's."""
        run = recipes.get(self.cell)
        if arm in ("baseline", "longer"):
            run = config.replace(run, l2i={"update": "off"})
        if arm == "control":
            run = config.replace(run, l2i={"ablation": "direct_gradient"})
        if arm == "longer":
            run = config.replace(run, steps=round(run.steps * step_factor))
        method = replace_dataclass(run.method, weight=run.method.weight * weight_factor)
        # the stored runs have copied statistics, and new ones have to be comparable
        optim = {"lr": run.optim.lr * lr_factor, "ema_bn": "copy"}
        return config.replace(run, method=method, optim=optim)


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


REMOVED: dict[str, Any] | None = (
    None  # a setting whose field has left the library: its records are still shown
)


def look_ahead(eta: float, **paper: Any) -> dict[str, Any]:
    """Return the fields of L2I for an inner step on C^U."""
    return {"paper": {"eta": eta, **paper}}


def look_ahead_supervised(eta: float) -> dict[str, Any]:
    """Return the fields of L2I for an inner step on C^T + C^U, as in the paper's text."""
    return {"paper": {"supervised_eta": eta, "inner_supervised": True}}


SETTING_GROUPS: dict[str, dict[str, dict[str, Any] | None]] = {
    "reference": {
        "without L2I": {"update": "off"},
        "L2I, ρ 0.3": {},
        "control: direct gradient": {"ablation": "direct_gradient"},
    },
    "constant ρ": {f"ρ {rho:g}": {"rho": rho} for rho in (0.03, 0.1, 1.0, 3.0)},
    "schedule": {
        "ρ 1, decaying to 0": REMOVED,
        "ρ 1, ramped up with λ": REMOVED,
        "ρ 1, decaying with C^H (p = 1/2)": REMOVED,
        "ρ 1, decaying with C^H (p = 1)": REMOVED,
        "ρ 3, decaying with C^H (p = 1/2)": REMOVED,
        "ρ 1, step norm preserved": {"rho": 1.0, "preserve_step_norm": True},
        "ρ 3, step norm preserved": {"rho": 3.0, "preserve_step_norm": True},
        "from 20 % of the steps": REMOVED,
        "from 50 % of the steps": REMOVED,
        "every 5th step": {"every": 5},
    },
    "inner step": {
        **{f"η {eta:g}": look_ahead(eta) for eta in (0.01, 1.0, 100.0)},
        "η 1 with C^T": look_ahead_supervised(1.0),
        "η 1, all parameters": REMOVED,
        "exact": {"hypergradient": "exact"},
        "exact, K = 2, η 1": {"hypergradient": "exact", **look_ahead(1.0, inner_steps=2)},
        "exact, K = 3, η 1": {"hypergradient": "exact", **look_ahead(1.0, inner_steps=3)},
        "the paper's closed form": REMOVED,
    },
    "labels and distance": {
        "learnable labels (L)": {"labels": "learnable"},
        **dict.fromkeys(
            ("cross-entropy", "sharpened", "masked", "logits, not probabilities", "through tanh"),
            REMOVED,
        ),
    },
    "hold-out": {
        "separate (40 % of the labels)": {"holdout": "separate"},
        "batch × 1/4": {"batch": 0.25},
        "batch × 4": {"batch": 4.0},
    },
    "paper update, inner cost C^T + C^U": {
        **{
            f"η {eta:g}": {"update": "paper", **look_ahead_supervised(eta)}
            for eta in (0.01, 1.0, 100.0)
        },
        **{f"η 1, own optimizer, lr × {fraction:g}": REMOVED for fraction in (1.0, 0.1, 0.01)},
    },
}
GROUP_BY_SETTING = {
    f"{group}: {name}": group for group, names in SETTING_GROUPS.items() for name in names
}


def iter_settings(run: Run) -> Iterator[tuple[str, Run]]:
    """Yield each setting that suits the run by name, as a change of the run."""
    run = replace(run, l2i={"rho": 0.3})
    for group, settings in SETTING_GROUPS.items():
        for name, changes in settings.items():
            if changes is None:
                continue
            changed_run = apply_changes(run, changes)
            try:
                validate(changed_run)
            except InputError:
                continue
            yield f"{group}: {name}", changed_run


def apply_changes(run: Run, changes: dict[str, Any]) -> Run:
    """Change fields of L2I; a hold-out batch is given as a multiple of the run's own."""
    overrides = dict(changes)
    batch_factor = overrides.pop("batch", 1.0)
    return replace(
        run, l2i=overrides, batch={"holdout": max(1, round(run.batch.holdout * batch_factor))}
    )
