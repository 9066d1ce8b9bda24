"""ImageNet at 72 pixels with 5 % of the labels, or all of them (section 5, Experiment 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.methods import METHODS
from l2i.recipes.table import UPDATE_SUFFIXES, Cell, Table, make_l2i_cells, make_l2i_config
from l2i.registry import load_registered

if TYPE_CHECKING:
    from l2i.config import Run

LEARNING_RATE = 0.1
EPOCHS = 120
NUM_CLASSES = 1000
LABELED_FRACTION = 0.05  # of each class is labelled
NUM_TRAIN_IMAGES = 1_281_167  # training images
BATCH_SIZE = 256
UNLABELED_BATCH_SIZES = {"mixmatch": 256, "fixmatch": 768}
METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "mixmatch": {"weight": 100.0, "rampup": 0.4, "temperature": 0.5, "alpha": 0.75},
    "fixmatch": {"weight": 10.0, "threshold": 0.95, "one_forward": True},
}
SOURCES = {
    "steps": "120 epochs of the unlabelled images, or of the labelled ones for SL: the paper does not say whose",
    "data.num_validation": "the paper sets none aside here",
    "data.weak.crop": "Rebuffi et al.: windows of 64 of the 72 pixels",
    "data.strong.randaugment": "FixMatch's code: 2 operations, each with probability 1/2",
    "data.strong.cutout": "FixMatch's code for CIFAR: half of the side",
    "batch.holdout": "as many as labelled, as in the paper's other experiments",
    "method.rampup": "as for CIFAR",
    "method.temperature": "MixMatch's, as for CIFAR",
    "method.alpha": "MixMatch's, as for CIFAR",
    "method.threshold": "FixMatch's, as for CIFAR",
    "method.one_forward": "FixMatch's code",
    "optim.ema_decay": "as for CIFAR; it is what is evaluated",
    "l2i.eta": "the paper gives none; the released code's rule for CIFAR: 50·lr on a sum over batch and classes",
}


def compute_num_steps(cell: Cell) -> int:
    """120 epochs."""
    num_labeled = round(cell.num_labeled * NUM_TRAIN_IMAGES)
    num_samples, batch_size = (num_labeled, BATCH_SIZE) if cell.method == "supervised" else (NUM_TRAIN_IMAGES - num_labeled, UNLABELED_BATCH_SIZES[cell.method])
    return EPOCHS * -(-num_samples // batch_size)


def make_run(name: str, cell: Cell) -> Run:
    """The paper's protocol for a cell."""
    from l2i.config import Data, Optim, Run
    from l2i.data.transforms.image import Augment
    from l2i.models.base import ModelConfig
    from l2i.training.loader import BatchSizes

    unlabeled = UNLABELED_BATCH_SIZES.get(cell.method, BATCH_SIZE)
    weak = Augment(crop=64, flip=True)
    strong = Augment(crop=64, flip=True, randaugment=2, cutout=32, fill=127)
    return Run(
        name=name,
        steps=compute_num_steps(cell),
        eval_every=5000,
        save_every=1000,
        data=Data(name="imagenet", num_labeled=cell.num_labeled, num_validation=0, weak=weak, strong=strong, workers=8),
        batch=BatchSizes(labeled=BATCH_SIZE, unlabeled=unlabeled, holdout=BATCH_SIZE),
        model=ModelConfig(name="resnet", depth=26, width=1),
        method=load_registered("method", METHODS, cell.method)(**METHOD_SETTINGS[cell.method]),
        l2i=make_l2i_config(cell, eta=50 * LEARNING_RATE * unlabeled * NUM_CLASSES),
        optim=Optim(
            name="sgd",
            lr=LEARNING_RATE,
            momentum=0.9,
            nesterov=True,
            weight_decay=0.0001,
            weight_decay_mode="l2",
            schedule="step",
            milestones=(30 / 120, 60 / 120, 90 / 120),
            ema_decay=0.999,
        ),
    )


CELLS = (
    Cell("supervised", LABELED_FRACTION),
    Cell("mixmatch", LABELED_FRACTION),
    Cell("fixmatch", LABELED_FRACTION),
    *make_l2i_cells("fixmatch", LABELED_FRACTION),
)
TABLE = Table(
    name="imagenet",
    cells={
        **{f"imagenet/{cell.method_slug}{UPDATE_SUFFIXES[cell.update]}": cell for cell in CELLS},
        "imagenet/sl-all": Cell("supervised", 1.0),
    },
    make_run=make_run,
    default_cells=("imagenet/sl", "imagenet/fixmatch", "imagenet/fixmatch-l2i"),
    seeds=1,
    sources=SOURCES,
)
