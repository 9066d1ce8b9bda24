"""CIFAR-10 and CIFAR-100 with WideResNet-28-2 (section 5, Experiment 2, and its ablations).

Some cells are also trained on budgets of our own, in minutes of one GPU (benchmarks/).
"""

from functools import partial
from typing import NamedTuple

from l2i.recipes.table import Cell, Settings, Table, make_cells, make_l2i, name_cells

BATCH_SIZE = 64
UNLABELED_RATIO = 7  # times the labelled batch, for FixMatch and UDA


class CifarSpec(NamedTuple):
    """One of the two datasets."""

    name: str
    num_classes: int
    label_counts: tuple[int, ...]
    lr: float
    optim: Settings


ADAM = {"name": "adam", "weight_decay": 0.0004}  # at a constant rate
SGD = {"name": "sgd", "weight_decay": 0.001, "weight_decay_mode": "l2", "schedule": "cosine"}
CIFAR10_SPEC = CifarSpec("cifar10", 10, (250, 500, 1000), 0.002, ADAM)
CIFAR100_SPEC = CifarSpec("cifar100", 100, (500, 1000, 2000), 0.03, SGD)

HOLDOUT_SIZES = {"holdout32": 32, "holdout128": 128}  # of ablations
# λ and its ramp where the paper follows MixMatch's code; its own values are in the appendix
METHOD_SETTINGS: dict[str, Settings] = {
    "supervised": {},
    "pi-model": {"weight": 10.0, "rampup": 0.4},
    "pseudo-label": {"weight": 1.0, "rampup": 0.4, "threshold": 0.95, "student_view": "weak"},
    "mixup": {"weight": 1.0, "alpha": 0.5},
    # MixMatch's ε = 6 is for inputs in [−1, 1], with half our standard deviation
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
    "data.strong.cutout": "FixMatch's code: half the side",
    "batch.unlabeled": "as many as labelled; FixMatch and UDA: 7 times as many",
    "method.weight": "MixMatch's code for its baselines and MixMatch; 1 for FixMatch",
    "method.rampup": "MixMatch: linear over the first part of the run, 40 % here",
    "method.epsilon": "MixMatch's code: 6 for inputs with half our standard deviation",
    "method.entropy": "MixMatch's code, without ramp-up",
    "method.alpha": "MixMatch's code: 0.5 for MixUp; its paper: 0.75 for MixMatch",
    "method.one_forward": "FixMatch's code: one forward for all, also for UDA; "
    "MixMatch's code interleaves its batches",
    "method.annealing": "UDA's paper, like its threshold 0.8 and temperature 0.4",
    "optim.nesterov": "not specified in the paper; used in FixMatch's code",
    "l2i.hypergradient": "closed form for the distance in use; "
    "the paper's equation, verbatim, is bilevel.last_layer_paper",
    "optim.weight_decay_mode": "MixMatch's code: θ ← (1 − wd)θ with Adam; FixMatch's: L2 with SGD",
    "l2i.paper.eta": "the paper gives none; released code: 50·lr (O) and 100·lr (L) "
    "on sums over batch and classes",
}


class Budget(NamedTuple):
    """The paper's steps, or fewer with the same data, network, views and evaluation."""

    settings: Settings
    unlabeled_ratio: int
    """Unlabelled samples per labelled one, for FixMatch and UDA."""
    sources: dict[str, str]


BUDGETS = {
    "": Budget({"steps": 2**20, "eval_every": 1024, "save_every": 1024}, UNLABELED_RATIO, {}),
    "fast": Budget(  # FixMatch in ten minutes on one H200
        {"steps": 66_560, "eval_every": 2048, "save_every": 4096},
        UNLABELED_RATIO,
        {
            "steps": "ours: ten minutes on one H200; 1,048,576 in the paper",
            "optim.name": "FixMatch's code; the paper uses Adam here",
            "optim.lr": "ours: twice FixMatch's, for 1/16 of its steps; benchmarks/",
            **dict.fromkeys(("eval_every", "optim.schedule", "optim.warmup"), "ours"),
            **dict.fromkeys(("optim.weight_decay", "optim.weight_decay_mode"), "FixMatch's code"),
            "optim.nesterov": "FixMatch's code",
            **dict.fromkeys(("l2i.outer_batch_size", "l2i.every"), "ours, for speed"),
        },
    ),
    "short": Budget(  # any method within half an hour on one H200: 1/128 of the paper's steps
        {"steps": 8192, "eval_every": 1024, "save_every": 1024, "probe_samples": 1000},
        2,
        {
            "steps": "ours: 1/128 of the paper's 1,048,576",
            "probe_samples": "ours",
            "optim.name": "the paper's; FixMatch's code for FixMatch, "
            "where the paper uses Adam for CIFAR-10",
            "optim.lr": "the paper's; for FixMatch twice its own (ours)",
            "optim.schedule": "the paper's; ours for FixMatch",
            "optim.warmup": "ours, for FixMatch only",
            "optim.weight_decay": "the paper's; FixMatch's code for FixMatch on CIFAR-10",
            "optim.ema_bn": "ours: at a high learning rate, the model's statistics do not fit "
            "the averaged weights; benchmarks/",
            "batch.unlabeled": "as many as labelled; for FixMatch twice as many, for speed "
            "(7 times as many in its paper)",
            "l2i.outer_batch_size": "ours, for speed",
            "l2i.paper.eta": "released code: 50·lr on sums over batch and classes, "
            "with the paper's lr, also for FixMatch",
        },
    ),
}


def _make_budget_cells(spec: CifarSpec) -> list[Cell]:
    """Return cells of the fewest labels on budgets of our own."""
    fixmatch = Cell("fixmatch", spec.label_counts[0], budget="short")
    pair = [fixmatch, fixmatch._replace(update="normalized")]
    if spec is CIFAR100_SPEC:
        return pair
    teacher = fixmatch._replace(method="mean-teacher")
    mixmatch = fixmatch._replace(method="mixmatch")
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


def build_cells(spec: CifarSpec) -> list[Cell]:
    """Return every method at every number of labels, with L2I and ablations; SL, UDA are ours."""
    cells: list[Cell] = []
    for method in METHOD_SETTINGS:
        for labels in spec.label_counts:
            if method in ("mean-teacher", "mixmatch", "fixmatch", "uda"):
                cells += make_cells(method, labels, ablations=_list_ablations(spec, method, labels))
            else:
                cells.append(Cell(method, labels))
    return cells + _make_budget_cells(spec)


def _list_ablations(spec: CifarSpec, method: str, labels: int) -> tuple[str, ...]:
    """Return the ablations of a method with L2I."""
    if method != "fixmatch":
        return ("exact",) if method == "mean-teacher" else ()
    if spec is CIFAR10_SPEC:
        return ("learnable",)
    return ("learnable", "separate", *(HOLDOUT_SIZES if labels == 500 else ()))


def make_settings(spec: CifarSpec, cell: Cell) -> Settings:
    """Return the paper's protocol for a cell, or its shorter version."""
    budget = BUDGETS[cell.budget]
    unlabeled_ratio = outer_ratio = 1
    if cell.method in ("fixmatch", "uda"):
        unlabeled_ratio = budget.unlabeled_ratio
        # on a budget of ours the outer step has no more than 64
        outer_ratio = 1 if cell.budget else UNLABELED_RATIO
    # the released code's step on a sum over batch and classes, written for our means
    eta_scale = 100 if cell.ablation == "learnable" else 50
    eta = eta_scale * spec.lr * outer_ratio * BATCH_SIZE * spec.num_classes
    batch = {"labeled": BATCH_SIZE, "unlabeled": unlabeled_ratio * BATCH_SIZE}
    weak = {"shift": 4, "padding": "reflect", "flip": True}
    return {
        **budget.settings,
        "data": {
            "name": spec.name,
            "num_validation": 5000,
            "weak": weak,
            "strong": {**weak, "randaugment": 2, "cutout": 16, "fill": 127},
        },
        "batch": {**batch, "holdout": HOLDOUT_SIZES.get(cell.ablation, BATCH_SIZE)},
        "model": {"name": "wide-resnet", "depth": 28, "width": 2},
        "method": METHOD_SETTINGS[cell.method],
        "l2i": {**make_l2i(cell, eta=eta), **_make_outer_settings(cell)},
        "optim": _make_optim(spec, cell),
    }


def _make_outer_settings(cell: Cell) -> Settings:
    """Return what speeds up FixMatch's outer step on a budget of our own."""
    if cell.budget == "fast":
        return {"outer_batch_size": 64, "every": 8}
    is_outer = cell.budget == "short" and cell.method == "fixmatch" and cell.update != "off"
    return {"outer_batch_size": 64} if is_outer else {}


def _make_optim(spec: CifarSpec, cell: Cell) -> Settings:
    """Return the paper's optimizer, or FixMatch's own on a budget of ours.

    That is SGD as in FixMatch's code, at twice its rate, with a linear decay to 0.
    """
    optim = {**spec.optim, "lr": spec.lr, "ema_decay": 0.999}
    if cell.budget and cell.method == "fixmatch":
        optim |= {
            "name": "sgd",
            "lr": 0.06,
            "nesterov": True,
            "weight_decay_mode": "l2",
            "schedule": "linear",
            "warmup": 0.02,
        }
        if spec is CIFAR10_SPEC:
            optim["weight_decay"] = 0.0005
    return {**optim, "ema_bn": "recompute"} if cell.budget == "short" else optim


def _build_table(spec: CifarSpec) -> Table:
    """Return one of the two tables; its first mean-teacher cells are the default."""
    return Table(
        name=spec.name,
        cells=name_cells(spec.name, build_cells(spec)),
        make_settings=partial(make_settings, spec),
        default_cells=tuple(
            f"{spec.name}/{method}-{spec.label_counts[0]}"
            for method in ("mean-teacher", "mean-teacher-l2i")
        ),
        seeds=3,
        sources=SOURCES,
        budget_sources={name: budget.sources for name, budget in BUDGETS.items()},
    )


CIFAR10, CIFAR100 = _build_table(CIFAR10_SPEC), _build_table(CIFAR100_SPEC)
