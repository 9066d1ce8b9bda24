"""The embedded demo: scikit-learn's digits with 40 labels, every method with and without L2I."""

from l2i.methods import METHODS
from l2i.recipes.table import Cell, Settings, Table, make_cells, make_l2i, name_cells

NUM_LABELED = 40
LEARNING_RATE = 0.002
METHOD_SETTINGS: dict[str, Settings] = {  # for a run of 1,500 steps
    "pi-model": {"weight": 10.0, "rampup": 1 / 3},
    "mean-teacher": {"weight": 10.0, "rampup": 1 / 3},
    "mixmatch": {"weight": 10.0, "rampup": 1 / 3},
    "vat": {"epsilon": 1.0},
}


def build_cells() -> list[Cell]:
    """Return every method, and those that impute also with L2I."""
    cells = [Cell("supervised", NUM_LABELED)]
    for method in METHODS:
        if method != "supervised":
            cells += make_cells(method, NUM_LABELED)
    return cells


def make_settings(cell: Cell) -> Settings:
    """Return the settings of a cell."""
    return {
        "steps": 1500,
        "threads": 1,
        "eval_every": 100,
        "save_every": 500,
        "data": {
            "num_validation": 100,
            "weak": {"shift": 1},
            "strong": {"shift": 1, "noise": 0.2, "cutout": 3},
        },
        "batch": {"labeled": 40, "unlabeled": 64, "holdout": 40},
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "method": METHOD_SETTINGS.get(cell.method, {}),
        "l2i": make_l2i(cell, num_classes=10),
        "optim": {
            "name": "adam",
            "lr": LEARNING_RATE,
            "weight_decay": 0.00004,
            "ema_decay": 0.99,
            "ema_bn": "recompute",
        },
    }


TABLE = Table(
    name="digits",
    cells={
        "digits": Cell("fixmatch", NUM_LABELED, "normalized"),
        **name_cells("digits", build_cells()),
    },
    make_settings=make_settings,
    default_cells=("digits/sl-40", "digits/fixmatch-40", "digits/fixmatch-l2i-40"),
    seeds=5,
)
