"""Five landmarks of AFLW faces from 91, 182, 455 or all labels (section 5, Experiment 1, and its ablations)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.methods import METHODS
from l2i.recipes.cells import Cell, Table, control, imputing, named, outer_step
from l2i.registry import load

if TYPE_CHECKING:
    from l2i.config import Run

RATE = 0.03
LABELS = (91, 182, 455)
SOURCES = {
    "data.weak.shift": "released code: up to 4 pixels, reflected at the edges",
    "batch.labeled": "released code",
    "batch.unlabeled": "released code",
    "batch.holdout": "released code",
    "model.name": "TCDCN, in the sizes of the released code",
    "optim.ema_decay": "released code; it is what is evaluated",
    "l2i.eta": "the paper gives none; released code: 10·lr for O, 1·lr for L; for K > 1 ours",
    "l2i.eta_schedule": "released code: the rate as it is at the step",
    "l2i.hypergradient": "the closed form for the distance in use; the paper's eq. to the letter: last_layer_paper",
    "final": "early stopping on the validation set, as the paper says; the released code also prints the mean of 20",
}


def cells() -> list[Cell]:
    """The table with the control (ours), then its ablations: exact, L, and K inner steps (ours)."""
    found = [Cell("supervised", labels) for labels in LABELS]
    for method in ("pseudo-label", "mean-teacher"):
        for labels in LABELS:
            found += [Cell(method, labels), *imputing(method, labels), control(method, labels)]
    for labels in LABELS:
        found += imputing("mean-teacher", labels, ablations=("exact", "learnable"))[2:]
    more = imputing("mean-teacher", 91, ablations=("k1", "k2", "k3"))[2:]
    # the paper's rule with K = 1 is its exact cell above
    return found + [cell for cell in more if (cell.update, cell.ablation) != ("paper", "k1")]


def make(name: str, cell: Cell) -> Run:
    """The paper's protocol for a cell."""
    from l2i.config import Data, Optim, Run
    from l2i.data.augment import Augment
    from l2i.data.loader import Batches
    from l2i.models.base import Network

    settings: dict[str, Any] = {} if cell.method == "supervised" else {"weight": 3.0, "rampup": 9000 / 22500}
    eta = (1 if cell.ablation == "learnable" else 10) * RATE
    shifted = Augment(shift=4, padding="reflect")
    return Run(
        name=name,
        steps=22_500,
        eval_every=250,
        save_every=500,
        final="best",
        probe=0 if cell.update == "off" else 500,
        data=Data(name="landmarks", num_labeled=cell.labels, num_validation=0.1, weak=shifted, strong=shifted),
        batch=Batches(labeled=128, unlabeled=128, holdout=128),
        model=Network(name="tcdcn"),
        method=load("method", METHODS, cell.method)(**settings),
        l2i=outer_step(cell, eta, eta_schedule="rate"),
        optim=Optim(
            name="sgd",
            lr=RATE,
            momentum=0.9,
            weight_decay=0.0005,
            decay="l2",
            schedule="step",
            milestones=(15_000 / 22_500,),
            ema_decay=0.999,
        ),
    )


def mean_face(root: str | None) -> dict[str, float]:
    """The error of predicting, for every test face, the mean of each landmark over all training faces."""
    from l2i.data.split import DataSet
    from l2i.tasks import Regression
    from l2i.training.build import read_set

    data = read_set("landmarks", root)
    assert isinstance(data, DataSet)
    task = Regression.standardized(data.train.y.double(), points=True, eyes=data.eyes)
    everywhere = task.encode(task.mean.expand(len(data.test.y), -1))
    return {"aflw/mean-face": float(task.figure(everywhere, data.test.y.double()))}


TABLE = Table(
    name="aflw",
    cells={**named("aflw", cells()), "aflw/sl-all": Cell("supervised", 1.0)},
    make=make,
    compared=("aflw/sl-91", "aflw/mean-teacher-91", "aflw/mean-teacher-l2i-91"),
    seeds=3,
    reference=mean_face,
    sources=SOURCES,
)
