"""Small problems that a CPU trains on in seconds, beside the digits: what docs/study.md looks for settings with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from l2i.methods import METHODS
from l2i.recipes.cells import TABLE_RHO, Cell, Table, control, imputing, named, outer_step
from l2i.registry import load

if TYPE_CHECKING:
    from l2i.config import Run

RATE = 0.002  # of Adam
CONSISTENCY = {"weight": 1.0, "rampup": 1 / 3}  # of regression on tables
ADAM: dict[str, Any] = {"lr": RATE, "weight_decay": 0.00004, "ema_decay": 0.99}

Final = Literal["median", "best"]
Settings = Callable[[], dict[str, Any]]


def fashion() -> dict[str, Any]:
    """50 labelled pieces of clothing, as the digits are trained on."""
    from l2i.data.augment import Augment

    views = {"weak": Augment(shift=2), "strong": Augment(shift=2, noise=0.5, cutout=10)}
    return {
        "steps": 2000,
        "data": {"name": "fashion-mnist", "num_validation": 1000, **views},
        "batch": {"labeled": 50, "unlabeled": 64, "holdout": 50},
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "optim": ADAM,
    }


def table(name: str, *, corrupt: float, final: Final) -> dict[str, Any]:
    """Rows of numbers, as `l2i fit` would train on them; regression stops early, as the paper's does."""
    from l2i.data.augment import Augment

    views = {"weak": Augment(noise=0.1, corrupt=corrupt), "strong": Augment(noise=0.2, corrupt=corrupt + 0.2)}
    return {
        "steps": 1500,
        "eval_every": 50,
        "final": final,
        "data": {"name": name, "num_validation": 0.2, **views},
        "batch": {"labeled": 32, "unlabeled": 64, "holdout": 32},
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "optim": ADAM,
    }


def small_faces() -> dict[str, Any]:
    """Landmarks on 44 pixels a side, in small batches; else as on 60."""
    from l2i.data.augment import Augment

    shifted = Augment(shift=3, padding="reflect")
    return {
        "steps": 500,
        "eval_every": 50,
        "final": "best",
        "data": {"name": "small-faces", "num_validation": 500, "num_test": 1000, "weak": shifted, "strong": shifted},
        "batch": {"labeled": 16, "unlabeled": 16, "holdout": 16},
        "model": {"name": "tcdcn"},
        "optim": {
            "name": "sgd",
            "lr": 0.03,
            "weight_decay": 0.0005,
            "decay": "l2",
            "schedule": "cosine",
            "ema_decay": 0.99,
        },
    }


def make(settings: Settings, methods: dict[str, dict[str, Any]], rho: float | None, name: str, cell: Cell) -> Run:
    """The run of a cell."""
    from l2i.config import Run, replace

    shared = settings()
    method = load("method", METHODS, cell.method)(**methods.get(cell.method, {}))
    run = Run(name=name, threads=1, method=method, l2i=outer_step(cell, eta=10 * RATE, rho=rho))
    return replace(run, **{**shared, "data": {**shared["data"], "num_labeled": cell.labels}})


def small(
    name: str, labels: int, settings: Settings, methods: dict[str, dict[str, Any]], rho: float | None = None
) -> Table:
    """The table of a small problem: each method with and without L2I, and with the control."""
    cells = [Cell("supervised", labels)]
    for method in methods:
        cells += [Cell(method, labels), *imputing(method, labels), control(method, labels)]
    found = named(name, cells)
    return Table(
        name=name,
        cells=found,
        make=partial(make, settings, methods, rho),
        compared=tuple(cell for cell in found if "-paper-" not in cell),
        seeds=5,
    )


FASHION = small("fashion", 50, fashion, {"fixmatch": {}})
TUMOURS = partial(table, "breast-cancer", corrupt=0.1, final="median")
BREAST_CANCER = small("breast-cancer", 20, TUMOURS, {"pseudo-label": {}}, TABLE_RHO)
DIABETES = small("diabetes", 50, partial(table, "diabetes", corrupt=0.3, final="best"), {"mean-teacher": CONSISTENCY})
FRIEDMAN = small("friedman", 60, partial(table, "friedman", corrupt=0.3, final="best"), {"mean-teacher": CONSISTENCY})
LANDMARKS = {"weight": 3.0, "rampup": 0.4}
SMALL_FACES = small("small-faces", 91, small_faces, {"mean-teacher": LANDMARKS, "pseudo-label": LANDMARKS})
