"""Small problems that a CPU trains in seconds, beside the digits (benchmarks/ablation_cpu)."""

from l2i.recipes.table import TABULAR_RHO, Cell, Settings, Table, make_cells, make_l2i, name_cells

LEARNING_RATE = 0.002  # of Adam
CONSISTENCY_SETTINGS = {"weight": 1.0, "rampup": 1 / 3}  # of regression on tables
LANDMARK_SETTINGS = {"weight": 3.0, "rampup": 0.4}
MLP_SETTINGS: Settings = {
    "model": {"name": "mlp", "width": 128, "depth": 2},
    "optim": {
        "lr": LEARNING_RATE,
        "weight_decay": 0.00004,
        "ema_decay": 0.99,
        "ema_bn": "recompute",
    },
}
FASHION_SETTINGS: Settings = {  # as for the digits
    **MLP_SETTINGS,
    "steps": 2000,
    "data": {
        "name": "fashion-mnist",
        "num_validation": 1000,
        "weak": {"shift": 2},
        "strong": {"shift": 2, "noise": 0.5, "cutout": 10},
    },
    "batch": {"labeled": 50, "unlabeled": 64, "holdout": 50},
}
FACE_VIEW = {"shift": 3, "padding": "reflect"}
SMALL_FACES_SETTINGS: Settings = {  # landmarks on 44 pixels a side, in small batches
    "steps": 500,
    "eval_every": 50,
    "report": "best",
    "data": {
        "name": "small-faces",
        "num_validation": 500,
        "num_test": 1000,
        "weak": FACE_VIEW,
        "strong": FACE_VIEW,
    },
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


def _make_tabular_settings(name: str, *, corrupt: float, report: str) -> Settings:
    """Return settings for tables as in `l2i fit`; regression stops early, as in the paper."""
    return {
        **MLP_SETTINGS,
        "steps": 1500,
        "eval_every": 50,
        "report": report,
        "data": {
            "name": name,
            "num_validation": 0.2,
            "weak": {"noise": 0.1, "corrupt": corrupt},
            "strong": {"noise": 0.2, "corrupt": corrupt + 0.2},
        },
        "batch": {"labeled": 32, "unlabeled": 64, "holdout": 32},
    }


def _build_small_table(
    name: str,
    num_labeled: int,
    settings: Settings,
    methods: dict[str, Settings],
    *,
    eta: float | None = None,
    num_classes: int = 0,
    eta_schedule: str = "constant",
    l2i: Settings | None = None,
) -> Table:
    """Return a table with each method without L2I, with it as `l2i` says, and with the controls.

    `eta` of the paper's rule is that of the released code for classes unless it is given.
    """
    cells = [Cell("supervised", num_labeled)]
    for method in methods:
        cells += make_cells(method, num_labeled)
    cells_by_name = name_cells(name, cells)

    def make_settings(cell: Cell) -> Settings:
        method = methods.get(cell.method, {})
        outer = make_l2i(cell, num_classes=num_classes, eta=eta, eta_schedule=eta_schedule)
        return {**settings, "threads": 1, "method": method, "l2i": {**outer, **(l2i or {})}}

    return Table(
        name=name,
        cells=cells_by_name,
        make_settings=make_settings,
        default_cells=tuple(
            name
            for name, cell in cells_by_name.items()
            if cell.update != "paper" and cell.ablation in ("", "direct")
        ),
        seeds=5,
    )


FASHION = _build_small_table("fashion", 50, FASHION_SETTINGS, {"fixmatch": {}}, num_classes=10)
BREAST_CANCER = _build_small_table(
    "breast-cancer",
    20,
    _make_tabular_settings("breast-cancer", corrupt=0.1, report="median"),
    {"pseudo-label": {}},
    num_classes=2,
    l2i={"rho": TABULAR_RHO},
)
DIABETES, FRIEDMAN = (
    _build_small_table(
        name,
        num_labeled,
        _make_tabular_settings(name, corrupt=0.3, report="best"),
        {"mean-teacher": CONSISTENCY_SETTINGS},
        eta=10 * LEARNING_RATE,  # the released code's for landmarks
    )
    for name, num_labeled in (("diabetes", 50), ("friedman", 60))
)
SMALL_FACES = _build_small_table(
    "small-faces",
    91,
    SMALL_FACES_SETTINGS,
    {"mean-teacher": LANDMARK_SETTINGS, "pseudo-label": LANDMARK_SETTINGS},
    eta=10 * 0.03,  # the released code's, 10 times the current rate
    eta_schedule="rate",
)
