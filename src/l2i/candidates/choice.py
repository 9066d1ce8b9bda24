"""Choose a model for a table by cross-validation, calibrate it, and predict unlabelled rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.candidates.base import Floats, Level, Progress, TableRows, standardize
from l2i.candidates.calibration import fit_temperature
from l2i.candidates.catalog import DEFAULTS, NETWORK_NAMES, Inputs, list_candidates
from l2i.candidates.cross_validation import predict_unlabeled
from l2i.candidates.network import Network
from l2i.candidates.selection import Record, Selection, select_candidate
from l2i.config import Run, replace
from l2i.data.samples import Samples, Splits
from l2i.errors import InputError

MAX_NETWORK_STEPS = 500  # by default, of a candidate, which is trained once per fold
MAX_FEATURE_NETWORK_STEPS = 200  # likewise of one that is trained on features of images
PRIOR_STDS = (0.5, 0.5)  # of the log temperature, below and above 0
IMPUTE_FOLDS, NETWORK_IMPUTE_FOLDS = 5, 2  # of unlabelled rows, to impute each without itself


@dataclass(frozen=True, kw_only=True)
class TableChoice:
    """What was chosen for a table."""

    selection: Selection
    outputs: Floats
    """[N, C] of the labelled rows out of fold, each by the choice that the other folds make."""
    temperature: float
    mean: NDArray[np.float64]
    """[D], regression: of the targets that the candidates were fitted to, and their std."""
    std: NDArray[np.float64]

    @property
    def run(self) -> Run | None:
        """Return the run to train if a network was chosen."""
        names = self.selection.chosen
        single = self.selection.scores[names[0]].candidate
        if len(names) > 1 or not isinstance(single, Network):
            return None
        return replace(single.run, seed=self.selection.seed)

    def predict_unlabeled(self) -> torch.Tensor | None:
        """Return outputs [U, C] of unlabelled rows, by models that did not train on the row.

        None if the choice does not train on unlabelled rows at all, or on a single one.
        """
        selection, rows = self.selection, self.selection.rows
        if selection.level == Level.LABELS_ONLY or len(rows.unlabeled) < 2:
            return None
        candidates = [selection.scores[name].candidate for name in selection.chosen]
        is_slow = any(isinstance(candidate, Network) for candidate in candidates)
        num_folds = NETWORK_IMPUTE_FOLDS if is_slow else IMPUTE_FOLDS
        return torch.from_numpy(predict_unlabeled(candidates, rows, selection.seed, num_folds))


def choose_for_table(
    splits: Splits,
    run: Run,
    names: Sequence[str],
    *,
    minutes: float | None,
    notify: Callable[[Progress], None],
    groups: NDArray[np.str_] | None = None,
    unlabeled_groups: NDArray[np.str_] | None = None,
    is_balanced: bool = False,
    record: Record | None = None,
    inputs: Inputs = "columns",
) -> TableChoice | None:
    """Choose among the candidates; None if none of those named can be compared."""
    rows, mean, std = _make_rows(splits, is_balanced=is_balanced)
    rows = dataclasses.replace(rows, groups=groups, unlabeled_groups=unlabeled_groups)
    task = "regression" if splits.classes is None else "classification"
    assert splits.columns is not None
    candidates = list_candidates(run, splits.columns, task, names, inputs)
    selection = select_candidate(
        candidates,
        rows,
        run.seed,
        minutes=minutes,
        notify=notify,
        record=record,
        default=DEFAULTS[inputs],
    )
    if not selection.chosen:
        if names and not set(names) <= set(NETWORK_NAMES):
            fix = "leave out candidates to try all that do"
            raise InputError(f"none of these candidates suits the data: {', '.join(names)}; {fix}")
        return None
    return TableChoice(
        selection=selection,
        outputs=selection.estimate_outputs(),
        temperature=_fit_temperature(selection),
        mean=mean,
        std=std,
    )


def _fit_temperature(selection: Selection) -> float:
    """Calibrate what was chosen by its own outputs out of fold, of all repeats; 1 for targets."""
    if selection.rows.num_classes is None or not selection.folds:
        return 1.0
    repeats, rows = selection.repeated_outputs, selection.rows
    logits, count = np.concatenate(list(repeats)), len(repeats)
    weight = np.tile(rows.weight / count, count)
    return fit_temperature(logits, np.tile(rows.y, count), weight, PRIOR_STDS)


def _make_rows(splits: Splits, *, is_balanced: bool) -> tuple[TableRows, Floats, Floats]:
    """Return the rows with standardised targets, and their mean and std [D]."""
    labeled, unlabeled = splits.labeled, splits.unlabeled
    assert isinstance(labeled.x, torch.Tensor) and isinstance(unlabeled.x, torch.Tensor)
    y, weight = labeled.y.numpy(), _get_weight(labeled)
    mean, std = np.zeros(1), np.ones(1)
    if splits.classes is None:
        y, mean, std = standardize(y.astype(np.float64), weight)
    elif is_balanced:
        weight = weight * _balance(y, weight)
    rows = TableRows(
        x=labeled.x.numpy(),
        y=y,
        weight=weight,
        unlabeled=unlabeled.x.numpy(),
        unlabeled_weight=_get_weight(unlabeled),
        num_classes=splits.classes,
    )
    return rows, mean, std


def _get_weight(samples: Samples) -> Floats:
    if samples.weight is None:
        return np.ones(len(samples.x))
    return np.asarray(samples.weight.numpy(), dtype=np.float64)


def _balance(y: NDArray[np.int64], weight: Floats) -> Floats:
    """Return factors that give every class the same total weight, and leave the sum as it is."""
    totals = np.bincount(y, weights=weight)
    factor: Floats = weight.sum() / ((totals > 0).sum() * np.maximum(totals, 1e-300))
    return factor[y]
