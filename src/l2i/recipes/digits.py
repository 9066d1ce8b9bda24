"""The embedded demo: scikit-learn's digits with 40 labels, every method with and without L2I."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.methods import METHODS
from l2i.recipes.cells import Cell, Table, control, imputing, named, outer_step
from l2i.registry import load

if TYPE_CHECKING:
    from l2i.config import Run

LABELS = 40
RATE = 0.002
SETTINGS: dict[str, dict[str, Any]] = {  # for a run of 1,500 steps
    "pi-model": {"weight": 10.0, "rampup": 1 / 3},
    "mean-teacher": {"weight": 10.0, "rampup": 1 / 3},
    "mixmatch": {"weight": 10.0, "rampup": 1 / 3},
    "vat": {"epsilon": 1.0},
}


def cells() -> list[Cell]:
    """Every method, and with L2I all those that impute."""
    found = [Cell("supervised", LABELS)]
    for method in METHODS:
        if method != "supervised":
            found += [Cell(method, LABELS), *imputing(method, LABELS), control(method, LABELS)]
    return found


def make(name: str, cell: Cell) -> Run:
    """The run of a cell."""
    from l2i.config import Data, Optim, Run
    from l2i.data.augment import Augment
    from l2i.data.loader import Batches
    from l2i.models.base import Network

    return Run(
        name=name,
        steps=1500,
        threads=1,
        eval_every=100,
        save_every=500,
        data=Data(
            num_labeled=LABELS, num_validation=100, weak=Augment(shift=1), strong=Augment(shift=1, noise=0.2, cutout=3)
        ),
        batch=Batches(labeled=40, unlabeled=64, holdout=40),
        model=Network(name="mlp", width=128, depth=2),
        method=load("method", METHODS, cell.method)(**SETTINGS.get(cell.method, {})),
        # the released code's step, 50·lr on a sum over batch and classes, in our means
        l2i=outer_step(cell, eta=50 * RATE * 64 * 10),
        optim=Optim(name="adam", lr=RATE, weight_decay=0.00004, ema_decay=0.99),
    )


TABLE = Table(
    name="digits",
    cells={"digits": Cell("fixmatch", LABELS, "normalized"), **named("digits", cells())},
    make=make,
    compared=(f"digits/sl-{LABELS}", f"digits/fixmatch-{LABELS}", f"digits/fixmatch-l2i-{LABELS}"),
    seeds=5,
)
