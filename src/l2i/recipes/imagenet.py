"""ImageNet at 72 pixels with 5 % of the labels, or all of them (section 5, Experiment 3)."""

from l2i.recipes.table import UPDATE_SUFFIXES, Cell, Settings, Table, make_cells, make_l2i

LEARNING_RATE = 0.1
EPOCHS = 120
NUM_CLASSES = 1000
LABELED_FRACTION = 0.05  # of each class
NUM_TRAIN_IMAGES = 1_281_167
BATCH_SIZE = 256
UNLABELED_BATCH_SIZES = {"mixmatch": 256, "fixmatch": 768}
METHOD_SETTINGS: dict[str, Settings] = {
    "mixmatch": {
        "weight": 100.0,
        "rampup": 1 / 64,
        "temperature": 0.5,
        "alpha": 0.75,
        "one_forward": True,
    },
    "fixmatch": {"weight": 10.0, "threshold": 0.95, "one_forward": True},
}
SOURCES = {
    "steps": "120 epochs of the unlabelled images, or of the labelled ones for SL: "
    "the paper does not say which",
    "data.num_validation": "the paper sets none aside here",
    "data.weak.crop": "Rebuffi et al.: crops of 64 from 72 pixels",
    "data.strong.randaugment": "FixMatch's code: 2 operations, each with probability 1/2; "
    "their ranges are its paper's for CIFAR",
    "data.strong.cutout": "FixMatch's code for CIFAR: half the side",
    "batch.holdout": "as many as labelled, as in the paper's other experiments",
    "method.rampup": "MixMatch's code: linear over the first 1/64 of the run for MixMatch; none in "
    "FixMatch's",
    **dict.fromkeys(("method.temperature", "method.alpha"), "MixMatch's, as for CIFAR"),
    "method.threshold": "FixMatch's, as for CIFAR",
    "method.one_forward": "FixMatch's code; MixMatch's code interleaves its batches",
    "optim.ema_decay": "as for CIFAR; the averaged model is evaluated",
    "optim.ema_bn": "as in MixMatch's code before it reports: while the rate is high, copied "
    "statistics do not fit the average",
    "l2i.paper.eta": "the paper gives none; released code for CIFAR: "
    "0.1 on a sum over 64 samples and all classes, on C^U alone",
}


def _compute_num_steps(cell: Cell) -> int:
    """Return the number of steps of 120 epochs."""
    num_samples, batch_size = round(cell.num_labeled * NUM_TRAIN_IMAGES), BATCH_SIZE
    if cell.method != "supervised":
        num_samples = NUM_TRAIN_IMAGES - num_samples
        batch_size = UNLABELED_BATCH_SIZES[cell.method]
    return EPOCHS * -(-num_samples // batch_size)


def make_settings(cell: Cell) -> Settings:
    """Return the paper's protocol for a cell."""
    unlabeled = UNLABELED_BATCH_SIZES.get(cell.method, BATCH_SIZE)
    weak = {"crop": 64, "flip": True}
    return {
        "steps": _compute_num_steps(cell),
        "eval_every": 5000,
        "save_every": 1000,
        "data": {
            "name": "imagenet",
            "num_validation": 0,
            "weak": weak,
            "strong": {**weak, "randaugment": 2, "cutout": 32, "fill": 127},
            "workers": 8,
        },
        "batch": {"labeled": BATCH_SIZE, "unlabeled": unlabeled, "holdout": BATCH_SIZE},
        "model": {"name": "resnet", "depth": 26, "width": 1},
        "method": METHOD_SETTINGS.get(cell.method, {}),
        "l2i": make_l2i(cell, num_classes=NUM_CLASSES),
        "optim": {
            "name": "sgd",
            "lr": LEARNING_RATE,
            "nesterov": True,
            "weight_decay": 0.0001,
            "weight_decay_mode": "l2",
            "schedule": "step",
            "milestones": (30 / 120, 60 / 120, 90 / 120),
            "ema_decay": 0.999,
            "ema_bn": "recompute",
        },
    }


CELLS = (
    Cell("supervised", LABELED_FRACTION),
    Cell("mixmatch", LABELED_FRACTION),
    *make_cells("fixmatch", LABELED_FRACTION),
)


def _name_cell(cell: Cell) -> str:
    """Return a cell's name, without its number of labels: there is one."""
    name = f"imagenet/{cell.method_slug}{UPDATE_SUFFIXES[cell.update]}"
    return f"{name}-{cell.ablation}" if cell.ablation else name


TABLE = Table(
    name="imagenet",
    cells={
        **{_name_cell(cell): cell for cell in CELLS},
        "imagenet/sl-all": Cell("supervised", 1.0),
    },
    make_settings=make_settings,
    default_cells=("imagenet/sl", "imagenet/fixmatch", "imagenet/fixmatch-l2i"),
    seeds=1,
    sources=SOURCES,
)
