"""Plots of a run: costs before and after an outer update, error, and landmarks on faces (figures of Experiment 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from l2i.data.split import Samples
from l2i.errors import InputError
from l2i.tasks import Regression
from l2i.training.load import Loaded, load_whole, same_split
from l2i.training.log import Row
from l2i.training.probe import COLUMNS, outputs_either_way
from l2i.training.trainer import Trainer

TRUTH, BEFORE, AFTER = "#2ecc40", "#ff8c00", "#00c8f0"  # green, orange and cyan, as in the paper
COLORS = (AFTER, BEFORE)  # of a run and of its baseline
ACROSS, SIDE, WIDTH = 6, 1.8, 9.0  # faces in a row, the inches that each takes, and those that words take
GREY = 40  # in place of a face that is not shown
ARROW = 8.0  # pixels, at most, of an arrow on average
Say = Callable[[str], object]


class Layer(NamedTuple):
    """Landmarks that were found on some faces."""

    points: Tensor  # [N, P, 2] as x, y in pixels
    color: str
    label: str


def draw(
    folder: str,
    say: Say,
    *,
    baseline: str | None,
    out: str | None,
    count: int,
    device: str | None,
    root: str | None,
    blank: bool = False,
) -> list[Path]:
    """Write the pictures of a run, and return their paths; `say` is told what cannot be drawn.

    Where `blank`, landmarks are drawn on grey in place of the faces.
    """
    if count < 1:
        raise InputError(f"count={count} must be at least 1")
    if baseline is not None:
        same_split(folder, baseline)
    target, written = Path(f"{folder}/pictures" if out is None else out), []
    with torch.random.fork_rng(range(torch.cuda.device_count())), ExitStack() as stack:
        runs = [load_whole(name, device=device, root=root) for name in (folder, baseline) if name is not None]
        for run in runs:
            stack.callback(run.trainer.close)
        target.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures(runs, count, say, blank=blank):
            written.append(target / f"{name}.png")
            figure.savefig(written[-1], dpi=100)
    return written


def pictures(runs: list[Loaded], count: int, say: Say, *, blank: bool) -> Iterator[tuple[str, Figure]]:
    """Each picture of the first run with its name; a baseline may come second."""
    ours, updates = runs[0], runs[0].trainer.outer is not None
    if probed := [row for row in ours.rows if all(row.get(name) is not None for name in COLUMNS)]:
        yield "costs", costs(ours, probed)
    else:
        missing = "the costs before and after an update were not recorded; --probe N at training does that"
        say(f"no costs.png: {missing if updates else 'this run takes no outer update'}")
    yield "error", error(runs)
    if isinstance(ours.trainer.task, Regression) and ours.trainer.task.eyes is not None:
        yield from landmarks(runs, count, blank=blank)
        if updates:
            yield "imputed", imputed(ours, count, blank=blank)


def landmarks(runs: list[Loaded], count: int, *, blank: bool) -> Iterator[tuple[str, Figure]]:
    """What the averaged models find on test faces: on some of them, and on the best and the worst."""
    test, pairs = runs[0].trainer.splits.test, zip(runs, COLORS, strict=False)
    layers = [Layer(points(run.trainer, run.trainer.predict(test)), color, run.label) for run, color in pairs]
    errors = [percent(runs[0].trainer, layer.points, test.y) for layer in layers]
    drawn = partial(faces, seen(test, blank=blank), layers[::-1], [shares(each) for each in zip(*errors, strict=True)])
    means = shares(each.mean() for each in errors)
    title = f"Landmarks on test faces; the error as a share of the distance between the eyes (on average {means})"
    yield "landmarks", drawn(spread(len(test.y), count), title)
    best = "on which this run gains most over the baseline" if len(runs) > 1 else "with this run's smallest errors"
    rows = best_and_worst(errors, max(1, count // 2))
    yield "cases", drawn(rows, f"Test faces {best} (above) and with its largest errors (below)", across=len(rows) // 2)


def costs(ours: Loaded, rows: list[Row]) -> Figure:
    """The costs of a hold-out batch and of test samples before and after an update; below, their difference."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    figure.suptitle(f"What the outer update of a step does to the costs\n{ours.label}")
    grid, steps = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1.5)), [row["step"] for row in rows]
    tested = min(ours.trainer.run.probe, len(ours.trainer.splits.test.x))
    for column, name, what in ((0, "c_h", "the hold-out batch"), (1, "test_cost", f"{tested:,} test samples")):
        before, after = (np.array([row[f"{name}_{when}"] for row in rows], float) for when in ("before", "after"))
        upper, lower = grid[:, column]
        upper.plot(steps, before, color=BEFORE, marker="o", linewidth=4, label="before the update")
        upper.plot(steps, after, color=AFTER, marker="o", markersize=3, linewidth=1.5, label="after the update")
        told = f"lower after the update at {(after < before).sum()} of {len(rows)} evaluations"
        upper.set(ylabel="cost", title=f"Cost on {what}:\n{told}")
        upper.legend()
        lower.axhline(0, color="grey", linewidth=1)
        lower.plot(steps, after - before, color="black", marker="o", markersize=3, linewidth=1)
        lower.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        lower.set(xlabel="training step", ylabel="after − before")
    return figure


def error(runs: list[Loaded]) -> Figure:
    """The figure of the averaged model over the steps."""
    axes = (figure := Figure(figsize=(8, 5), layout="constrained")).subplots()
    for run, color in zip(runs, COLORS, strict=False):
        for part, style in {"test": "-", "validation": "--"}.items():
            curve = np.array([(row["step"], row[part]) for row in run.rows if row[part] is not None], float)
            if len(curve):
                axes.plot(*curve.T, style, marker=".", color=color, label=f"{part}: {run.label}")
    axes.set_title("The averaged model on test and validation samples")
    axes.set(xlabel="training step", ylabel=runs[0].trainer.task.figure_name)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def imputed(ours: Loaded, count: int, *, blank: bool) -> Figure:
    """Unlabelled faces with the labels that the model imputes before and after an update, and how these move."""
    hidden = ours.trainer.splits.unlabeled
    some = hidden.take(torch.tensor(spread(len(hidden.y), count), device=hidden.y.device))
    before, after = (points(ours.trainer, z) for z in outputs_either_way(ours.trainer, ours.step, some))
    errors, updated = (percent(ours.trainer, z, some.y) for z in (before, after))
    captions = [f"{e:.1f} %, {change:+.2g} % after" for e, change in zip(errors, updated - errors, strict=True)]
    factor = arrow_factor(after - before)
    layers = [Layer(before, BEFORE, "before the update"), Layer(after, AFTER, "after the update")]
    title = "Imputed landmarks of unlabelled faces before and after an outer update "
    title += f"({ours.trainer.run.name}, seed {ours.trainer.run.seed}, after step {ours.step:,});\n"
    title += f"arrows: the moves, drawn {factor:,g} times as long; above each face, its error and how that changes"
    figure = faces(seen(some, blank=blank), layers, captions, list(range(len(captions))), title)
    arrows = torch.cat([before, factor * (after - before)], dim=2).numpy(force=True)  # [N, P, 4]
    for axes, arrow in zip(figure.axes, arrows, strict=False):
        axes.quiver(*arrow.T, angles="xy", scale_units="xy", scale=1, color=AFTER, width=0.015)
    return figure


def seen(samples: Samples, *, blank: bool) -> Samples:
    """The faces as they are shown."""
    assert isinstance(samples.x, Tensor)
    return samples._replace(x=torch.full_like(samples.x, GREY)) if blank else samples


def points(trainer: Trainer, outputs: Tensor) -> Tensor:
    """Outputs as points in pixels, [N, P, 2]."""
    assert isinstance(trainer.task, Regression)
    return trainer.task.decode(outputs.double()).reshape(len(outputs), -1, 2)


def percent(trainer: Trainer, predicted: Tensor, y: Tensor) -> Tensor:
    """The error of each face, in per cent of the distance between its eyes."""
    assert isinstance(trainer.task, Regression)
    return 100 * trainer.task.landmark_errors(predicted, y)


def shares(errors: Iterable[Tensor]) -> str:
    """In words: ours, and the baseline's where there is one."""
    return ", baseline ".join(f"{error:.1f} %" for error in errors)


def spread(total: int, count: int) -> list[int]:
    """Rows evenly spread over all."""
    return [k * total // min(count, total) for k in range(min(count, total))]


def best_and_worst(errors: list[Tensor], count: int) -> list[int]:
    """Rows at which the first errors are furthest below the second, or least where alone; then their largest."""
    ours = errors[0]
    best = (ours - errors[1] if len(errors) > 1 else ours).argsort()[:count]
    return [*best.tolist(), *ours.argsort(descending=True)[:count].tolist()]


def arrow_factor(moves: Tensor) -> float:
    """By how much to lengthen moves so that they can be seen: 1, 2 or 5 times a power of ten."""
    room = ARROW / max(float(moves.norm(dim=-1).mean()), 1e-12)
    power = 10.0 ** math.floor(math.log10(room))
    return max([1.0, *(digit * power for digit in (1, 2, 5) if digit * power <= room)])


def faces(
    samples: Samples, found: list[Layer], captions: list[str], rows: list[int], title: str, across: int = ACROSS
) -> Figure:
    """A grid of some of the faces with the landmarks that were found, and the truth with circles."""
    high, across = -(-len(rows) // across), min(across, len(rows))
    figure = Figure(figsize=(max(SIDE * across, WIDTH), (SIDE + 0.2) * high + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(high, across, squeeze=False).flatten()
    for axes in grid:
        axes.axis("off")
    assert isinstance(samples.x, Tensor)
    layers = [Layer(samples.y.unflatten(1, (-1, 2)), TRUTH, "truth"), *found]
    for axes, row in zip(grid, rows, strict=False):
        axes.imshow(samples.x[row, 0].numpy(force=True), cmap="gray", vmin=0, vmax=255, interpolation="bilinear")
        axes.autoscale(False)  # a point far off must not shrink the face
        axes.set_title(captions[row], fontsize=8)
        axes.plot(*layers[0].points[row].numpy(force=True).T, "o", color=TRUTH, markersize=10, fillstyle="none")
        for layer, size in zip(layers, (4, 5, 3), strict=False):
            x, y = layer.points[row].numpy(force=True).T
            axes.plot(x, y, "o", color=layer.color, markersize=size, label=layer.label)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(layers))
    return figure
