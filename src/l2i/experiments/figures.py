"""What the commands take, apart from a run's own fields; nothing heavy is imported here.

MERGED:
Plots of a run: costs before and after an outer update, error, and landmarks on faces (figures of Experiment 1).
"""

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

from l2i.data.samples import Samples
from l2i.errors import InputError
from l2i.tasks import Regression
from l2i.training.diagnostics import PROBE_COLUMNS, compare_outputs
from l2i.training.loading import LoadedRun, check_same_split, load_full_state
from l2i.training.metrics import MetricRow
from l2i.training.trainer import Trainer

TRUTH_COLOR, BEFORE_COLOR, AFTER_COLOR = "#2ecc40", "#ff8c00", "#00c8f0"  # green, orange and cyan, as in the paper
RUN_COLORS = (AFTER_COLOR, BEFORE_COLOR)  # of a run and of its baseline
FACES_PER_ROW, FACE_INCHES, MIN_WIDTH_INCHES = 6, 1.8, 9.0  # faces in a row, the inches that each takes, and those that words take
GREY_LEVEL = 40  # in place of a face that is not shown
MAX_ARROW_PIXELS = 8.0  # pixels, at most, of an arrow on average
ProgressCallback = Callable[[str], object]


class LandmarkLayer(NamedTuple):
    """Landmarks that were found on some faces."""

    points: Tensor  # [N, P, 2] as x, y in pixels
    color: str
    label: str


def plot_run(
    folder: str,
    progress: ProgressCallback,
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
        check_same_split(folder, baseline)
    output_dir, paths = Path(f"{folder}/pictures" if out is None else out), []
    with torch.random.fork_rng(range(torch.cuda.device_count())), ExitStack() as stack:
        runs = [load_full_state(name, device=device, root=root) for name in (folder, baseline) if name is not None]
        for run in runs:
            stack.callback(run.trainer.close)
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, figure in iter_figures(runs, count, progress, blank=blank):
            paths.append(output_dir / f"{name}.png")
            figure.savefig(paths[-1], dpi=100)
    return paths


def iter_figures(runs: list[LoadedRun], count: int, progress: ProgressCallback, *, blank: bool) -> Iterator[tuple[str, Figure]]:
    """Each picture of the first run with its name; a baseline may come second."""
    run, has_outer_step = runs[0], runs[0].trainer.outer_step is not None
    if probed_rows := [row for row in run.rows if all(row.get(name) is not None for name in PROBE_COLUMNS)]:
        yield "costs", plot_costs(run, probed_rows)
    else:
        missing = "the costs before and after an update were not recorded; --probe-samples N at training does that"
        progress(f"no costs.png: {missing if has_outer_step else 'this run takes no outer update'}")
    yield "error", plot_error(runs)
    if isinstance(run.trainer.task, Regression) and run.trainer.task.eyes is not None:
        yield from draw_landmarks(runs, count, blank=blank)
        if has_outer_step:
            yield "imputed", plot_imputed(run, count, blank=blank)


def draw_landmarks(runs: list[LoadedRun], count: int, *, blank: bool) -> Iterator[tuple[str, Figure]]:
    """What the averaged models find on test faces: on some of them, and on the best and the worst."""
    test, colored_runs = runs[0].trainer.splits.test, zip(runs, RUN_COLORS, strict=False)
    layers = [LandmarkLayer(decode_points(run.trainer, run.trainer.predict(test)), color, run.label) for run, color in colored_runs]
    errors = [compute_percent_errors(runs[0].trainer, layer.points, test.y) for layer in layers]
    draw_rows = partial(draw_face_grid, prepare_faces(test, blank=blank), layers[::-1], [format_errors(face_errors) for face_errors in zip(*errors, strict=True)])
    mean_text = format_errors(run_errors.mean() for run_errors in errors)
    title = f"Landmarks on test faces; the error as a share of the distance between the eyes (on average {mean_text})"
    yield "landmarks", draw_rows(select_evenly_spaced(len(test.y), count), title)
    best_label = "on which this run gains most over the baseline" if len(runs) > 1 else "with this run's smallest errors"
    rows = select_best_and_worst(errors, max(1, count // 2))
    yield "cases", draw_rows(rows, f"Test faces {best_label} (above) and with its largest errors (below)", across=len(rows) // 2)


def plot_costs(run: LoadedRun, rows: list[MetricRow]) -> Figure:
    """The costs of a hold-out batch and of test samples before and after an update; below, their difference."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    figure.suptitle(f"What the outer update of a step does to the costs\n{run.label}")
    grid, steps = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1.5)), [row["step"] for row in rows]
    num_test_samples = min(run.trainer.run.probe_samples, len(run.trainer.splits.test.x))
    for column, name, sample_label in ((0, "c_h", "the hold-out batch"), (1, "test_cost", f"{num_test_samples:,} test samples")):
        before, after = (np.array([row[f"{name}_{when}"] for row in rows], float) for when in ("before", "after"))
        upper, lower = grid[:, column]
        upper.plot(steps, before, color=BEFORE_COLOR, marker="o", linewidth=4, label="before the update")
        upper.plot(steps, after, color=AFTER_COLOR, marker="o", markersize=3, linewidth=1.5, label="after the update")
        summary = f"lower after the update at {(after < before).sum()} of {len(rows)} evaluations"
        upper.set(ylabel="cost", title=f"Cost on {sample_label}:\n{summary}")
        upper.legend()
        lower.axhline(0, color="grey", linewidth=1)
        lower.plot(steps, after - before, color="black", marker="o", markersize=3, linewidth=1)
        lower.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        lower.set(xlabel="training step", ylabel="after − before")
    return figure


def plot_error(runs: list[LoadedRun]) -> Figure:
    """The figure of the averaged model over the steps."""
    axes = (figure := Figure(figsize=(8, 5), layout="constrained")).subplots()
    for run, color in zip(runs, RUN_COLORS, strict=False):
        for split_name, style in {"test": "-", "validation": "--"}.items():
            curve = np.array([(row["step"], row[split_name]) for row in run.rows if row[split_name] is not None], float)
            if len(curve):
                axes.plot(*curve.T, style, marker=".", color=color, label=f"{split_name}: {run.label}")
    axes.set_title("The averaged model on test and validation samples")
    axes.set(xlabel="training step", ylabel=runs[0].trainer.task.metric_name)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def plot_imputed(run: LoadedRun, count: int, *, blank: bool) -> Figure:
    """Unlabelled faces with the labels that the model imputes before and after an update, and how these move."""
    unlabeled = run.trainer.splits.unlabeled
    samples = unlabeled.take(torch.tensor(select_evenly_spaced(len(unlabeled.y), count), device=unlabeled.y.device))
    before, after = (decode_points(run.trainer, z) for z in compare_outputs(run.trainer, run.step, samples))
    errors, updated = (compute_percent_errors(run.trainer, z, samples.y) for z in (before, after))
    captions = [f"{e:.1f} %, {change:+.2g} % after" for e, change in zip(errors, updated - errors, strict=True)]
    factor = compute_arrow_scale(after - before)
    layers = [LandmarkLayer(before, BEFORE_COLOR, "before the update"), LandmarkLayer(after, AFTER_COLOR, "after the update")]
    title = "Imputed landmarks of unlabelled faces before and after an outer update "
    title += f"({run.trainer.run.name}, seed {run.trainer.run.seed}, after step {run.step:,});\n"
    title += f"arrows: the moves, drawn {factor:,g} times as long; above each face, its error and how that changes"
    figure = draw_face_grid(prepare_faces(samples, blank=blank), layers, captions, list(range(len(captions))), title)
    arrows = torch.cat([before, factor * (after - before)], dim=2).numpy(force=True)  # [N, P, 4]
    for axes, arrow in zip(figure.axes, arrows, strict=False):
        axes.quiver(*arrow.T, angles="xy", scale_units="xy", scale=1, color=AFTER_COLOR, width=0.015)
    return figure


def prepare_faces(samples: Samples, *, blank: bool) -> Samples:
    """The faces as they are shown."""
    assert isinstance(samples.x, Tensor)
    return samples._replace(x=torch.full_like(samples.x, GREY_LEVEL)) if blank else samples


def decode_points(trainer: Trainer, outputs: Tensor) -> Tensor:
    """Outputs as points in pixels, [N, P, 2]."""
    assert isinstance(trainer.task, Regression)
    return trainer.task.decode(outputs.double()).reshape(len(outputs), -1, 2)


def compute_percent_errors(trainer: Trainer, predicted: Tensor, y: Tensor) -> Tensor:
    """The error of each face, in per cent of the distance between its eyes."""
    assert isinstance(trainer.task, Regression)
    return 100 * trainer.task.compute_landmark_errors(predicted, y)


def format_errors(errors: Iterable[Tensor]) -> str:
    """In words: ours, and the baseline's where there is one."""
    return ", baseline ".join(f"{error:.1f} %" for error in errors)


def select_evenly_spaced(total: int, count: int) -> list[int]:
    """Rows evenly spread over all."""
    return [k * total // min(count, total) for k in range(min(count, total))]


def select_best_and_worst(errors: list[Tensor], count: int) -> list[int]:
    """Rows at which the first errors are furthest below the second, or least where alone; then their largest."""
    run_errors = errors[0]
    best = (run_errors - errors[1] if len(errors) > 1 else run_errors).argsort()[:count]
    return [*best.tolist(), *run_errors.argsort(descending=True)[:count].tolist()]


def compute_arrow_scale(moves: Tensor) -> float:
    """By how much to lengthen moves so that they can be seen: 1, 2 or 5 times a power of ten."""
    max_factor = MAX_ARROW_PIXELS / max(float(moves.norm(dim=-1).mean()), 1e-12)
    power = 10.0 ** math.floor(math.log10(max_factor))
    return max([1.0, *(digit * power for digit in (1, 2, 5) if digit * power <= max_factor)])


def draw_face_grid(
    samples: Samples, predictions: list[LandmarkLayer], captions: list[str], rows: list[int], title: str, across: int = FACES_PER_ROW
) -> Figure:
    """A grid of some of the faces with the landmarks that were found, and the truth with circles."""
    num_rows, across = -(-len(rows) // across), min(across, len(rows))
    figure = Figure(figsize=(max(FACE_INCHES * across, MIN_WIDTH_INCHES), (FACE_INCHES + 0.2) * num_rows + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(num_rows, across, squeeze=False).flatten()
    for axes in grid:
        axes.axis("off")
    assert isinstance(samples.x, Tensor)
    layers = [LandmarkLayer(samples.y.unflatten(1, (-1, 2)), TRUTH_COLOR, "truth"), *predictions]
    for axes, row in zip(grid, rows, strict=False):
        axes.imshow(samples.x[row, 0].numpy(force=True), cmap="gray", vmin=0, vmax=255, interpolation="bilinear")
        axes.autoscale(False)  # a point far off must not shrink the face
        axes.set_title(captions[row], fontsize=8)
        axes.plot(*layers[0].points[row].numpy(force=True).T, "o", color=TRUTH_COLOR, markersize=10, fillstyle="none")
        for layer, size in zip(layers, (4, 5, 3), strict=False):
            x, y = layer.points[row].numpy(force=True).T
            axes.plot(x, y, "o", color=layer.color, markersize=size, label=layer.label)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(layers))
    return figure
