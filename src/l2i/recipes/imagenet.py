"""ImageNet at 72 pixels with 5 % of the labels, or all of them (section 5, Experiment 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.methods import METHODS
from l2i.recipes.cells import MARKS, Cell, Table, imputing, outer_step
from l2i.registry import load

if TYPE_CHECKING:
    from l2i.config import Run

RATE = 0.1
EPOCHS = 120
CLASSES = 1000
SHARE = 0.05  # of each class is labelled
IMAGES = 1_281_167  # training images
BATCH = 256
UNLABELED = {"mixmatch": 256, "fixmatch": 768}
SETTINGS: dict[str, dict[str, Any]] = {
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


def steps(cell: Cell) -> int:
    """120 epochs."""
    labeled = round(cell.labels * IMAGES)
    seen, batch = (labeled, BATCH) if cell.method == "supervised" else (IMAGES - labeled, UNLABELED[cell.method])
    return EPOCHS * -(-seen // batch)


def make(name: str, cell: Cell) -> Run:
    """The paper's protocol for a cell."""
    from l2i.config import Data, Optim, Run
    from l2i.data.augment import Augment
    from l2i.data.loader import Batches
    from l2i.models.base import Network

    unlabeled = UNLABELED.get(cell.method, BATCH)
    weak = Augment(crop=64, flip=True)
    strong = Augment(crop=64, flip=True, randaugment=2, cutout=32, fill=127)
    return Run(
        name=name,
        steps=steps(cell),
        eval_every=5000,
        save_every=1000,
        data=Data(name="imagenet", num_labeled=cell.labels, num_validation=0, weak=weak, strong=strong, workers=8),
        batch=Batches(labeled=BATCH, unlabeled=unlabeled, holdout=BATCH),
        model=Network(name="resnet", depth=26, width=1),
        method=load("method", METHODS, cell.method)(**SETTINGS[cell.method]),
        l2i=outer_step(cell, eta=50 * RATE * unlabeled * CLASSES),
        optim=Optim(
            name="sgd",
            lr=RATE,
            momentum=0.9,
            nesterov=True,
            weight_decay=0.0001,
            decay="l2",
            schedule="step",
            milestones=(30 / 120, 60 / 120, 90 / 120),
            ema_decay=0.999,
        ),
    )


CELLS = (
    Cell("supervised", SHARE),
    Cell("mixmatch", SHARE),
    Cell("fixmatch", SHARE),
    *imputing("fixmatch", SHARE),
)
TABLE = Table(
    name="imagenet",
    cells={
        **{f"imagenet/{cell.short}{MARKS[cell.update]}": cell for cell in CELLS},
        "imagenet/sl-all": Cell("supervised", 1.0),
    },
    make=make,
    compared=("imagenet/sl", "imagenet/fixmatch", "imagenet/fixmatch-l2i"),
    seeds=1,
    sources=SOURCES,
)
