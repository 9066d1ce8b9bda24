"""Plots of a run: costs around an outer update, error, and landmarks on faces (Experiment 1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from l2i.data.samples import Samples
from l2i.experiments.options import PlotOptions
from l2i.experiments.plots import PLOT_SUFFIXES, add_legend, make_figure, save_figure
from l2i.experiments.results import make_folder
from l2i.files.output import ProgressCallback, check_not_in_run, check_output_file
from l2i.tasks import Regression
from l2i.training.diagnostics import PROBE_COLUMNS, compare_outputs
from l2i.training.loading import LoadedRun, check_same_split, load_full_state
from l2i.training.metrics import MetricRow
from l2i.training.trainer import Trainer

# green, orange and cyan, as in the paper
TRUTH_COLOR, BEFORE_COLOR, AFTER_COLOR = "#2ecc40", "#ff8c00", "#00c8f0"
RUN_COLORS = (AFTER_COLOR, BEFORE_COLOR)  # of a run and of its baseline
NUM_FACES = 12  # per figure
FACES_PER_ROW = 6
FACE_INCHES, MIN_WIDTH_INCHES = 1.8, 9.0  # of a face, and of a figure with a title
MAX_ARROW_PIXELS = 8.0  # mean length of the arrows in a figure


class LandmarkLayer(NamedTuple):
    """Landmarks predicted on some faces."""

    points: Tensor  # [N, P, 2] as x, y in pixels
    color: str
    label: str


def plot_run(folder: str, options: PlotOptions, progress: ProgressCallback) -> list[Path]:
    """Write the plots of a run, and return their paths; report what cannot be drawn."""
    if options.baseline is not None:
        check_same_split(folder, options.baseline)
    output_dir = own_dir = Path(folder) / "plots"
    if options.out is not None and Path(options.out).resolve() != own_dir.resolve():
        output_dir = Path(options.out)
        check_not_in_run(output_dir / "error.png")
    with torch.random.fork_rng(range(torch.cuda.device_count())), ExitStack() as stack:
        runs = []
        for name in [folder] if options.baseline is None else [folder, options.baseline]:
            runs.append(load_full_state(name, device=options.device, root=options.data.root))
            stack.callback(runs[-1].trainer.close)
        figures = {output_dir / f"{name}.png": f for name, f in iter_figures(runs, progress)}
        if output_dir == own_dir:
            return [save_figure(figure, path) for path, figure in figures.items()]
        make_folder(output_dir, "--out")
        for path in figures:
            check_output_file(path, PLOT_SUFFIXES, overwrite=options.overwrite)
        save = partial(save_figure, overwrite=options.overwrite)
        return [save(figure, path) for path, figure in figures.items()]


def iter_figures(runs: list[LoadedRun], progress: ProgressCallback) -> Iterator[tuple[str, Figure]]:
    """Yield each figure of the first run with its name; a baseline may come second."""
    run, has_outer_step = runs[0], runs[0].trainer.outer_step is not None
    probed = [row for row in run.rows if all(row.get(name) is not None for name in PROBE_COLUMNS)]
    if probed:
        yield "costs", _plot_costs(run, probed)
    elif has_outer_step:
        progress(
            "no costs.png: the costs before and after outer updates were not measured; "
            "train with --probe-samples N to measure them"
        )
    else:
        progress("no costs.png: this run takes no outer updates")
    yield "error", _plot_error(runs)
    if isinstance(run.trainer.task, Regression) and run.trainer.task.eyes is not None:
        yield from draw_landmarks(runs)
        if has_outer_step:
            yield "imputed", plot_imputed(run)


def _plot_costs(run: LoadedRun, rows: list[MetricRow]) -> Figure:
    """Plot the costs of a hold-out batch and of test samples around an update, and the change."""
    title = f"Costs before and after the outer update of a step\n{run.label}"
    figure = make_figure(11, 6, title, fontsize=12)
    grid = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1.5))
    steps = [row["step"] for row in rows]
    num_test_samples = min(run.trainer.run.probe_samples, len(run.trainer.splits.test.x))
    samples = {"c_h": "the hold-out batch", "test_cost": f"{num_test_samples:,} test samples"}
    for (upper, lower), (name, sample_label) in zip(grid.T, samples.items(), strict=True):
        before, after = (
            np.array([row[f"{name}_{when}"] for row in rows], float) for when in ("before", "after")
        )
        upper.plot(steps, before, "o-", color=BEFORE_COLOR, lw=4, label="before the update")
        upper.plot(steps, after, "o-", color=AFTER_COLOR, ms=3, lw=1.5, label="after the update")
        summary = f"lower after the update at {(after < before).sum()} of {len(rows)} evaluations"
        upper.set(ylabel="cost", title=f"Cost on {sample_label}:\n{summary}")
        upper.legend()
        lower.axhline(0, color="grey", linewidth=1)
        lower.plot(steps, after - before, "o-", color="black", ms=3, lw=1)
        lower.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        lower.set(xlabel="training step", ylabel="after − before")
    return figure


def _plot_error(runs: list[LoadedRun]) -> Figure:
    """Plot the metric of the averaged model over the steps."""
    figure = make_figure(8, 5)
    axes = figure.subplots()
    for run, color in zip(runs, RUN_COLORS, strict=False):
        for split, style in {"test": ".-", "validation": ".--"}.items():
            points = [(row["step"], row[split]) for row in run.rows if row[split] is not None]
            if points:
                x, y = np.array(points, float).T
                axes.plot(x, y, style, color=color, label=f"{split}: {run.label}")
    axes.set_title("Averaged (EMA) model on the test and validation sets")
    axes.set(xlabel="training step", ylabel=runs[0].trainer.task.metric_name)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def draw_landmarks(runs: list[LoadedRun]) -> Iterator[tuple[str, Figure]]:
    """Yield the averaged models' landmarks on some test faces, and on the best and the worst."""
    test = runs[0].trainer.splits.test
    layers = [
        LandmarkLayer(decode_points(run.trainer, run.trainer.predict(test)), color, run.label)
        for run, color in zip(runs, RUN_COLORS, strict=False)
    ]
    errors = [_compute_percent_errors(runs[0].trainer, layer.points, test.y) for layer in layers]
    captions = [_format_errors(face_errors) for face_errors in zip(*errors, strict=True)]
    draw_rows = partial(draw_face_grid, test, layers[::-1], captions)
    mean_text = _format_errors(run_errors.mean() for run_errors in errors)
    title = (
        "Landmarks on test faces; errors relative to the distance between the eyes "
        f"(mean {mean_text})"
    )
    yield "landmarks", draw_rows(select_evenly_spaced(len(test.y), NUM_FACES), title)
    best = "with this run's smallest errors"
    if len(runs) > 1:
        best = "with the largest gains over the baseline"
    title = f"Test faces {best} (top) and with its largest errors (bottom)"
    rows = select_best_and_worst(errors, NUM_FACES // 2)
    yield "cases", draw_rows(rows, title, across=len(rows) // 2)


def plot_imputed(run: LoadedRun) -> Figure:
    """Draw the labels imputed for unlabelled faces before and after an update, and their moves."""
    unlabeled, trainer = run.trainer.splits.unlabeled, run.trainer
    rows = select_evenly_spaced(len(unlabeled.y), NUM_FACES)
    samples = unlabeled.take(torch.tensor(rows, device=unlabeled.y.device))
    before, after = (decode_points(trainer, z) for z in compare_outputs(trainer, run.step, samples))
    errors, updated = (_compute_percent_errors(trainer, z, samples.y) for z in (before, after))
    changes = zip(errors, updated - errors, strict=True)
    captions = [f"{error:.1f} %, {change:+.2g} % after" for error, change in changes]
    factor = compute_arrow_scale(after - before)
    layers = [
        LandmarkLayer(before, BEFORE_COLOR, "before the update"),
        LandmarkLayer(after, AFTER_COLOR, "after the update"),
    ]
    title = (
        "Imputed landmarks of unlabelled faces before and after an outer update "
        f"({trainer.run.name}, seed {trainer.run.seed}, after step {run.step:,});\n"
        f"arrows: their displacement, drawn {factor:,g} times as long; "
        "above each face, its error and the change"
    )
    figure = draw_face_grid(samples, layers, captions, list(range(len(captions))), title)
    arrows = torch.cat([before, factor * (after - before)], dim=2).numpy(force=True)  # [N, P, 4]
    for ax, arrow in zip(figure.axes, arrows, strict=False):
        ax.quiver(*arrow.T, angles="xy", scale_units="xy", scale=1, color=AFTER_COLOR, width=0.015)
    return figure


def decode_points(trainer: Trainer, outputs: Tensor) -> Tensor:
    """Return outputs as points in pixels, [N, P, 2]."""
    assert isinstance(trainer.task, Regression)
    return trainer.task.decode(outputs.double()).reshape(len(outputs), -1, 2)


def _compute_percent_errors(trainer: Trainer, predicted: Tensor, y: Tensor) -> Tensor:
    """Return the error of each face, in per cent of the distance between its eyes."""
    assert isinstance(trainer.task, Regression)
    return 100 * trainer.task.compute_landmark_errors(predicted, y)


def _format_errors(errors: Iterable[Tensor]) -> str:
    """Format our error, and the baseline's if there is one."""
    return ", baseline ".join(f"{error:.1f} %" for error in errors)


def select_evenly_spaced(total: int, count: int) -> list[int]:
    """Return at most `count` indices, evenly spaced."""
    return [k * total // min(count, total) for k in range(min(count, total))]


def select_best_and_worst(errors: list[Tensor], count: int) -> list[int]:
    """Return the faces with the largest gain over the second errors, then the largest errors.

    Without second errors, the best faces are those with the smallest errors.
    """
    run_errors = errors[0]
    best = (run_errors - errors[1] if len(errors) > 1 else run_errors).argsort()[:count]
    return [*best.tolist(), *run_errors.argsort(descending=True)[:count].tolist()]


def compute_arrow_scale(moves: Tensor) -> float:
    """Return how much to lengthen moves so that they show: 1, 2 or 5 times a power of ten."""
    max_factor = MAX_ARROW_PIXELS / max(float(moves.norm(dim=-1).mean()), 1e-12)
    power = 10.0 ** math.floor(math.log10(max_factor))
    return max([1.0, *(digit * power for digit in (1, 2, 5) if digit * power <= max_factor)])


def draw_face_grid(
    samples: Samples,
    predictions: list[LandmarkLayer],
    captions: list[str],
    rows: list[int],
    title: str,
    across: int = FACES_PER_ROW,
) -> Figure:
    """Draw a grid of some of the faces with the predicted landmarks, and the truth with circles."""
    num_rows, across = -(-len(rows) // across), min(across, len(rows))
    width = max(FACE_INCHES * across, MIN_WIDTH_INCHES)
    figure = make_figure(width, (FACE_INCHES + 0.2) * num_rows + 0.8, title)
    grid = figure.subplots(num_rows, across, squeeze=False).flatten()
    for axes in grid:
        axes.axis("off")
    assert isinstance(samples.x, Tensor)
    truth = LandmarkLayer(samples.y.unflatten(1, (-1, 2)), TRUTH_COLOR, "truth")
    for axes, row in zip(grid, rows, strict=False):
        image = samples.x[row, 0].numpy(force=True)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="bilinear")
        axes.autoscale(False)  # a point far off must not shrink the face
        axes.set_title(captions[row], fontsize=8)
        x, y = truth.points[row].numpy(force=True).T
        axes.plot(x, y, "o", color=TRUTH_COLOR, markersize=10, fillstyle="none")
        for layer, size in zip((truth, *predictions), (4, 5, 3), strict=False):
            x, y = layer.points[row].numpy(force=True).T
            axes.plot(x, y, "o", color=layer.color, markersize=size, label=layer.label)
    add_legend(figure, grid[0])
    return figure
