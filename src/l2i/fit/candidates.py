"""Evaluate trained candidates on every row, select one by the validation rows, and calibrate it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.candidates.calibration import fit_std_scale, fit_temperature
from l2i.config import Run
from l2i.data.samples import Samples
from l2i.errors import DamagedFile
from l2i.files.npz import read_npy_array
from l2i.files.output import write_atomic
from l2i.fit.artifact import PREFERENCE_ORDER, Candidate, Choice, FitArtifact, FitRows, Floats
from l2i.fit.previews import add_previews
from l2i.tasks import Regression
from l2i.training.loop import EvalCallback
from l2i.training.run_dir import Result
from l2i.training.setup import compute_input_shape, get_param_dtype
from l2i.training.trainer import Trainer

if TYPE_CHECKING:
    from l2i.fit.split import PreparedData

ROUNDING_SLACK = 1 + 1e-9  # a difference in one row is one standard error, up to rounding
APPROX_SNAPSHOTS = 10  # per run
NUM_LAST_SNAPSHOTS = 5  # over which the predictive std of a target is computed
NUM_VIEWS = 8  # likewise
MAX_CHUNK_ROWS = 256  # rows perturbed together: swapped cells are swapped among them
MIN_ROWS_PER_GROUP = 10  # labelled and unlabelled rows needed to compare the two groups
MAX_ROWS_PER_GROUP = 1000
POOLED_SIDE = 8  # pixels per side that images are shrunk to for that
SamplesFactory = Callable[[torch.device, torch.dtype], Samples]  # all rows, on a device


class TrainedCandidate(NamedTuple):
    """A candidate after its training."""

    candidate: Candidate
    outputs: NDArray[Any]  # [N, C] logits, float32; or [N, D] targets in their units, float64
    snapshots: NDArray[Any]  # [S, N] or [S, N, D]
    predictive_std: NDArray[np.float32] | None  # [N, D], regression
    mean: tuple[float, ...]  # [D], regression: how targets are standardised
    std: tuple[float, ...]
    threshold: float | None  # of the method's confidence mask
    shape: tuple[int, ...]
    metric_name: str
    metric_description: str

    @staticmethod
    def from_trainer(
        name: str, trainer: Trainer, result: Result, data: PreparedData, folder: Path
    ) -> TrainedCandidate:
        """Predict every row with the averaged model; `folder` holds the snapshots."""
        task, run = trainer.task, trainer.run
        rows = data.rows_to_device(trainer.device, get_param_dtype(run))
        raw_outputs, snapshots = trainer.predict(rows), read_snapshots(folder, run.steps)
        candidate = _evaluate_candidate(name, trainer, result)
        if isinstance(task, Regression):
            outputs = task.decode(raw_outputs).double().cpu().numpy() + data.offset
            predictive_std = _compute_predictive_std(trainer, rows, snapshots)
            mean = tuple((task.mean.double().cpu().numpy() + data.offset).tolist())
            std = tuple(task.std.tolist())
        else:
            outputs = raw_outputs.float().cpu().numpy()
            predictive_std, mean, std = None, (), ()
        return TrainedCandidate(
            candidate=candidate,
            outputs=outputs,
            snapshots=snapshots,
            predictive_std=predictive_std,
            mean=mean,
            std=std,
            threshold=getattr(run.method, "threshold", None),
            shape=compute_input_shape(run, trainer.splits),
            metric_name=task.metric_name,
            metric_description=task.metric_description,
        )


def make_title(name: str, run: Run) -> str:
    """Name a candidate for the user."""
    return f"{run.method.name} + L2I" if name == "l2i" else run.method.name


def _evaluate_candidate(name: str, trainer: Trainer, result: Result) -> Candidate:
    task, metrics, validation = trainer.task, trainer.compute_metrics(), trainer.splits.validation
    validation_loss = task.loss(trainer.predict(validation), task.encode(validation.y))
    return Candidate(
        name=name,
        title=make_title(name, trainer.run),
        validation_metric=metrics["validation"][task.metric_name],
        validation_cost=float(validation_loss),
        test_metric=metrics["test"][task.metric_name] if "test" in metrics else None,
        steps=result.steps,
        seconds=result.seconds,
    )


def make_snapshot_writer(folder: Path, load_samples: SamplesFactory) -> EvalCallback:
    """Return a callback that saves the predicted labels of all rows at some of the evaluations."""

    def write_snapshot(trainer: Trainer, step: int) -> None:
        run = trainer.run
        stride = max(1, run.steps // run.eval_every // APPROX_SNAPSHOTS) * run.eval_every
        if step % stride and step != run.steps:
            return
        outputs = trainer.predict(load_samples(trainer.device, get_param_dtype(run)))
        if isinstance(trainer.task, Regression):
            labels = trainer.task.decode(outputs).float()  # [N, D], in their units
        else:
            labels = outputs.argmax(dim=1).int()  # [N]
        buffer = io.BytesIO()
        np.save(buffer, labels.cpu().numpy())
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{step:09d}.npy", buffer.getvalue())

    return write_snapshot


def read_snapshots(folder: Path, steps: int) -> NDArray[Any]:
    """Read the snapshots of a run up to that step, [S, N] or [S, N, D]."""
    try:
        paths = sorted(path for path in folder.glob("*.npy") if int(path.stem) <= steps)
        return np.stack([read_npy_array(path) for path in paths])
    except (OSError, ValueError):
        raise DamagedFile(f"{folder} is damaged; fit again with a different --out") from None


def count_label_changes(snapshots: NDArray[Any], std: Floats | None) -> NDArray[np.int64]:
    """Count how often each row's label changed between consecutive snapshots, [N].

    A target has changed if it moved by more than a tenth of `std`, that of the labelled targets.
    """
    if std is None:
        return np.asarray((snapshots[1:] != snapshots[:-1]).sum(axis=0), dtype=np.int64)
    has_moved = (np.abs(np.diff(snapshots, axis=0)) > 0.1 * std).any(axis=2)
    return np.asarray(has_moved.sum(axis=0), dtype=np.int64)


def _compute_predictive_std(
    trainer: Trainer, samples: Samples, snapshots: NDArray[Any]
) -> NDArray[np.float32]:  # [N, D]
    """Return the uncalibrated std over views and snapshots, in the targets' units."""
    generator = Generator(trainer.device).manual_seed(trainer.run.seed)
    views = [_predict_view(trainer, samples, generator) for _ in range(NUM_VIEWS)]
    stacked = np.concatenate([np.stack(views), snapshots[-NUM_LAST_SNAPSHOTS:]])
    return np.asarray(stacked.std(axis=0, dtype=np.float64), dtype=np.float32)


@torch.no_grad()
def _predict_view(trainer: Trainer, samples: Samples, generator: Generator) -> NDArray[np.float32]:
    """Predict the targets from one weak view of every row, or from a strong view of texts."""
    task, splits, targets = trainer.task, trainer.splits, []
    augment = trainer.run.data.weak if splits.vocabulary is None else trainer.run.data.words
    assert isinstance(task, Regression) and isinstance(samples.x, Tensor)
    for raw in samples.x.split(MAX_CHUNK_ROWS):
        raw = raw if splits.normalization is None else raw.to(splits.normalization.mean.dtype)
        view, affine_map = splits.make_view(augment, raw, generator)
        predictions = trainer.predict(Samples(view, torch.empty(len(view), device=trainer.device)))
        inverse = None if affine_map is None else affine_map.inverse()
        targets.append(task.decode(task.transport_label(predictions, inverse)))
    return torch.cat(targets).float().cpu().numpy()


def assemble_fit(
    data: PreparedData,
    trained: list[TrainedCandidate],
    choices: tuple[Choice, ...],
    source_info: dict[str, Any],
) -> tuple[FitArtifact, FitRows]:
    """Select and calibrate on the validation rows, and collect what the other commands need."""
    source, best = data.source, _select_candidate(trained, data)
    std = np.asarray(best.std) if best.std else None
    rows = FitRows(
        ids=source.ids,
        split_names=data.split_names,
        given_labels=source.given_labels,
        outputs={t.candidate.name: t.outputs for t in trained},
        change_counts=count_label_changes(best.snapshots, std),
        predictive_std=best.predictive_std,
        sizes=source.sizes,
    )
    description, is_unlabeled = best.metric_description, data.split_names == "unlabeled"
    if source.points:
        description += f", resized to {best.shape[1]} × {best.shape[2]} pixels"
    fitted = FitArtifact(
        source=source_info,
        inputs=data.preprocessor.to_json(),
        shape=best.shape,
        classes=source.classes,
        targets=source.target_names,
        has_landmarks=source.points,
        metric_name=best.metric_name,
        metric_description=description,
        choices=choices,
        notes=source.notes,
        candidates=tuple(t.candidate for t in trained),
        selected_name=best.candidate.name,
        num_snapshots=len(best.snapshots),
        target_mean=best.mean,
        target_std=best.std,
        covariate_shift_auc=compute_covariate_shift_auc(data.x, is_unlabeled, seed=0),
        mask_rate=_compute_mask_rate(trained[-1], is_unlabeled),
        **_calibrate(best, rows),
    )
    return add_previews(fitted, rows, source), rows


def _select_candidate(trained: list[TrainedCandidate], data: PreparedData) -> TrainedCandidate:
    is_validation = data.split_names == "validation"
    truth = data.source.given_labels[is_validation]
    errors: dict[str, Floats] = {}
    for model in trained:
        predictions = model.outputs[is_validation].astype(np.float64)
        if truth.ndim == 1:
            row_errors = predictions.argmax(axis=1) != truth
        else:
            row_errors = (((predictions - truth) / model.std) ** 2).mean(axis=1)
        errors[model.candidate.name] = np.asarray(row_errors, dtype=np.float64)
    name = select_by_errors(errors)
    return next(model for model in trained if model.candidate.name == name)


def select_by_errors(errors: dict[str, Floats]) -> str:
    """Return the name of the candidate to select, given each one's errors on the same rows, [N].

    It is the first of l2i, baseline and supervised that lies within one standard error, paired row
    by row, of the one with the smallest errors: few rows do not separate candidates, and then the
    one that uses more of the data does better more often (docs/reference/fit.md).
    """
    best = min(errors, key=lambda name: (errors[name].mean(), PREFERENCE_ORDER.index(name)))

    def is_as_good(gaps: Floats) -> bool:
        if len(gaps) < 2:
            return True
        return bool(gaps.mean() <= ROUNDING_SLACK * gaps.std(ddof=1) / np.sqrt(len(gaps)))

    names = [name for name in PREFERENCE_ORDER if name in errors]
    return next(name for name in names if is_as_good(errors[name] - errors[best]))


def _calibrate(best: TrainedCandidate, rows: FitRows) -> dict[str, Any]:
    """Fit the temperature, or the scale of the predictive std, on the validation rows."""
    is_validation = rows.split_names == "validation"
    outputs, labels = best.outputs[is_validation], rows.given_labels[is_validation]
    if best.predictive_std is None:
        return {"temperature": fit_temperature(outputs, labels)}
    return {"std_scale": fit_std_scale(outputs - labels, best.predictive_std[is_validation])}


def _compute_mask_rate(last: TrainedCandidate, is_unlabeled: NDArray[np.bool_]) -> float | None:
    """Return the share of unlabelled rows that pass the method's confidence mask."""
    if last.threshold is None or last.candidate.name == "supervised" or not is_unlabeled.any():
        return None
    logits = last.outputs[is_unlabeled].astype(np.float64)
    confidence = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return float((confidence >= last.threshold).mean())


def compute_covariate_shift_auc(
    x: Tensor, is_unlabeled: NDArray[np.bool_], seed: int
) -> float | None:
    """Return how well a linear classifier tells labelled from unlabelled rows: its ROC AUC, 5-fold.

    0.5 means not at all; None means that there are too few rows of either kind.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    generator = np.random.default_rng(seed)
    groups = [np.flatnonzero(mask) for mask in (is_unlabeled, ~is_unlabeled)]
    row_groups = [generator.permutation(rows)[:MAX_ROWS_PER_GROUP] for rows in groups]
    if min(map(len, row_groups)) < MIN_ROWS_PER_GROUP:
        return None
    indices = np.concatenate(row_groups)
    inputs, labels = x[torch.as_tensor(indices)], is_unlabeled[indices]
    is_text = inputs.ndim == 2 and not inputs.is_floating_point()
    make_classifier = _make_text_classifier if is_text else _make_dense_classifier
    classifier, features = make_classifier(inputs)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    return float(cross_val_score(classifier, features, labels, cv=folds, scoring="roc_auc").mean())


def _make_dense_classifier(x: Tensor) -> tuple[Any, Any]:
    """Return a classifier of table rows or small images, and its features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pooled = F.adaptive_avg_pool2d(x.float(), POOLED_SIDE) if x.ndim == 4 else x.float()
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000)
    return make_pipeline(StandardScaler(), model), pooled.flatten(1).numpy()


def _make_text_classifier(ids: Tensor) -> tuple[Any, Any]:
    """Return a classifier of texts [L] by their tokens, and the token counts."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    count, length = ids.shape
    indices = (np.repeat(np.arange(count), length), ids.flatten().numpy())
    token_counts = csr_matrix((np.ones(count * length, dtype=np.float32), indices))  # sums repeats
    model = LogisticRegression(class_weight="balanced")
    return make_pipeline(TfidfTransformer(sublinear_tf=True), model), token_counts
