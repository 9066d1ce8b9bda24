"""What trained candidates come to: figures, the choice, calibration, and what is kept of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.config import Run
from l2i.data.split import Samples
from l2i.own.fitted import Candidate, Choice, Fitted, Rows, Sample
from l2i.own.imputed import impute, spread_scale_of, temperature_of
from l2i.own.select import selected
from l2i.own.snapshots import changes, read_snapshots
from l2i.own.spread import spread_of
from l2i.own.unlike import unlike
from l2i.tasks import Regression
from l2i.training.build import dtype_of, input_shape
from l2i.training.folder import Result
from l2i.training.trainer import Trainer

if TYPE_CHECKING:
    from l2i.own.ready import Data
    from l2i.own.source import Source

SHOWN, ALIKE = 8, 3  # rows that a report shows, of the most and of the least sure; and of one class in a turn


class Trained(NamedTuple):
    """A candidate after its training."""

    candidate: Candidate
    outputs: NDArray[Any]  # [N, C] logits, float32; or [N, D] targets in their units, float64
    snapshots: NDArray[Any]  # [S, N] or [S, N, D]
    spread: NDArray[np.float32] | None  # [N, D], regression
    mean: tuple[float, ...]  # [D], regression: how targets are standardised
    std: tuple[float, ...]
    threshold: float | None  # of the method's confidence mask
    shape: tuple[int, ...]
    figure_name: str
    meaning: str

    @staticmethod
    def of(name: str, trainer: Trainer, result: Result, data: Data, folder: Path) -> Trained:
        """Let the averaged model say what it thinks of every row."""
        task, run = trainer.task, trainer.run
        rows = data.rows_on(trainer.device, dtype_of(run))
        outputs, snapshots = trainer.predict(rows), read_snapshots(folder, run.steps)
        regression = task if isinstance(task, Regression) else None
        decoded = outputs.float() if regression is None else regression.decode(outputs).double()
        return Trained(
            candidate=judged(name, trainer, result),
            outputs=decoded.cpu().numpy() + (0 if regression is None else data.offset),
            snapshots=snapshots,
            spread=None if regression is None else spread_of(trainer, rows, snapshots),
            mean=() if regression is None else tuple((regression.mean.double().cpu().numpy() + data.offset).tolist()),
            std=() if regression is None else tuple(regression.std.tolist()),
            threshold=getattr(run.method, "threshold", None),
            shape=input_shape(run, trainer.splits),
            figure_name=task.figure_name,
            meaning=task.meaning,
        )


def title_of(name: str, run: Run) -> str:
    """A candidate in words."""
    return f"{run.method.name} + L2I" if name == "l2i" else run.method.name


def judged(name: str, trainer: Trainer, result: Result) -> Candidate:
    """The figures of the averaged model that is kept."""
    task, found = trainer.task, trainer.figures()

    def cost(samples: Samples) -> float:
        return float(task.loss(trainer.predict(samples), task.encode(samples.y)))

    return Candidate(
        name=name,
        title=title_of(name, trainer.run),
        validation=found["validation"][task.figure_name],
        validation_cost=cost(trainer.splits.validation),
        test=found["test"][task.figure_name] if "test" in found else None,
        steps=result.steps,
        seconds=result.seconds,
    )


def finished(
    data: Data, trained: list[Trained], choices: tuple[Choice, ...], source: dict[str, Any]
) -> tuple[Fitted, Rows]:
    """Choose by the validation rows, calibrate on them, and gather what the other commands need."""
    best = kept(trained, data)
    rows = gathered(data, trained, best)
    fitted = Fitted(
        source=source,
        inputs=data.inputs.to_json(),
        shape=best.shape,
        classes=data.source.classes,
        targets=data.source.targets,
        points=data.source.points,
        figure_name=best.figure_name,
        meaning=best.meaning + (f", resized to {best.shape[1]} × {best.shape[2]} pixels" if data.source.points else ""),
        choices=choices,
        notes=data.source.notes,
        candidates=tuple(t.candidate for t in trained),
        chosen=best.candidate.name,
        snapshots=len(best.snapshots),
        target_mean=best.mean,
        target_std=best.std,
        unlike=unlike(data.x, data.parts == "unlabeled", seed=0),
        mask=mask_of(trained, data.parts),
        **calibration(best, rows),
    )
    return shown(fitted, rows, data.source), rows


def gathered(data: Data, trained: list[Trained], best: Trained) -> Rows:
    """What is kept of every row."""
    return Rows(
        ids=data.source.ids,
        parts=data.parts,
        given=data.source.given,
        outputs={t.candidate.name: t.outputs for t in trained},
        changes=changes(best.snapshots, np.asarray(best.std) if best.std else None),
        spread=best.spread,
        sizes=data.source.sizes,
    )


def kept(trained: list[Trained], data: Data) -> Trained:
    """The candidate that the validation rows speak for."""
    held, given = data.parts == "validation", data.source.given
    errors: dict[str, NDArray[np.float64]] = {}
    for each in trained:
        said, truth = each.outputs[held].astype(np.float64), given[held]
        wrong = said.argmax(axis=1) != truth if given.ndim == 1 else (((said - truth) / each.std) ** 2).mean(axis=1)
        errors[each.candidate.name] = np.asarray(wrong, dtype=np.float64)
    name = selected(errors)
    return next(each for each in trained if each.candidate.name == name)


def calibration(best: Trained, rows: Rows) -> dict[str, Any]:
    """Temperature or scale of the spread, from the validation rows."""
    held = rows.parts == "validation"
    if best.spread is None:
        return {"temperature": temperature_of(best.outputs[held], rows.given[held])}
    return {"spread_scale": spread_scale_of(best.outputs[held] - rows.given[held], best.spread[held])}


def mask_of(trained: list[Trained], parts: NDArray[np.str_]) -> float | None:
    """The share of unlabelled rows that the method, with L2I if there is that, is confident enough of."""
    last, rows = trained[-1], parts == "unlabeled"
    if last.threshold is None or last.candidate.name == "supervised" or not rows.any():
        return None
    logits = last.outputs[rows].astype(np.float64)
    likely = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return float((likely >= last.threshold).mean())


def shown(fitted: Fitted, rows: Rows, source: Source) -> Fitted:
    """With the rows whose labels are the most and the least sure."""
    found = impute(fitted, rows)
    blank = np.flatnonzero(found.imputed)
    order = blank[np.argsort(-found.confidence[blank], kind="stable")]
    first = varied(order, found.labels) if fitted.classes is not None else order
    ends = list(dict.fromkeys([*first[:SHOWN].tolist(), *order[-SHOWN:].tolist()]))
    samples: tuple[Sample, ...] = tuple(source.sample(row) for row in ends)
    return dataclasses.replace(fitted, samples=samples)


def varied(order: NDArray[np.intp], labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Rows in order, with no more than a few of a class before others have had their turn."""
    turns = np.zeros(len(order), dtype=np.int64)
    for label in np.unique(labels[order]):
        of_class = labels[order] == label
        turns[of_class] = np.arange(of_class.sum()) // ALIKE
    return order[np.argsort(turns, kind="stable")]
