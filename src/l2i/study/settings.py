"""The settings of L2I that the study changes, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from l2i.config import Run, replace
from l2i.errors import InputError
from l2i.training.targets import FOR_CLASSES
from l2i.validate import validate

FADING = {"rho": 1.0, "fade": 0.5, "rho_least": 0.1}
LOOK_AHEAD = {"eta": 1.0}

GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "what it is compared with": {
        "without L2I": {"outer_update": "off"},
        "ρ 0.3, where the others start from": {},
        "control: an ordinary gradient": {"through": "parameters"},
    },
    "ρ constant": {f"ρ {rho:g}": {"rho": rho} for rho in (0.03, 0.1, 1.0, 3.0)},
    "ρ on a schedule": {
        "ρ 1, falling to 0": {"rho": 1.0, "rho_schedule": "falling"},
        "ρ 1, following λ": {"rho": 1.0, "rho_schedule": "weight"},
        "ρ 1, fading with C^H (p = 1/2)": FADING,
        "ρ 1, fading with C^H (p = 1)": {**FADING, "fade": 1.0},
        "ρ 3, fading with C^H (p = 1/2)": {**FADING, "rho": 3.0},
        "ρ 1, gradient not lengthened": {"rho": 1.0, "turn": True},
        "ρ 3, gradient not lengthened": {"rho": 3.0, "turn": True},
        "from a fifth of the steps on": {"start": 0.2},
        "from half of the steps on": {"start": 0.5},
        "every fifth step": {"outer_every": 5},
    },
    "the inner step": {
        **{f"η {eta:g}": {"eta": eta} for eta in (0.01, 1.0, 100.0)},
        "η 1 with C^T": {**LOOK_AHEAD, "inner_supervised": True},
        "η 1, all parameters move": {**LOOK_AHEAD, "moves": "all"},
        "exact": {"hypergradient": "exact"},
        "exact, K = 2, η 1": {**LOOK_AHEAD, "hypergradient": "exact", "inner_steps": 2},
        "exact, K = 3, η 1": {**LOOK_AHEAD, "hypergradient": "exact", "inner_steps": 3},
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
            f"η {eta:g}, one optimizer": {"outer_update": "paper", "eta": eta, "inner_supervised": True}
            for eta in (0.01, 1.0, 100.0)
        },
        **{
            f"η 1, an optimizer of its own at {share:g} of the rate": {
                "outer_update": "paper",
                "inner_supervised": True,
                "outer_optimizer": "own",
                "outer_rate": share,
                **LOOK_AHEAD,
            }
            for share in (1.0, 0.1, 0.01)
        },
    },
}
SETTINGS = {f"{group}: {name}": group for group, names in GROUPS.items() for name in names}
FOR_TARGETS = ("tanh",)


def fitting(run: Run) -> Iterator[tuple[str, Run]]:
    """Each setting by name, as a change of the run; those that make no sense for it are left out."""
    run = replace(run, l2i={"rho": 0.3})
    classes = run.method.name in ("fixmatch", "uda") or run.data.name in ("digits", "breast-cancer", "fashion-mnist")
    for group, settings in GROUPS.items():
        for name, changes in settings.items():
            if changes.get("outer_target") in (FOR_TARGETS if classes else FOR_CLASSES):
                continue
            if changes.get("rho_schedule") == "weight" and not run.method.rampup:  # then ρ is constant, as above
                continue
            changed = with_changes(run, changes)
            try:
                validate(changed)
            except InputError:
                continue
            yield f"{group}: {name}", changed


def with_changes(run: Run, changes: dict[str, Any]) -> Run:
    """The run with fields of L2I changed; a hold-out batch and an outer rate are multiples of the run's own."""
    fields = dict(changes)
    times = fields.pop("batch", 1.0)
    if "outer_rate" in fields:
        fields["outer_rate"] *= run.optim.lr
    return replace(run, l2i=fields, batch={"holdout": max(1, round(run.batch.holdout * times))})
