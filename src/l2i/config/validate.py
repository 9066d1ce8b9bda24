"""Checks of a run as a whole, before anything is read or written."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from l2i.config import L2I, Run, from_json, to_json
from l2i.data.transforms.image import Augment
from l2i.errors import InputError
from l2i.models.base import ModelConfig

MAX_COUNT = 10**9
RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, MAX_COUNT),
    "seed": (0, 2**63 - 1),
    "threads": (0, 1024),
    "eval_every": (1, MAX_COUNT),
    "save_every": (1, MAX_COUNT),
    "keep_checkpoints": (1, MAX_COUNT),
    "probe_samples": (0, MAX_COUNT),
    "data.num_labeled": (0, MAX_COUNT),
    "data.num_validation": (0, MAX_COUNT),
    "data.workers": (0, 1024),
    "data.num_test": (0, MAX_COUNT),
    "data.text.length": (1, MAX_COUNT),
    **{
        f"data.{view}.{name}": (0, high)
        for view in ("weak", "strong")
        for name, high in {
            "crop": MAX_COUNT,
            "shift": MAX_COUNT,
            "randaugment": 100,
            "corrupt": 1,
            "noise": 1e6,
            "cutout": MAX_COUNT,
            "fill": 255,
        }.items()
    },
    **{
        f"data.{view}.words.{name}": bounds
        for view in ("weak", "strong")
        for name, bounds in {
            "paraphrase": (0, 1),
            "replace": (0, 1),
            "drop": (0, 0.999),
            "mask": (0, 0.999),
            "span": (1, 1000),
        }.items()
    },
    "batch.labeled": (1, MAX_COUNT),
    "batch.unlabeled": (1, MAX_COUNT),
    "batch.holdout": (1, MAX_COUNT),
    "model.width": (1, MAX_COUNT),
    "model.depth": (1, 2_000),
    "model.dropout": (0, 0.999),
    "model.encoder_dropout": (0, 0.999),
    "method.weight": (0, 1e9),
    "method.rampup": (0, MAX_COUNT),
    "method.threshold": (0, 1),
    "method.temperature": (1e-3, 1e3),
    "method.alpha": (1e-3, 1e3),
    "method.epsilon": (0, 1e6),
    "method.xi": (1e-12, 1e6),
    "method.entropy": (0, 1e6),
    "method.annealing_share": (1e-9, 1),
    "l2i.rho": (0, 1e6),
    "l2i.rho_least": (0, 1e6),
    "l2i.fade": (0, 100),
    "l2i.start": (0, MAX_COUNT),
    "l2i.eta": (1e-12, 1e12),
    "l2i.label_lr": (0, 1e12),
    "l2i.inner_steps": (1, 1000),
    "l2i.inner_weight": (1e-9, 1e9),
    "l2i.every": (1, MAX_COUNT),
    "l2i.outer_batch_size": (0, MAX_COUNT),
    "l2i.outer_rate": (1e-12, 1e30),
    "optim.lr": (1e-12, 1e30),
    "optim.momentum": (0, 0.99999),
    "optim.weight_decay": (0, 1),
    "optim.gamma": (0, 1),
    "optim.warmup": (0, MAX_COUNT),
    "optim.max_grad_norm": (0, 1e30),
    "optim.layer_decay": (1e-3, 1),
    "optim.ema_decay": (0, 0.9999999),
}

NORMALIZED_FIELDS = ("fade", "rho_least", "rho_schedule", "preserve_step_norm", "through")  # fields of L2I for normalized updates alone
ENCODER_FIELDS = ("weights", "pooling", "freeze", "encoder_dropout", "gradient_checkpointing")  # fields of a model for texts alone
MIN_XI_BF16 = 0.5  # the least step of VAT that images in bf16 show
COUNT_FIELDS = (
    "data.num_labeled",
    "data.num_validation",
    "data.num_test",
    "method.rampup",
    "optim.milestones",
    "optim.warmup",
    "l2i.start",
)  # or shares


def validate(run: Run) -> None:
    """Raise InputError, saying what to do, where a field of `run` does not fit or fields cannot go together."""
    from_json(to_json(run))  # types and choices, for runs made in Python
    for path, value in flatten_fields(run):
        floats = [v for v in (value if isinstance(value, tuple) else [value]) if isinstance(v, float)]
        if not all(map(math.isfinite, floats)):
            raise InputError(f"{path}={value} must be a finite number")
        low, high = RANGES.get(path, (-math.inf, math.inf))
        if isinstance(value, int | float) and not low <= value <= high:
            raise InputError(f"{path}={value} must be at least {low:g} and at most {high:g}")
        if path in COUNT_FIELDS and any(fraction > 1 for fraction in floats):
            raise InputError(f"{path}={value} must be a whole number, or a share of at most 1.0")
    if not run.name or run.out == "":
        raise InputError("name and out must not be empty; leave them out for what the recipe has")
    if run.out is not None and not run.out.isprintable():
        raise InputError(f"out={run.out!r} cannot be written down in config.json; give another")
    if any(milestone <= 0 for milestone in run.optim.milestones):
        raise InputError(f"optim.milestones={run.optim.milestones} are steps, from 1 on, or shares of the run")
    if run.optim.schedule == "step" and not run.optim.milestones:
        raise InputError("optim.schedule='step' needs optim.milestones, the steps at which the rate falls")
    if run.optim.nesterov and (run.optim.name != "sgd" or not run.optim.momentum):
        raise InputError("optim.nesterov is for optim.name='sgd' with an optim.momentum above 0; leave it out")
    if run.data.labeled_view == "strong" and run.data.strong == Augment():
        raise InputError(
            "data.labeled_view='strong' needs a strong view, and data.strong has none; set it, or use 'weak'"
        )
    changed_fields = [name for name in ENCODER_FIELDS if getattr(run.model, name) != getattr(ModelConfig(), name)]
    if run.model.name != "encoder" and changed_fields:
        raise InputError(f"model.{changed_fields[0]} is for model.name='encoder', and this is '{run.model.name}'; leave it out")
    bf16_problem = find_bf16_problem(run)
    if run.precision == "bf16" and bf16_problem is not None:
        raise InputError(bf16_problem)
    if run.l2i.update != "off":
        _validate_outer(run, run.l2i)


def find_bf16_problem(run: Run) -> str | None:
    """What of a run would drown in the rounding of bf16, and what to do about it."""
    if getattr(run.method, "xi", 1.0) < MIN_XI_BF16:
        return f"method.xi={run.method.xi} is lost in the rounding of bf16; use 1 or more, or float32"  # type: ignore[attr-defined]
    if run.l2i.update != "off" and run.l2i.hypergradient == "finite_difference":
        return "finite differences are lost in the rounding of bf16; use precision='float32'"
    return None


def flatten_fields(section: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every field of a dataclass and of those within it, by its path."""
    flat_fields: list[tuple[str, Any]] = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        flat_fields += (
            flatten_fields(value, f"{path}{field.name}.")
            if dataclasses.is_dataclass(value)
            else [(path + field.name, value)]
        )
    return flat_fields


def _validate_outer(run: Run, l2i: L2I) -> None:
    if l2i.update == "paper":
        changed_fields = [name for name in NORMALIZED_FIELDS if getattr(l2i, name) != getattr(L2I(), name)]
        if changed_fields:
            raise InputError(f"l2i.{changed_fields[0]} is for update='normalized', and this is 'paper'; leave it out")
    if not run.method.uses_pseudo_labels:
        raise InputError(f"{run.method.name} imputes no labels, so L2I has none to learn; use l2i.update='off'")
    if l2i.update == "paper" and l2i.eta is None:
        raise InputError(
            "l2i.update='paper' looks ahead by a real step; set l2i.eta "
            "(the released code has 50·lr·batch·classes)"
        )
    if l2i.eta_schedule == "rate" and l2i.eta is None:
        raise InputError("l2i.eta_schedule='rate' changes an inner rate and there is none; set l2i.eta")
    if l2i.hypergradient == "unrolled" and l2i.eta is None:
        raise InputError("l2i.hypergradient='unrolled' takes a real inner step; set l2i.eta")
    if l2i.hypergradient.startswith("last_layer") and l2i.inner_steps != 1:
        raise InputError(f"l2i.inner_steps={l2i.inner_steps} needs l2i.hypergradient='exact'; the last layer takes one")
    if l2i.hypergradient == "last_layer_paper" and l2i.inner_weight != 1:
        raise InputError("l2i.hypergradient='last_layer_paper' knows no l2i.inner_weight; use 'last_layer'")
    if l2i.outer_batch_size > run.batch.unlabeled:
        raise InputError(
            f"l2i.outer_batch_size={l2i.outer_batch_size} is more than batch.unlabeled={run.batch.unlabeled}; use less"
        )
    if l2i.outer_batch_size and l2i.outer_target == "method" and run.method.mix_alpha is not None:
        raise InputError(
            f"{run.method.name} mixes the samples of the whole mini-batch, so its own labels cannot be learned on "
            "part of it; use l2i.outer_target='soft' or l2i.outer_batch_size=0"
        )
    if l2i.outer_optimizer == "own" and l2i.outer_rate is None:
        raise InputError("l2i.outer_optimizer='own' needs l2i.outer_rate, its learning rate")
    if l2i.inner_steps != 1 and l2i.eta is None:
        raise InputError(f"l2i.inner_steps={l2i.inner_steps} looks ahead by real steps; set l2i.eta")
    if l2i.labels == "learnable" and l2i.outer_target == "logits":
        raise InputError("l2i.outer_target='logits' imputes no labels that could be learned; use labels='output'")
    if l2i.outer_optimizer == "own" and l2i.update == "normalized":
        raise InputError("a normalized update is one step of one optimizer; l2i.outer_optimizer='own' is for 'paper'")
