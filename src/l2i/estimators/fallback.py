"""Whether the unlabelled rows help on this very data: cross-validation over the labelled rows."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.config import Run, replace
from l2i.data.split import Splits
from l2i.estimators.folds import folds_of
from l2i.own.choose import paced
from l2i.own.select import selected
from l2i.training.trainer import Trainer

FOLDS = 3
FEWEST = 20  # labelled rows, under which folds tell nothing
STEPS = 500  # of a fold's runs, at most


def helps(run: Run, splits: Splits) -> tuple[bool, dict[str, float]]:
    """Whether to keep the run as it is, or to train on the labels alone; and the mean errors that decide.

    Errors are wrong classes, or squared errors of standardised targets. The labels alone are taken where they do better
    by more than a standard error.
    """
    shorter = paced(run, min(run.steps, STEPS))
    alone = replace(shorter, method="supervised", l2i={"outer_update": "off"})
    errors = {name: _errors(each, splits) for name, each in (("supervised", alone), ("l2i", shorter))}
    means = {"labels alone": float(errors["supervised"].mean()), "with unlabelled rows": float(errors["l2i"].mean())}
    return selected(errors) == "l2i", means


def _errors(run: Run, splits: Splits) -> NDArray[np.float64]:
    """Each labelled row's error, by a network that has not seen its label."""
    y = splits.labeled.y.numpy()
    found = np.zeros(len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer labels than folds
        folds = list(folds_of(y, FOLDS, shuffle=True, random_state=run.seed).split(y, y))
    for train, test in folds:
        found[test] = _fold(run, splits, torch.as_tensor(train), torch.as_tensor(test))
    return found


def _fold(run: Run, splits: Splits, train: torch.Tensor, test: torch.Tensor) -> NDArray[np.float64]:
    fitted, held = splits.labeled.take(train), splits.labeled.take(test)
    trainer = Trainer(run, splits=splits.with_labels(fitted, validation=held))
    try:
        for t in range(run.steps):
            trainer.step(t)
        task, samples = trainer.task, trainer.splits.validation
        outputs = trainer.predict(samples)
        if splits.classes is not None:
            return (outputs.argmax(dim=1) != samples.y).double().cpu().numpy()
        return task.losses(outputs, task.encode(samples.y)).double().cpu().numpy()
    finally:
        trainer.close()
