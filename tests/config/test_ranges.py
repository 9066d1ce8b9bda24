"""The ranges of fields, with their ends, and what fields are by default."""

import dataclasses
from typing import Any

import pytest

from l2i import InputError, Run, recipes, replace
from l2i.config import L2I, Optim, PaperUpdate
from l2i.config.validate import find_bf16_problem, flatten_fields, validate
from l2i.data.batch import BatchSizes
from l2i.data.transforms.image import Augment
from l2i.methods.fixmatch import FixMatch
from l2i.methods.mixmatch import MixMatch
from l2i.methods.uda import UDA
from l2i.methods.vat import VAT

# of each field, its first and last allowed value, and values just outside of these
ENDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "steps": (1, 10**9, 0, 10**9 + 1),
    "eval_every": (1, 10**9, 0, 10**9 + 1),
    "save_every": (1, 10**9, 0, 10**9 + 1),
    "keep_checkpoints": (1, 10**9, 0, 10**9 + 1),
    "seed": (0, 2**63 - 1, -1, 2**65),
    "threads": (0, 1024, -1, 1025),
    "probe_samples": (0, 10**9, -1, 10**9 + 1),
    "data.workers": (0, 1024, -1, 1025),
    "data.num_labeled": (0, 10**9, -1, 10**9 + 1),
    "data.num_validation": (0.0, 1.0, -0.1, 1.1),
    "data.num_test": (0.0, 1.0, -0.1, 1.1),
    "batch.labeled": (1, 10**9, 0, 10**9 + 1),
    "batch.unlabeled": (1, 10**9, 0, 10**9 + 1),
    "batch.holdout": (1, 10**9, 0, 10**9 + 1),
    "model.width": (1, 10**9, 0, 10**9 + 1),
    "model.depth": (1, 2000, 0, 2001),
    "model.dropout": (0.0, 0.999, -0.1, 1.0),
    "method.weight": (0.0, 1e9, -1.0, 1.1e9),
    "method.rampup": (0, 10**9, -1, 10**9 + 1),
    "l2i.rho": (0.0, 1e6, -0.1, 1.1e6),
    "l2i.paper.label_lr": (0.0, 1e12, -1.0, 2e12),
    "l2i.every": (1, 10**9, 0, 10**9 + 1),
    "l2i.outer_batch_size": (0, 64, -1, 65),  # of batch.unlabeled
    "optim.lr": (1e-12, 1e30, 0.0, 2e30),
    "optim.weight_decay": (0.0, 1.0, -0.1, 1.1),
    "optim.warmup": (0, 10**9, -1, 10**9 + 1),
    "optim.max_grad_norm": (0.0, 1e30, -1.0, 2e30),
    "optim.layer_decay": (1e-3, 1.0, 1e-4, 1.1),
    "optim.ema_decay": (0.0, 0.9999999, -0.1, 1.0),
}


def with_value(run: Run, path: str, value: Any) -> Run:
    *sections, name = path.split(".")
    changes: dict[str, Any] = {name: value}
    for section in reversed(sections):
        changes = {section: changes}
    return replace(run, **changes)


@pytest.mark.parametrize("path", ENDS)
def test_the_ends_of_a_range_belong_to_it(path: str) -> None:
    low, high, below, above = ENDS[path]
    for inside in (low, high):
        validate(with_value(Run(), path, inside))
    for outside in (below, above):
        with pytest.raises(InputError, match=f"^{path.replace('.', '[.]')}="):
            validate(with_value(Run(), path, outside))


@pytest.mark.parametrize(
    ("method", "name", "ends"),
    [
        (FixMatch, "threshold", (0.0, 1.0, -0.1, 1.1)),
        (UDA, "temperature", (1e-3, 1e3, 1e-4, 1.1e3)),
        (UDA, "annealing_share", (1e-9, 1.0, 0.0, 1.1)),
        (MixMatch, "alpha", (1e-3, 1e3, 1e-4, 1.1e3)),
        (VAT, "epsilon", (0.0, 1e6, -1.0, 2e6)),
        (VAT, "xi", (1e-12, 1e6, 0.0, 2e6)),
        (VAT, "entropy", (0.0, 1e6, -1.0, 2e6)),
    ],
    ids=str,
)
def test_the_ends_of_a_methods_range_belong_to_it(
    method: type, name: str, ends: tuple[float, ...]
) -> None:
    for i, value in enumerate(ends):
        run = replace(Run(), method=method(**{name: value}))
        if i < 2:
            validate(run)
        else:
            with pytest.raises(InputError, match=f"^method[.]{name}="):
                validate(run)


@pytest.mark.parametrize("view", ["weak", "strong"])
@pytest.mark.parametrize(
    ("name", "high", "above"),
    [
        ("crop", 10**9, 10**9 + 1),
        ("shift", 10**9, 10**9 + 1),
        ("cutout", 10**9, 10**9 + 1),
        ("randaugment", 100, 101),
        ("corrupt", 1.0, 1.1),
        ("noise", 1e6, 2e6),
        ("fill", 255.0, 256.0),
    ],
)
def test_views_have_their_ranges(view: str, name: str, high: float, above: float) -> None:
    validate(replace(Run(), data={view: Augment(**{name: high})}))
    for outside in (above, type(above)(-1)):
        with pytest.raises(InputError, match=rf"^data\.{view}\.{name}="):
            validate(replace(Run(), data={view: Augment(**{name: outside})}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_are_finite(value: float) -> None:
    for changes in ({"optim": {"lr": value}}, {"optim": {"milestones": (3, value)}}):
        with pytest.raises(InputError, match="must be a finite number"):
            validate(replace(Run(), **changes))


@pytest.mark.parametrize(("xi", "lost"), [(0.49, True), (0.5, False)])
def test_a_step_below_one_half_is_lost_in_bf16(xi: float, lost: bool) -> None:
    run = replace(Run(), method=VAT(xi=xi), l2i={"update": "off"})
    assert (find_bf16_problem(run) is not None) == lost
    validate(replace(run, precision="float32"))
    if lost:
        with pytest.raises(InputError, match="is rounded away in bf16"):
            validate(replace(run, precision="bf16"))


def test_what_only_an_outer_step_needs_is_not_asked_without_one() -> None:
    wrong = {"paper": {"inner_steps": 3, "eta_schedule": "rate"}, "outer_batch_size": 10**6}
    validate(replace(Run(), l2i={"update": "off", **wrong}))
    with pytest.raises(InputError):
        validate(replace(Run(), l2i=wrong))


def test_defaults_are_those_of_the_documentation() -> None:
    assert dataclasses.astuple(BatchSizes()) == (64, 64, 64)
    optim = dataclasses.asdict(Optim())
    assert (optim["name"], optim["lr"], optim["ema_decay"], optim["ema_bn"]) == (
        "adam",
        0.002,
        0.999,
        "copy",
    )
    assert (optim["weight_decay"], optim["weight_decay_mode"], optim["schedule"]) == (
        0.0,
        "decoupled",
        "constant",
    )
    assert dataclasses.asdict(L2I(paper=PaperUpdate())) == {
        "update": "normalized",
        "rho": 0.3,
        "hypergradient": "last_layer",
        "labels": "output",
        "holdout": "joint",
        "every": 1,
        "outer_batch_size": 0,
        "head": None,
        "one_forward": False,
        "preserve_step_norm": False,
        "ablation": "none",
        "paper": {
            "eta": None,
            "eta_schedule": "constant",
            "label_lr": 1.0,
            "inner_steps": 1,
            "inner_supervised": False,
            "supervised_eta": None,
        },
    }
    run = Run()
    assert (run.steps, run.eval_every, run.save_every, run.keep_checkpoints) == (1500, 100, 500, 2)
    assert (run.seed, run.report, run.precision, run.probe_samples) == (0, "median", "auto", 0)


def test_fields_are_listed_by_their_paths() -> None:
    fields = dict(flatten_fields(recipes.get("digits/fixmatch-l2i-40")))
    assert fields["l2i.paper.eta"] is None and fields["method.threshold"] == 0.95
    assert fields["data.weak.shift"] >= 0 and "data.weak" not in fields
