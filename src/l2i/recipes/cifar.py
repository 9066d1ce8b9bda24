"""Table 2's cells on budgets of our own: what minutes of one GPU come to (docs/results.md).

MERGED:
CIFAR-10 and CIFAR-100 with WideResNet-28-2 (section 5, Experiment 2, and its ablations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from l2i.methods import METHODS
from l2i.recipes.table import Cell, Table, make_l2i_cells, make_l2i_config, name_cells
from l2i.registry import load_registered

if TYPE_CHECKING:
    from l2i.config import Optim, Run

OUTER_BATCH_SIZE = 64  # unlabelled samples of FixMatch's outer step


class Budget(NamedTuple):
    """Fewer steps for runs of the paper's protocol; data, network, views and what is evaluated stay."""

    shorten: Callable[[Run], Run]
    unlabeled_ratio: int
    """Unlabelled samples a labelled one, for FixMatch."""
    sources: dict[str, str]


def apply_fast_budget(run: Run) -> Run:
    """FixMatch in ten minutes of one H200, with FixMatch's own optimizer at twice its rate."""
    from l2i.config import replace

    outer_settings = {"outer_batch_size": OUTER_BATCH_SIZE, "every": 8}
    return replace(run, steps=66_560, eval_every=2048, save_every=4096, l2i=outer_settings, optim=make_linear_sgd(run))


def apply_short_budget(run: Run) -> Run:
    """Every method within half an hour of one H200: a 128th of the paper's steps, and what depends on them scaled."""
    from l2i.config import replace

    if run.method.name == "fixmatch":
        outer_settings = {} if run.l2i.update == "off" else {"outer_batch_size": OUTER_BATCH_SIZE}
        run = replace(run, optim=make_linear_sgd(run), l2i=outer_settings)
    return replace(run, steps=8192, probe_samples=1000, optim={"ema_bn": "recompute"})


def make_linear_sgd(run: Run) -> Optim:
    """SGD as in FixMatch's code, at twice its rate, which falls linearly to 0."""
    from l2i.config import Optim

    return Optim(
        name="sgd",
        lr=0.06,
        nesterov=True,
        weight_decay=0.0005 if run.data.name == "cifar10" else run.optim.weight_decay,
        weight_decay_mode="l2",
        schedule="linear",
        warmup=0.02,
        ema_decay=0.999,
    )


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
            "optim.name": "the paper's; FixMatch's code for FixMatch, where the paper has Adam for CIFAR-10",
            "optim.lr": "the paper's; for FixMatch ours, twice its own",
            "optim.schedule": "the paper's; for FixMatch ours",
            "optim.warmup": "ours, for FixMatch",
            "optim.weight_decay": "the paper's; FixMatch's code for FixMatch on CIFAR-10",
            "optim.ema_bn": "ours: at a high rate the model's do not fit its average; docs/results.md",
            "batch.unlabeled": "as many as labelled; FixMatch twice as many, for speed: its paper has 7 times as many",
            "l2i.outer_batch_size": "ours, for speed",
            "l2i.eta": "released code: 50·lr on sums over batch and classes, lr being the paper's, also for FixMatch",
        },
    ),
}


STEPS = 2**20
BATCH_SIZE = 64
UNLABELED_RATIO = 7  # times the labelled batch, for FixMatch and UDA

Ablations = Mapping[tuple[str, int], tuple[str, ...]]  # (method, labels) -> their names


class CifarSpec(NamedTuple):
    """One of the two sets."""

    name: str
    num_classes: int
    label_counts: tuple[int, ...]
    lr: float


CIFAR10_SPEC = CifarSpec("cifar10", 10, (250, 500, 1000), 0.002)
CIFAR100_SPEC = CifarSpec("cifar100", 100, (500, 1000, 2000), 0.03)

# λ and its ramp where the paper follows MixMatch's code; its own figures are in the appendix
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "pi-model": {"weight": 10.0, "rampup": 0.4},
    "pseudo-label": {"weight": 1.0, "rampup": 0.4, "threshold": 0.95, "student_view": "weak"},
    "mixup": {"weight": 1.0, "alpha": 0.5},
    # MixMatch's ε = 6 is for inputs in [−1, 1], of half the spread of ours
    "vat": {"weight": 0.3, "rampup": 0.4, "epsilon": 12.0, "entropy": 0.06},
    "mean-teacher": {"weight": 50.0, "rampup": 0.4},
    "mixmatch": {"weight": 75.0, "rampup": 0.4, "temperature": 0.5, "alpha": 0.75, "one_forward": True},
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
    "method.one_forward": "FixMatch's code, for UDA too: one forward for all; MixMatch's interleaves its batches",
    "method.annealing": "UDA's paper, as its threshold 0.8 and temperature 0.4 are",
    "optim.nesterov": "the paper names none here; FixMatch's code has it",
    "l2i.hypergradient": "the closed form for the distance in use; the paper's eq. to the letter: last_layer_paper",
    "optim.weight_decay_mode": "MixMatch's code: θ ← (1 − wd)θ with Adam; FixMatch's: L2 with SGD",
    "l2i.eta": "the paper gives none; released code: 50·lr (O) and 100·lr (L) on sums over batch and classes",
}


def make_budget_cells(spec: CifarSpec) -> list[Cell]:
    """Cells of the fewest labels on budgets of our own."""
    fixmatch = Cell("fixmatch", spec.label_counts[0], budget="short")
    pair = [fixmatch, fixmatch._replace(update="normalized")]
    if spec is CIFAR100_SPEC:
        return pair
    teacher, mixmatch = (fixmatch._replace(method=method) for method in ("mean-teacher", "mixmatch"))
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
    """Every method at every number of labels, with L2I under both rules and the ablations; SL and UDA are ours."""
    cell_list: list[Cell] = []
    for method in METHOD_SETTINGS:
        for labels in spec.label_counts:
            cell_list.append(Cell(method, labels))
            if method in ("mean-teacher", "mixmatch", "fixmatch", "uda"):
                cell_list += make_l2i_cells(method, labels, ablations=ablations.get((method, labels), ()))
    return cell_list + make_budget_cells(spec)


def make_run(spec: CifarSpec, name: str, cell: Cell) -> Run:
    """The paper's protocol for a cell."""
    from l2i.config import Data, Run
    from l2i.data.transforms.image import Augment
    from l2i.models.base import ModelConfig
    from l2i.training.loader import BatchSizes

    budget = BUDGETS.get(cell.budget)
    unlabeled_ratio = 1 if cell.method not in ("fixmatch", "uda") else UNLABELED_RATIO if budget is None else budget.unlabeled_ratio
    outer_ratio = unlabeled_ratio if budget is None else 1  # on a budget of ours the outer step has no more than 64
    weak = Augment(shift=4, padding="reflect", flip=True)
    strong = Augment(shift=4, padding="reflect", flip=True, randaugment=2, cutout=16, fill=127)
    # the released code's step on a sum over batch and classes, written for our means
    eta = (100 if cell.ablation == "learnable" else 50) * spec.lr * outer_ratio * BATCH_SIZE * spec.num_classes
    holdout_size = int(cell.ablation.removeprefix("holdout")) if cell.ablation.startswith("holdout") else BATCH_SIZE
    run = Run(
        name=name,
        steps=STEPS,
        eval_every=1024,
        save_every=1024,
        data=Data(name=spec.name, num_labeled=cell.num_labeled, num_validation=5000, weak=weak, strong=strong),
        batch=BatchSizes(labeled=BATCH_SIZE, unlabeled=unlabeled_ratio * BATCH_SIZE, holdout=holdout_size),
        model=ModelConfig(name="wide-resnet", depth=28, width=2),
        method=load_registered("method", METHODS, cell.method)(**METHOD_SETTINGS[cell.method]),
        l2i=make_l2i_config(cell, eta),
        optim=make_optim(spec),
    )
    return run if budget is None else budget.shorten(run)


def make_optim(spec: CifarSpec) -> Optim:
    """Adam at a constant rate for CIFAR-10; SGD with FixMatch's cosine for CIFAR-100."""
    from l2i.config import Optim

    if spec is CIFAR10_SPEC:
        return Optim(name="adam", lr=CIFAR10_SPEC.lr, weight_decay=0.0004, ema_decay=0.999)
    return Optim(
        name="sgd", lr=spec.lr, momentum=0.9, weight_decay=0.001, weight_decay_mode="l2", schedule="cosine", ema_decay=0.999
    )


def build_table(spec: CifarSpec, ablations: Ablations) -> Table:
    """One of the two tables; by default its first mean-teacher cells are compared."""
    fewest_labels = spec.label_counts[0]
    return Table(
        name=spec.name,
        cells=name_cells(spec.name, build_cells(spec, ablations)),
        make_run=partial(make_run, spec),
        default_cells=(f"{spec.name}/mean-teacher-{fewest_labels}", f"{spec.name}/mean-teacher-l2i-{fewest_labels}"),
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
        **{("fixmatch", labels): ("learnable", "separate") for labels in CIFAR100_SPEC.label_counts},
        ("fixmatch", 500): ("learnable", "separate", "holdout32", "holdout128"),
    },
)
