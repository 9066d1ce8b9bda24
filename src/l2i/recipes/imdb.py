"""IMDb's reviews from 20 labels: BERT with UDA (section 5, Experiment 4)."""

from l2i.recipes.table import Cell, Settings, Table, make_cells, make_l2i, name_cells

NUM_LABELED = 20
LEARNING_RATE = 2e-5
UNLABELED_BATCH_SIZE = 24
NUM_CLASSES = 2
METHOD_SETTINGS: dict[str, Settings] = {
    "uda": {"weight": 1.0, "threshold": 0.0, "temperature": 1.0, "annealing": "linear"},
    "fixmatch": {"weight": 1.0, "threshold": 0.95},
    "mean-teacher": {"weight": 10.0, "rampup": 0.4, "student_view": "strong"},
}
SOURCES = {
    "data.num_validation": "UDA's code sets none aside",
    "data.text.keep_side": "UDA's code keeps the end of long reviews",
    "data.words.paraphrase": "UDA: use a back-translation if there is one",
    "data.words.replace": "UDA's paper: TF-IDF replacement otherwise",
    "model.dropout": "UDA's code: before the head, as within BERT",
    "method.weight": "UDA's code; ours for mean teacher",
    "method.threshold": "UDA's code for BERT base uses no mask; FixMatch uses its value for images",
    "method.temperature": "UDA's code for BERT base does not sharpen; 0.85 for BERT large",
    "method.annealing": "UDA's code",
    "optim.schedule": "BERT's code: linear to 0, after the warm-up",
    "optim.max_grad_norm": "BERT's code",
    "optim.weight_decay": "the paper names Adam; BERT's code also decays the weights by 0.01·lr",
    "optim.ema_decay": "UDA evaluates the model itself, without averaging",
    "l2i.paper.eta": "the paper gives none; released code for CIFAR: "
    "0.1 on a sum over 64 samples and all classes, on C^U alone",
}


def build_cells() -> list[Cell]:
    """Return the paper's three cells, two more methods and controls; with L2I by both rules."""
    cells = [Cell("supervised", NUM_LABELED)]
    for method in METHOD_SETTINGS:
        ablations = ("exact",) if method == "uda" else ()
        cells += make_cells(method, NUM_LABELED, ablations=ablations)
    return cells


def make_settings(cell: Cell) -> Settings:
    """Return the paper's protocol for a cell."""
    return {
        "steps": 10_000,
        "eval_every": 500,
        "save_every": 2500,
        "data": {
            "name": "imdb",
            "num_validation": 0,
            "text": {"length": 128},
            "words": {"paraphrase": 1.0, "replace": 0.3},
        },
        "batch": {"labeled": 8, "unlabeled": UNLABELED_BATCH_SIZE, "holdout": 8},
        "model": {"name": "encoder", "weights": "bert-base-uncased", "dropout": 0.1},
        "method": METHOD_SETTINGS.get(cell.method, {}),
        "l2i": make_l2i(cell, num_classes=NUM_CLASSES),
        "optim": {
            "lr": LEARNING_RATE,
            "schedule": "linear",
            "warmup": 0.1,
            "max_grad_norm": 1.0,
            "ema_decay": 0.999 if cell.method == "mean-teacher" else 0.0,
        },
    }


TABLE = Table(
    name="imdb",
    cells=name_cells("imdb", build_cells()),
    make_settings=make_settings,
    default_cells=("imdb/sl-20", "imdb/uda-20", "imdb/uda-l2i-20"),
    seeds=3,
    sources=SOURCES,
)
