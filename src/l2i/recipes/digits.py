"""The embedded demo: scikit-learn's digits with 40 labels, every method with and without L2I."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.methods import METHODS
from l2i.recipes.table import Cell, Table, make_control_cell, make_l2i_cells, make_l2i_config, name_cells
from l2i.registry import load_registered

if TYPE_CHECKING:
    from l2i.config import Run

NUM_LABELED = 40
LEARNING_RATE = 0.002
METHOD_SETTINGS: dict[str, dict[str, Any]] = {  # for a run of 1,500 steps
    "pi-model": {"weight": 10.0, "rampup": 1 / 3},
    "mean-teacher": {"weight": 10.0, "rampup": 1 / 3},
    "mixmatch": {"weight": 10.0, "rampup": 1 / 3},
    "vat": {"epsilon": 1.0},
}


def build_cells() -> list[Cell]:
    """Every method, and with L2I all those that impute."""
    cell_list = [Cell("supervised", NUM_LABELED)]
    for method in METHODS:
        if method != "supervised":
            cell_list += [Cell(method, NUM_LABELED), *make_l2i_cells(method, NUM_LABELED), make_control_cell(method, NUM_LABELED)]
    return cell_list


def make_run(name: str, cell: Cell) -> Run:
    """The run of a cell."""
    from l2i.config import Data, Optim, Run
    from l2i.data.transforms.image import Augment
    from l2i.models.base import ModelConfig
    from l2i.training.loader import BatchSizes

    return Run(
        name=name,
        steps=1500,
        threads=1,
        eval_every=100,
        save_every=500,
        data=Data(
            num_labeled=NUM_LABELED, num_validation=100, weak=Augment(shift=1), strong=Augment(shift=1, noise=0.2, cutout=3)
        ),
        batch=BatchSizes(labeled=40, unlabeled=64, holdout=40),
        model=ModelConfig(name="mlp", width=128, depth=2),
        method=load_registered("method", METHODS, cell.method)(**METHOD_SETTINGS.get(cell.method, {})),
        # the released code's step, 50·lr on a sum over batch and classes, in our means
        l2i=make_l2i_config(cell, eta=50 * LEARNING_RATE * 64 * 10),
        optim=Optim(name="adam", lr=LEARNING_RATE, weight_decay=0.00004, ema_decay=0.99),
    )


TABLE = Table(
    name="digits",
    cells={"digits": Cell("fixmatch", NUM_LABELED, "normalized"), **name_cells("digits", build_cells())},
    make_run=make_run,
    default_cells=(f"digits/sl-{NUM_LABELED}", f"digits/fixmatch-{NUM_LABELED}", f"digits/fixmatch-l2i-{NUM_LABELED}"),
    seeds=5,
)
