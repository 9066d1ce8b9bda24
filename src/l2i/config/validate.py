"""Check a run as a whole, before anything is read or written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

from l2i.config import L2I, Run, from_json, to_json
from l2i.errors import InputError
from l2i.models.base import PRETRAINED

MAX_COUNT = 10**9
SPLIT_SIZES = ("data.num_labeled", "data.num_validation", "data.num_test")
AUGMENT_LIMITS: dict[str, float] = dict.fromkeys(("crop", "shift", "cutout"), MAX_COUNT)
AUGMENT_LIMITS |= {"randaugment": 100, "corrupt": 1, "noise": 1e6, "fill": 255}
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "eval_every", "save_every", "keep_checkpoints"), (1, MAX_COUNT)),
    "seed": (0, 2**63 - 1),
    **dict.fromkeys(("threads", "data.workers"), (0, 1024)),
    "probe_samples": (0, MAX_COUNT),
    **dict.fromkeys(SPLIT_SIZES, (0, MAX_COUNT)),
    "data.text.length": (1, MAX_COUNT),
    **{
        f"data.{view}.{name}": (0, high)
        for view in ("weak", "strong")
        for name, high in AUGMENT_LIMITS.items()
    },
    **dict.fromkeys(("data.words.paraphrase", "data.words.replace"), (0, 1)),
    **dict.fromkeys(("batch.labeled", "batch.unlabeled", "batch.holdout"), (1, MAX_COUNT)),
    "model.width": (1, MAX_COUNT),
    "model.depth": (1, 2_000),
    **dict.fromkeys(("model.dropout", "model.encoder_dropout"), (0, 0.999)),
    "method.weight": (0, 1e9),
    "method.rampup": (0, MAX_COUNT),
    "method.threshold": (0, 1),
    **dict.fromkeys(("method.temperature", "method.alpha"), (1e-3, 1e3)),
    **dict.fromkeys(("method.epsilon", "method.entropy", "l2i.rho"), (0, 1e6)),
    "method.xi": (1e-12, 1e6),
    "method.annealing_share": (1e-9, 1),
    **dict.fromkeys(("l2i.paper.eta", "l2i.paper.supervised_eta"), (1e-12, 1e12)),
    "l2i.paper.label_lr": (0, 1e12),
    "l2i.paper.inner_steps": (1, 1000),
    "l2i.every": (1, MAX_COUNT),
    "l2i.outer_batch_size": (0, MAX_COUNT),
    "optim.lr": (1e-12, 1e30),
    "optim.weight_decay": (0, 1),
    "optim.warmup": (0, MAX_COUNT),
    "optim.max_grad_norm": (0, 1e30),
    "optim.layer_decay": (1e-3, 1),
    "optim.ema_decay": (0, 0.9999999),
}

NORMALIZED_FIELDS = ("preserve_step_norm",)  # of L2I, for normalized updates only
ENCODER_FIELDS = ("weights", "freeze", "encoder_dropout")  # of a model, for texts only
PACKAGED_PREFIX = "efficientnet-"  # of networks whose weights are in packages
MIN_XI_BF16 = 0.5  # VAT's smallest step that survives the rounding of images to bf16
COUNT_FIELDS = (*SPLIT_SIZES, "method.rampup", "optim.milestones", "optim.warmup")  # or fractions


def validate(run: Run) -> None:
    """Raise an InputError if a field of `run` is out of range or contradicts another field."""
    from_json(to_json(run))  # types and choices, for runs made in Python
    problems = (
        *(_find_field_problems(path, value) for path, value in flatten_fields(run)),
        _find_run_problems(run),
        _find_outer_problems(run),
    )
    first_problem = next(chain.from_iterable(problems), None)
    if first_problem is not None:
        raise InputError(first_problem)


def _find_field_problems(path: str, value: Any) -> Iterator[str]:
    floats = [v for v in (value if isinstance(value, tuple) else [value]) if isinstance(v, float)]
    if not all(map(math.isfinite, floats)):
        yield f"{path}={value} must be a finite number"
    low, high = RANGES.get(path, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        yield f"{path}={value} must be at least {low:g} and at most {high:g}"
    if path in COUNT_FIELDS and any(fraction > 1 for fraction in floats):
        yield f"{path}={value} must be a whole number, or a fraction of at most 1.0"


def _find_run_problems(run: Run) -> Iterator[str]:
    if not run.name or run.out == "":
        yield "name and out must not be empty; omit them for the recipe's defaults"
    if run.out is not None and not run.out.isprintable():
        yield f"out={run.out!r} contains unprintable characters; choose a different --out"
    bf16_problem = find_bf16_problem(run)
    if run.precision == "bf16" and bf16_problem is not None:
        yield bf16_problem
    optim, model = run.optim, run.model
    if any(milestone <= 0 for milestone in optim.milestones):
        yield f"optim.milestones={optim.milestones} must be steps, from 1, or fractions of the run"
    if optim.schedule == "step" and not optim.milestones:
        yield "optim.schedule='step' needs optim.milestones, the steps at which to lower the rate"
    if optim.nesterov and optim.name != "sgd":
        yield "optim.nesterov needs optim.name='sgd'; leave it out"
    is_packaged = model.name.startswith(PACKAGED_PREFIX) and model.weights in (None, PRETRAINED)
    fields = ENCODER_FIELDS[1:] if is_packaged else ENCODER_FIELDS
    for name in _list_changed_fields(model, fields) if model.name != "encoder" else ():
        yield f"model.{name} needs model.name='encoder', not '{model.name}'; leave it out"


def find_bf16_problem(run: Run) -> str | None:
    """Return what bf16 would round away in a run and what to do about it, or None."""
    xi = getattr(run.method, "xi", 1.0)
    if xi < MIN_XI_BF16:
        return f"method.xi={xi} is rounded away in bf16; use at least 1, or precision='float32'"
    return None


def _find_outer_problems(run: Run) -> Iterator[str]:
    l2i, paper = run.l2i, run.l2i.paper
    if l2i.update == "off":
        return
    for name in _list_changed_fields(l2i, NORMALIZED_FIELDS) if l2i.update == "paper" else ():
        yield f"l2i.{name} needs l2i.update='normalized', not 'paper'; leave it out"
    if not run.method.uses_pseudo_labels:
        yield f"{run.method.name} imputes no labels for L2I to learn; use l2i.update='off'"
    yield from _find_rate_problems(l2i)
    set_rate = f"set l2i.paper.{'supervised_eta' if paper.inner_supervised else 'eta'}"
    if paper.eta_schedule == "rate" and paper.inner_rate is None:
        yield f"l2i.paper.eta_schedule='rate' needs an inner learning rate to scale; {set_rate}"
    steps_text = f"l2i.paper.inner_steps={paper.inner_steps}"
    if l2i.hypergradient == "last_layer" and paper.inner_steps != 1:
        yield f"{steps_text} needs l2i.hypergradient='exact'; 'last_layer' takes one step"
    if paper.inner_steps != 1 and paper.inner_rate is None:
        yield f"{steps_text} needs a step size; {set_rate}"
    if l2i.one_forward and not getattr(run.method, "one_forward", False):
        yield "l2i.one_forward needs method.one_forward, whose forward it joins; set both or none"
    if l2i.one_forward and run.method.mixes_targets and paper.inner_supervised:
        problem = "passes no labelled samples that l2i.one_forward could join, only mixed ones"
        yield f"{run.method.name} {problem}; leave out l2i.paper.inner_supervised"
    if l2i.outer_batch_size > run.batch.unlabeled:
        yield (
            f"l2i.outer_batch_size={l2i.outer_batch_size} exceeds "
            f"batch.unlabeled={run.batch.unlabeled}; lower it"
        )


def _find_rate_problems(l2i: L2I) -> Iterator[str]:
    """Yield what is wrong with η, which is different for C^U and for C^T + C^U."""
    paper, eta = l2i.paper, f"l2i.paper.eta={l2i.paper.eta or 0:g} is a rate for C^U alone"
    if not paper.inner_supervised:
        if paper.supervised_eta is not None:
            yield "l2i.paper.supervised_eta needs l2i.paper.inner_supervised; leave it out"
        if l2i.update == "paper" and paper.eta is None:
            fix = "set l2i.paper.eta (0.1·64·classes is the released code's for CIFAR)"
            yield f"l2i.update='paper' needs a look-ahead step size; {fix}"
    elif paper.supervised_eta is None and (l2i.update == "paper" or paper.eta is not None):
        problem = "l2i.paper.inner_supervised adds C^T to the look-ahead, which needs its own rate"
        reason = "the paper gives none" if paper.eta is None else eta
        yield f"{problem}: {reason}; set l2i.paper.supervised_eta, at first to about optim.lr"
    elif l2i.update == "paper" and (paper.supervised_eta or 0) >= (paper.eta or math.inf):
        problem = f"l2i.paper.supervised_eta={paper.supervised_eta:g} is too large for C^T + C^U"
        fix = "lower l2i.paper.supervised_eta, at first to about optim.lr"
        yield f"{problem}: {eta}; {fix}"


def _list_changed_fields(section: Any, names: tuple[str, ...]) -> list[str]:
    default = type(section)()
    return [name for name in names if getattr(section, name) != getattr(default, name)]


def flatten_fields(section: Any, path: str = "") -> list[tuple[str, Any]]:
    """List every field of a dataclass and of those inside it, with its dotted path."""
    flat_fields: list[tuple[str, Any]] = []
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            flat_fields += flatten_fields(value, f"{path}{field.name}.")
        else:
            flat_fields.append((path + field.name, value))
    return flat_fields
