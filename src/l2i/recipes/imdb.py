"""IMDb's reviews from 20 labels: BERT with UDA (section 5, Experiment 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.methods import METHODS
from l2i.recipes.cells import Cell, Table, imputing, named, outer_step
from l2i.registry import load

if TYPE_CHECKING:
    from l2i.config import Run

LABELS = 20
RATE = 2e-5
UNLABELED = 24
CLASSES = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "uda": {"weight": 1.0, "threshold": 0.0, "temperature": 1.0, "annealing": "linear"},
    "fixmatch": {"weight": 1.0, "threshold": 0.95},
    "mean-teacher": {"weight": 10.0, "rampup": 0.4, "student_view": "strong"},
}
SOURCES = {
    "data.num_validation": "UDA's code sets none aside",
    "data.text.keep": "UDA's code: of a long review, the end",
    "data.strong.words.paraphrase": "UDA: a back-translation, where there is one",
    "data.strong.words.replace": "UDA's paper: where there is none, TF-IDF replacement",
    "model.dropout": "UDA's code, before the head as within BERT",
    "method.weight": "UDA's code; mean teacher's is ours",
    "method.threshold": "UDA's code for BERT base has no mask; FixMatch's is that for images",
    "method.temperature": "UDA's code for BERT base does not sharpen; 0.85 for BERT large",
    "method.annealing": "UDA's code",
    "optim.schedule": "BERT's code: linear to 0, after the warm-up",
    "optim.clip": "BERT's code",
    "optim.weight_decay": "the paper names Adam; BERT's code takes 0.01 times the rate off the weights besides",
    "optim.ema_decay": "UDA evaluates the model as it is",
    "l2i.eta": "the paper gives none; released code for CIFAR: 50·lr on a sum over batch and classes",
}


def cells() -> list[Cell]:
    """The paper's three, and two more methods; each with L2I by both rules."""
    found = [Cell("supervised", LABELS)]
    for method in ("uda", "fixmatch", "mean-teacher"):
        found += [Cell(method, LABELS), *imputing(method, LABELS, ablations=("exact",) if method == "uda" else ())]
    return found


def make(name: str, cell: Cell) -> Run:
    """The paper's protocol for a cell."""
    from l2i.config import Data, Optim, Run
    from l2i.data.augment import Augment
    from l2i.data.loader import Batches
    from l2i.data.tokenized import Text
    from l2i.data.words import Words
    from l2i.models.base import Network

    strong = Augment(words=Words(paraphrase=1.0, replace=0.3))
    teaches = cell.method == "mean-teacher"
    return Run(
        name=name,
        steps=10_000,
        eval_every=500,
        save_every=2500,
        data=Data(name="imdb", num_labeled=LABELS, num_validation=0, text=Text(length=128), strong=strong),
        batch=Batches(labeled=8, unlabeled=UNLABELED, holdout=8),
        model=Network(name="encoder", weights="bert-base-uncased", dropout=0.1),
        method=load("method", METHODS, cell.method)(**SETTINGS[cell.method]),
        l2i=outer_step(cell, eta=50 * RATE * UNLABELED * CLASSES),
        optim=Optim(lr=RATE, schedule="linear", warmup=0.1, clip=1.0, ema_decay=0.999 if teaches else 0.0),
    )


TABLE = Table(
    name="imdb",
    cells=named("imdb", cells()),
    make=make,
    compared=(f"imdb/sl-{LABELS}", f"imdb/uda-{LABELS}", f"imdb/uda-l2i-{LABELS}"),
    seeds=3,
    sources=SOURCES,
)
