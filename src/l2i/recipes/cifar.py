"""CIFAR-10 and CIFAR-100 with WideResNet-28-2 (section 5, Experiment 2, and its ablations).

Some cells are also trained on budgets of our own, in minutes of one GPU (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from l2i.recipes.table import (
    Cell,
    Settings,
    Table,
    build_run,
    make_l2i_cells,
    make_l2i_config,
    name_cells,
)

if TYPE_CHECKING:
    from l2i.config import Run

STEPS = 2**20
BATCH_SIZE = 64
UNLABELED_RATIO = 7  # times the labelled batch, for FixMatch and UDA
OUTER_BATCH_SIZE = 64  # unlabelled samples of FixMatch's outer step, on a budget of our own

Ablations = Mapping[tuple[str, int], tuple[str, ...]]  # (method, labels) -> names


class CifarSpec(NamedTuple):
    """One of the two data sets."""

    name: str
    num_classes: int
    label_counts: tuple[int, ...]
    lr: float
    optim: Settings


CIFAR10_SPEC = CifarSpec(
    "cifar10",
    10,
    (250, 500, 1000),
    0.002,
    {"name": "adam", "weight_decay": 0.0004},  # at a constant rate
)
CIFAR100_SPEC = CifarSpec(
    "cifar100",
    100,
    (500, 1000, 2000),
    0.03,
    {"name": "sgd", "weight_decay": 0.001, "weight_decay_mode": "l2", "schedule": "cosine"},
)

HOLDOUT_SIZES = {"holdout32": 32, "holdout128": 128}  # of ablations
# λ and its ramp where the paper follows MixMatch's code; its own figures are in the appendix
METHOD_SETTINGS: dict[str, Settings] = {
    "supervised": {},
    "pi-model": {"weight": 10.0, "rampup": 0.4},
    "pseudo-label": {"weight": 1.0, "rampup": 0.4, "threshold": 0.95, "student_view": "weak"},
    "mixup": {"weight": 1.0, "alpha": 0.5},
    # MixMatch's ε = 6 is for inputs in [−1, 1], of half the spread of ours
    "vat": {"weight": 0.3, "rampup": 0.4, "epsilon": 12.0, "entropy": 0.06},
    "mean-teacher": {"weight": 50.0, "rampup": 0.4},
    "mixmatch": {
        "weight": 75.0,
        "rampup": 0.4,
        "temperature": 0.5,
        "alpha": 0.75,
        "one_forward": True,
    },
    "fixmatch": {"weight": 1.0, "threshold": 0.95, "one_forward": True},
    "uda": {"weight": 1.0, "one_forward": True},
}
SOURCES = {
    "steps": "MixMatch and FixMatch: 2^26 samples in batches of 64",
    "data.weak.shift": "MixMatch: 4 pixels, reflected at the edges",
    "data.weak.flip": "MixMatch",
    "data.strong.randaugment": "FixMatch's code: 2 operations, each with probability 1/2",
    "data.strong.cutout": "FixMatch's code: half of the side",
    "batch.unlabeled": "as many as labelled; FixMatch and UDA: 7 times as many",
    "method.weight": "MixMatch's code for its baselines and MixMatch; FixMatch 1",
    "method.rampup": "MixMatch: linear over the first part of the run, 40 % here",
    "method.epsilon": "MixMatch's code: 6 for inputs of half our spread",
    "method.entropy": "MixMatch's code, not ramped up",
    "method.alpha": "MixMatch's code: 0.5 for MixUp; its paper: 0.75 for MixMatch",
    "method.one_forward": "FixMatch's code, for UDA too: one forward for all; "
    "MixMatch's interleaves its batches",
    "method.annealing": "UDA's paper, as its threshold 0.8 and temperature 0.4 are",
    "optim.nesterov": "the paper names none here; FixMatch's code has it",
    "l2i.hypergradient": "the closed form for the distance in use; "
    "the paper's eq. to the letter: bilevel.last_layer_paper",
    "optim.weight_decay_mode": "MixMatch's code: θ ← (1 − wd)θ with Adam; FixMatch's: L2 with SGD",
    "l2i.paper.eta": "the paper gives none; released code: 50·lr (O) and 100·lr (L) "
    "on sums over batch and classes",
}


class Budget(NamedTuple):
    """Fewer steps for the paper's runs, with the same data, network, views and evaluation."""

    shorten: Callable[[Run], Run]
    unlabeled_ratio: int
    """Unlabelled samples per labelled one, for FixMatch."""
    sources: dict[str, str]


def apply_fast_budget(run: Run) -> Run:
    """Train FixMatch in ten minutes of one H200, with its own optimizer at twice its rate."""
    from l2i.config import replace

    run = replace(run, steps=66_560, eval_every=2048, save_every=4096, optim=make_linear_sgd(run))
    return replace(run, l2i={"outer_batch_size": OUTER_BATCH_SIZE, "every": 8})


def apply_short_budget(run: Run) -> Run:
    """Train any method within half an hour of one H200: a 128th of the paper's steps."""
    from l2i.config import replace

    if run.method.name == "fixmatch":
        run = replace(run, optim=make_linear_sgd(run))
        if run.l2i.update != "off":
            run = replace(run, l2i={"outer_batch_size": OUTER_BATCH_SIZE})
    return replace(run, steps=8192, probe_samples=1000, optim={"ema_bn": "recompute"})


def make_linear_sgd(run: Run) -> Settings:
    """Return SGD as in FixMatch's code, at twice its rate, with a linear decay to 0."""
    return {
        "name": "sgd",
        "lr": 0.06,
        "nesterov": True,
        "weight_decay": 0.0005 if run.data.name == "cifar10" else run.optim.weight_decay,
        "weight_decay_mode": "l2",
        "schedule": "linear",
        "warmup": 0.02,
        "ema_decay": 0.999,
    }


BUDGETS = {
    "fast": Budget(
        apply_fast_budget,
        7,
        {
            "steps": "ours: ten minutes of one H200; the paper has 1,048,576",
            "eval_every": "ours",
            "optim.name": "FixMatch's code; the paper has Adam here",
            "optim.lr": "ours: twice FixMatch's, for a sixteenth of its steps; docs/results.md",
            "optim.schedule": "ours",
            "optim.warmup": "ours",
            "optim.weight_decay": "FixMatch's code",
            "optim.weight_decay_mode": "FixMatch's code",
            "optim.nesterov": "FixMatch's code",
            "l2i.outer_batch_size": "ours, for speed",
            "l2i.every": "ours, for speed",
        },
    ),
    "short": Budget(
        apply_short_budget,
        2,
        {
            "steps": "ours: a 128th of the paper's 1,048,576",
            "probe_samples": "ours",
            "optim.name": "the paper's; FixMatch's code for FixMatch, "
            "where the paper has Adam for CIFAR-10",
            "optim.lr": "the paper's; for FixMatch ours, twice its own",
            "optim.schedule": "the paper's; for FixMatch ours",
            "optim.warmup": "ours, for FixMatch",
            "optim.weight_decay": "the paper's; FixMatch's code for FixMatch on CIFAR-10",
            "optim.ema_bn": "ours: at a high rate the model's do not fit its average; "
            "docs/results.md",
            "batch.unlabeled": "as many as labelled; FixMatch twice as many, for speed: "
            "its paper has 7 times as many",
            "l2i.outer_batch_size": "ours, for speed",
            "l2i.paper.eta": "released code: 50·lr on sums over batch and classes, "
            "lr being the paper's, also for FixMatch",
        },
    ),
}


def make_budget_cells(spec: CifarSpec) -> list[Cell]:
    """Return cells of the fewest labels on budgets of our own."""
    fixmatch = Cell("fixmatch", spec.label_counts[0], budget="short")
    pair = [fixmatch, fixmatch._replace(update="normalized")]
    if spec is CIFAR100_SPEC:
        return pair
    teacher, mixmatch = (
        fixmatch._replace(method=method) for method in ("mean-teacher", "mixmatch")
    )
    return [
        *(cell._replace(budget="fast") for cell in pair),
        teacher,
        *(teacher._replace(update="normalized", ablation=name) for name in ("", "exact")),
        teacher._replace(update="paper"),
        mixmatch,
        mixmatch._replace(update="normalized"),
        *pair,
        fixmatch._replace(update="normalized", ablation="learnable"),
        fixmatch._replace(update="paper"),
    ]


def build_cells(spec: CifarSpec, ablations: Ablations) -> list[Cell]:
    """Return every method at every number of labels, with L2I and ablations; SL, UDA are ours."""
    cells: list[Cell] = []
    for method in METHOD_SETTINGS:
        for labels in spec.label_counts:
            cells.append(Cell(method, labels))
            if method in ("mean-teacher", "mixmatch", "fixmatch", "uda"):
                names = ablations.get((method, labels), ())
                cells += make_l2i_cells(method, labels, ablations=names)
    return cells + make_budget_cells(spec)


def make_run(spec: CifarSpec, name: str, cell: Cell) -> Run:
    """Return the paper's protocol for a cell, or its shorter version."""
    budget = BUDGETS.get(cell.budget)
    unlabeled_ratio = outer_ratio = 1
    if cell.method in ("fixmatch", "uda"):
        unlabeled_ratio = UNLABELED_RATIO if budget is None else budget.unlabeled_ratio
        # on a budget of ours the outer step has no more than 64
        outer_ratio = UNLABELED_RATIO if budget is None else 1
    # the released code's step on a sum over batch and classes, written for our means
    eta_scale = 100 if cell.ablation == "learnable" else 50
    eta = eta_scale * spec.lr * outer_ratio * BATCH_SIZE * spec.num_classes
    batch = {"labeled": BATCH_SIZE, "unlabeled": unlabeled_ratio * BATCH_SIZE}
    weak = {"shift": 4, "padding": "reflect", "flip": True}
    run = build_run(
        name,
        cell,
        make_l2i_config(cell, eta),
        METHOD_SETTINGS,
        steps=STEPS,
        eval_every=1024,
        save_every=1024,
        data={
            "name": spec.name,
            "num_validation": 5000,
            "weak": weak,
            "strong": {**weak, "randaugment": 2, "cutout": 16, "fill": 127},
        },
        batch={**batch, "holdout": HOLDOUT_SIZES.get(cell.ablation, BATCH_SIZE)},
        model={"name": "wide-resnet", "depth": 28, "width": 2},
        optim={**spec.optim, "lr": spec.lr, "ema_decay": 0.999},
    )
    return run if budget is None else budget.shorten(run)


def build_table(spec: CifarSpec, ablations: Ablations) -> Table:
    """Return one of the two tables; its first mean-teacher cells are the default."""
    fewest_labels = spec.label_counts[0]
    return Table(
        name=spec.name,
        cells=name_cells(spec.name, build_cells(spec, ablations)),
        make_run=partial(make_run, spec),
        default_cells=(
            f"{spec.name}/mean-teacher-{fewest_labels}",
            f"{spec.name}/mean-teacher-l2i-{fewest_labels}",
        ),
        seeds=3,
        sources=SOURCES,
        budget_sources={name: budget.sources for name, budget in BUDGETS.items()},
    )


CIFAR10 = build_table(
    CIFAR10_SPEC,
    {
        **{("mean-teacher", labels): ("exact",) for labels in CIFAR10_SPEC.label_counts},
        **{("fixmatch", labels): ("learnable",) for labels in CIFAR10_SPEC.label_counts},
    },
)
CIFAR100 = build_table(
    CIFAR100_SPEC,
    {
        **{("mean-teacher", labels): ("exact",) for labels in CIFAR100_SPEC.label_counts},
        **{
            ("fixmatch", labels): ("learnable", "separate") for labels in CIFAR100_SPEC.label_counts
        },
        ("fixmatch", 500): ("learnable", "separate", "holdout32", "holdout128"),
    },
)
