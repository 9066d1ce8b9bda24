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


ADAM = {"name": "adam", "weight_decay": 0.00004}  # at a constant rate
MEAN_TEACHER_DECAY = 0.0004  # with Adam
SGD = {"name": "sgd", "weight_decay": 0.001, "weight_decay_mode": "l2", "schedule": "cosine"}
CIFAR10_SPEC = CifarSpec("cifar10", 10, (250, 500, 1000), 0.002, ADAM)
CIFAR100_SPEC = CifarSpec("cifar100", 100, (500, 1000, 2000), 0.03, SGD)

HOLDOUT_SIZES = {"holdout32": 32, "holdout128": 128}  # of ablations
# λ and its ramp where the paper follows MixMatch's code; its own values are in the appendix
METHOD_SETTINGS: dict[str, Settings] = {
    "supervised": {},
    "pi-model": {"weight": 20.0, "rampup": 0.4},
    "pseudo-label": {"weight": 1.0, "rampup": 0.4, "threshold": 0.95, "student_view": "weak"},
    "mixup": {"weight": 1.0, "alpha": 0.75},
    # MixMatch's ε = 6 is for inputs in [−1, 1], with half our standard deviation
    "vat": {"weight": 0.3, "rampup": 0.4, "epsilon": 12.0, "entropy": 0.06},
    "mean-teacher": {"weight": 50.0, "rampup": 0.4, "one_forward": True},
    "mixmatch": {
        "weight": 75.0,
        "rampup": 1 / 64,
        "temperature": 0.5,
        "alpha": 0.75,
        "one_forward": True,
    },
    "fixmatch": {"weight": 1.0, "threshold": 0.95, "one_forward": True},
    "uda": {"weight": 1.0, "annealing": "none", "one_forward": True},
}
SOURCES = {
    "steps": "MixMatch and FixMatch: 2^26 samples in batches of 64",
    "data.weak.shift": "MixMatch: 4 pixels, reflected at the edges",
    "data.weak.flip": "MixMatch",
    "data.strong.randaugment": "FixMatch's code: 2 operations, each with probability 1/2; "
    "their ranges are its paper's",
    "data.strong.cutout": "FixMatch's code: half the side",
    "batch.unlabeled": "as many as labelled; FixMatch and UDA: 7 times as many",
    "method.weight": "MixMatch's scripts for CIFAR-10, for its baselines and MixMatch; "
    "1 for FixMatch and UDA, as in their papers",
    "method.rampup": "MixMatch's code: linear over the first 40 % of the run for its baselines, "
    "over 1/64 for MixMatch; none in FixMatch's",
    "method.epsilon": "MixMatch's code: 6 for inputs with half our standard deviation",
    "method.entropy": "MixMatch's code, without ramp-up",
    "method.alpha": "MixMatch's scripts for CIFAR-10, also for CIFAR-100",
    "method.one_forward": "FixMatch's code, also for UDA; the released code for mean teacher and "
    "MixMatch's for MixMatch interleave batches; for the others MixMatch's has separate forwards",
    "method.annealing": "UDA's script for CIFAR has none; threshold and temperature are its "
    "paper's",
    "optim.nesterov": "not specified in the paper; used in FixMatch's code",
    "l2i.hypergradient": "on the last layer, the closed form for the distance in use (the "
    "paper's equation, verbatim, is bilevel.last_layer_paper); exact, as in the released code",
    "optim.weight_decay": "CIFAR-10: 0.0004 for mean teacher, as in MixMatch's script for it and "
    "in the paper's text; 0.00004 for the others, as in MixMatch's scripts for its baselines and "
    "in the released code. CIFAR-100: the paper",
    "optim.weight_decay_mode": "θ ← (1 − wd)θ with Adam, of all parameters as in the released "
    "code, MixMatch's: kernels only; FixMatch's: L2 with SGD",
    "optim.ema_bn": "as in MixMatch's code before it reports: while the rate is high, copied "
    "statistics do not fit the averaged weights",
    "l2i.paper.eta": "the paper gives none; released code: 0.1 (O) and 0.2 (L) on a sum over "
    "64 samples and all classes, on C^U alone",
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
            "optim.weight_decay": "CIFAR-10: FixMatch's code for FixMatch, MixMatch's scripts for "
            "mean teacher (0.0004) and MixMatch (0.00004). CIFAR-100: the paper",
            "batch.unlabeled": "as many as labelled; for FixMatch twice as many, for speed "
            "(7 times as many in its paper)",
            "l2i.outer_batch_size": "ours, for speed",
        },
    ),
}


def _make_budget_cells(spec: CifarSpec) -> list[Cell]:
    """Return cells of the fewest labels on budgets of our own."""
    labels = spec.label_counts[0]
    if spec is CIFAR100_SPEC:
        return make_cells("fixmatch", labels, budget="short")
    short = [
        cell
        for method in ("mean-teacher", "mixmatch", "fixmatch")
        for cell in make_cells(
            method, labels, ablations=_list_ablations(spec, method, labels), budget="short"
        )
    ]
    return [*make_cells("fixmatch", labels, budget="fast"), *short]


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
        return ("exact", "exact-shuffled") if method == "mean-teacher" else ()
    if spec is CIFAR10_SPEC:
        return ("learnable",)
    return ("learnable", "separate", *(HOLDOUT_SIZES if labels == 500 else ()))


def make_settings(spec: CifarSpec, cell: Cell) -> Settings:
    """Return the paper's protocol for a cell, or its shorter version."""
    budget = BUDGETS[cell.budget]
    unlabeled_ratio = budget.unlabeled_ratio if cell.method in ("fixmatch", "uda") else 1
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
        "l2i": {**make_l2i(cell, num_classes=spec.num_classes), **_make_outer_settings(cell)},
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
    optim = {**spec.optim, "lr": spec.lr, "ema_decay": 0.999, "ema_bn": "recompute"}
    if cell.method == "mean-teacher" and spec is CIFAR10_SPEC:
        optim["weight_decay"] = MEAN_TEACHER_DECAY
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
    return optim


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
