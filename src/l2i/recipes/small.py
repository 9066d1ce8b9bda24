"""Small problems that a CPU trains on in seconds, beside the digits: what docs/study.md looks for settings with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from l2i.methods import METHODS
from l2i.recipes.table import TABULAR_RHO, Cell, Table, make_control_cell, make_l2i_cells, make_l2i_config, name_cells
from l2i.registry import load_registered

if TYPE_CHECKING:
    from l2i.config import Run

LEARNING_RATE = 0.002  # of Adam
CONSISTENCY_SETTINGS = {"weight": 1.0, "rampup": 1 / 3}  # of regression on tables
ADAM_SETTINGS: dict[str, Any] = {"lr": LEARNING_RATE, "weight_decay": 0.00004, "ema_decay": 0.99}

TabularReportMode = Literal["median", "best"]
SettingsFactory = Callable[[], dict[str, Any]]


def make_fashion_settings() -> dict[str, Any]:
    """50 labelled pieces of clothing, as the digits are trained on."""
    from l2i.data.transforms.image import Augment

    views = {"weak": Augment(shift=2), "strong": Augment(shift=2, noise=0.5, cutout=10)}
    return {
        "steps": 2000,
        "data": {"name": "fashion-mnist", "num_validation": 1000, **views},
        "batch": {"labeled": 50, "unlabeled": 64, "holdout": 50},
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "optim": ADAM_SETTINGS,
    }


def make_tabular_settings(name: str, *, corrupt: float, report: TabularReportMode) -> dict[str, Any]:
    """Rows of numbers, as `l2i fit` would train on them; regression stops early, as the paper's does."""
    from l2i.data.transforms.image import Augment

    views = {"weak": Augment(noise=0.1, corrupt=corrupt), "strong": Augment(noise=0.2, corrupt=corrupt + 0.2)}
    return {
        "steps": 1500,
        "eval_every": 50,
        "report": report,
        "data": {"name": name, "num_validation": 0.2, **views},
        "batch": {"labeled": 32, "unlabeled": 64, "holdout": 32},
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "optim": ADAM_SETTINGS,
    }


def make_small_faces_settings() -> dict[str, Any]:
    """Landmarks on 44 pixels a side, in small batches; else as on 60."""
    from l2i.data.transforms.image import Augment

    shift_augment = Augment(shift=3, padding="reflect")
    return {
        "steps": 500,
        "eval_every": 50,
        "report": "best",
        "data": {"name": "small-faces", "num_validation": 500, "num_test": 1000, "weak": shift_augment, "strong": shift_augment},
        "batch": {"labeled": 16, "unlabeled": 16, "holdout": 16},
        "model": {"name": "tcdcn"},
        "optim": {
            "name": "sgd",
            "lr": 0.03,
            "weight_decay": 0.0005,
            "weight_decay_mode": "l2",
            "schedule": "cosine",
            "ema_decay": 0.99,
        },
    }


def make_run(make_settings: SettingsFactory, methods: dict[str, dict[str, Any]], rho: float | None, name: str, cell: Cell) -> Run:
    """The run of a cell."""
    from l2i.config import Run, replace

    base_settings = make_settings()
    method = load_registered("method", METHODS, cell.method)(**methods.get(cell.method, {}))
    run = Run(name=name, threads=1, method=method, l2i=make_l2i_config(cell, eta=10 * LEARNING_RATE, rho=rho))
    return replace(run, **{**base_settings, "data": {**base_settings["data"], "num_labeled": cell.num_labeled}})


def build_small_table(
    name: str, num_labeled: int, make_settings: SettingsFactory, methods: dict[str, dict[str, Any]], rho: float | None = None
) -> Table:
    """The table of a small problem: each method with and without L2I, and with the control."""
    cell_list = [Cell("supervised", num_labeled)]
    for method in methods:
        cell_list += [Cell(method, num_labeled), *make_l2i_cells(method, num_labeled), make_control_cell(method, num_labeled)]
    cells_by_name = name_cells(name, cell_list)
    return Table(
        name=name,
        cells=cells_by_name,
        make_run=partial(make_run, make_settings, methods, rho),
        default_cells=tuple(cell for cell in cells_by_name if "-paper-" not in cell),
        seeds=5,
    )


FASHION = build_small_table("fashion", 50, make_fashion_settings, {"fixmatch": {}})
BREAST_CANCER_SETTINGS = partial(make_tabular_settings, "breast-cancer", corrupt=0.1, report="median")
BREAST_CANCER = build_small_table("breast-cancer", 20, BREAST_CANCER_SETTINGS, {"pseudo-label": {}}, TABULAR_RHO)
DIABETES = build_small_table("diabetes", 50, partial(make_tabular_settings, "diabetes", corrupt=0.3, report="best"), {"mean-teacher": CONSISTENCY_SETTINGS})
FRIEDMAN = build_small_table("friedman", 60, partial(make_tabular_settings, "friedman", corrupt=0.3, report="best"), {"mean-teacher": CONSISTENCY_SETTINGS})
LANDMARK_SETTINGS = {"weight": 3.0, "rampup": 0.4}
SMALL_FACES = build_small_table("small-faces", 91, make_small_faces_settings, {"mean-teacher": LANDMARK_SETTINGS, "pseudo-label": LANDMARK_SETTINGS})
