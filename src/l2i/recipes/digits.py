"""The embedded demo: scikit-learn's digits with 40 labels, every method with and without L2I."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from l2i.methods import METHODS

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.methods.base import Method

LABELS = 40


class Cell(NamedTuple):
    """A method, and how L2I is applied to it."""

    method: str
    outer_update: Literal["off", "normalized", "paper"]


CELLS: dict[str, Cell] = {"digits": Cell("fixmatch", "normalized"), f"digits/sl-{LABELS}": Cell("supervised", "off")}
for _method in METHODS:
    if _method != "supervised":
        CELLS[f"digits/{_method}-{LABELS}"] = Cell(_method, "off")
        CELLS[f"digits/{_method}-l2i-{LABELS}"] = Cell(_method, "normalized")
        CELLS[f"digits/{_method}-l2i-paper-{LABELS}"] = Cell(_method, "paper")

SUPERVISED, BASELINE, IMPUTED = f"digits/sl-{LABELS}", f"digits/fixmatch-{LABELS}", f"digits/fixmatch-l2i-{LABELS}"
COMPARED = (SUPERVISED, BASELINE, IMPUTED)
SEEDS = 5


def run(name: str) -> Run:
    """The run of a cell."""
    from l2i.config import L2I, Data, Optim, Run
    from l2i.data.augment import Augment
    from l2i.data.loader import Batches
    from l2i.models.base import Network

    cell = CELLS[name]
    return Run(
        name=name,
        steps=1500,
        threads=1,
        eval_every=100,
        save_every=500,
        data=Data(
            num_labeled=LABELS, num_validation=100, weak=Augment(shift=1), strong=Augment(shift=1, noise=0.2, cutout=3)
        ),
        batch=Batches(labeled=40, unlabeled=64, holdout=40),
        model=Network(name="mlp", width=128, depth=2),
        method=method(cell.method),
        l2i=L2I(
            outer_update=cell.outer_update,
            # the released code's step, 50·lr on a sum over batch and classes, would be 50·0.002·64·10 in our means
            eta=64.0 if cell.outer_update == "paper" else None,
            inner_supervised=cell.outer_update == "paper",
        ),
        optim=Optim(name="adam", lr=0.002, weight_decay=0.00004, ema_decay=0.99),
    )


def method(name: str) -> Method:
    """The method with settings for a run of 1,500 steps."""
    from l2i.registry import load

    settings = {
        "pi-model": {"weight": 10.0, "rampup": 500},
        "mean-teacher": {"weight": 10.0, "rampup": 500},
        "mixmatch": {"weight": 10.0, "rampup": 500},
    }
    made: Method = load("method", METHODS, name)(**settings.get(name, {}))
    return made
