"""CIFAR-10 and CIFAR-100 with WideResNet-28-2 (section 5, Experiment 2, and its ablations)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from l2i.methods import METHODS
from l2i.recipes.budgets import BUDGETS
from l2i.recipes.cells import Cell, Table, imputing, named, outer_step
from l2i.registry import load

if TYPE_CHECKING:
    from l2i.config import Optim, Run

STEPS = 2**20
BATCH = 64
MANY_UNLABELED = 7  # times the labelled batch, for FixMatch and UDA


Ablations = Mapping[tuple[str, int], tuple[str, ...]]  # (method, labels) -> their names


class Set(NamedTuple):
    """One of the two sets."""

    name: str
    classes: int
    labels: tuple[int, ...]
    rate: float


TEN = Set("cifar10", 10, (250, 500, 1000), 0.002)
HUNDRED = Set("cifar100", 100, (500, 1000, 2000), 0.03)

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
    "optim.decay": "MixMatch's code: θ ← (1 − wd)θ with Adam; FixMatch's: L2 with SGD",
    "l2i.eta": "the paper gives none; released code: 50·lr (O) and 100·lr (L) on sums over batch and classes",
}


def on_budgets(which: Set) -> list[Cell]:
    """Cells of the fewest labels on budgets of our own."""
    fixmatch = Cell("fixmatch", which.labels[0], budget="short")
    pair = [fixmatch, fixmatch._replace(update="normalized")]
    if which is HUNDRED:
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


def cells(which: Set, ablations: Ablations) -> list[Cell]:
    """Every method at every number of labels, with L2I under both rules and the ablations; SL and UDA are ours."""
    found: list[Cell] = []
    for method in METHOD_SETTINGS:
        for labels in which.labels:
            found.append(Cell(method, labels))
            if method in ("mean-teacher", "mixmatch", "fixmatch", "uda"):
                found += imputing(method, labels, ablations=ablations.get((method, labels), ()))
    return found + on_budgets(which)


def make(which: Set, name: str, cell: Cell) -> Run:
    """The paper's protocol for a cell."""
    from l2i.config import Data, Run
    from l2i.data.augment import Augment
    from l2i.data.loader import Batches
    from l2i.models.base import Network

    budget = BUDGETS.get(cell.budget)
    many = 1 if cell.method not in ("fixmatch", "uda") else MANY_UNLABELED if budget is None else budget.many
    outer = many if budget is None else 1  # on a budget of ours the outer step has no more than 64
    weak = Augment(shift=4, padding="reflect", flip=True)
    strong = Augment(shift=4, padding="reflect", flip=True, randaugment=2, cutout=16, fill=127)
    # the released code's step on a sum over batch and classes, written for our means
    eta = (100 if cell.ablation == "learnable" else 50) * which.rate * outer * BATCH * which.classes
    held = int(cell.ablation.removeprefix("holdout")) if cell.ablation.startswith("holdout") else BATCH
    run = Run(
        name=name,
        steps=STEPS,
        eval_every=1024,
        save_every=1024,
        data=Data(name=which.name, num_labeled=cell.labels, num_validation=5000, weak=weak, strong=strong),
        batch=Batches(labeled=BATCH, unlabeled=many * BATCH, holdout=held),
        model=Network(name="wide-resnet", depth=28, width=2),
        method=load("method", METHODS, cell.method)(**METHOD_SETTINGS[cell.method]),
        l2i=outer_step(cell, eta),
        optim=optim_of(which),
    )
    return run if budget is None else budget.shorten(run)


def optim_of(which: Set) -> Optim:
    """Adam at a constant rate for CIFAR-10; SGD with FixMatch's cosine for CIFAR-100."""
    from l2i.config import Optim

    if which is TEN:
        return Optim(name="adam", lr=TEN.rate, weight_decay=0.0004, ema_decay=0.999)
    return Optim(
        name="sgd", lr=which.rate, momentum=0.9, weight_decay=0.001, decay="l2", schedule="cosine", ema_decay=0.999
    )


def table(which: Set, ablations: Ablations) -> Table:
    """One of the two tables; by default its first mean-teacher cells are compared."""
    first = which.labels[0]
    return Table(
        name=which.name,
        cells=named(which.name, cells(which, ablations)),
        make=partial(make, which),
        compared=(f"{which.name}/mean-teacher-{first}", f"{which.name}/mean-teacher-l2i-{first}"),
        seeds=3,
        sources=SOURCES,
        own_sources={name: budget.sources for name, budget in BUDGETS.items()},
    )


CIFAR10 = table(
    TEN,
    {
        **{("mean-teacher", labels): ("exact",) for labels in TEN.labels},
        **{("fixmatch", labels): ("learnable",) for labels in TEN.labels},
    },
)
CIFAR100 = table(
    HUNDRED,
    {
        **{("mean-teacher", labels): ("exact",) for labels in HUNDRED.labels},
        **{("fixmatch", labels): ("learnable", "separate") for labels in HUNDRED.labels},
        ("fixmatch", 500): ("learnable", "separate", "holdout32", "holdout128"),
    },
)
