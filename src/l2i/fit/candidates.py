"""Which of the networks to keep, by the validation rows alone.

MERGED:
`l2i fit`: three networks on one split of a person's data, the best by validation rows, and what is told of it.

MERGED:
Which of the networks to keep, by the validation rows alone.

MERGED:
`l2i fit`: three networks on one split of a person's data, the best by validation rows, and what is told of it.

MERGED:
How imputed labels changed over training: what the averaged model said of every row, evaluation by evaluation.

MERGED:
How sure a target is: its spread over perturbed views of a row and over the averaged model's last snapshots.
Whether the unlabelled rows look like the labelled ones.
What trained candidates come to: figures, the choice, calibration, and what is kept of them.


"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.config import Run
from l2i.data.samples import Samples
from l2i.errors import InputError
from l2i.files.atomic import write_atomic
from l2i.files.npz import read_npy_array
from l2i.fit.artifact import PREFERENCE_ORDER, Candidate, Choice, FitArtifact, FitRows, RowPreview
from l2i.fit.impute import fit_std_scale, fit_temperature, impute
from l2i.tasks import Regression
from l2i.training.loop import EvalCallback
from l2i.training.run_dir import Result
from l2i.training.setup import compute_input_shape, param_dtype
from l2i.training.trainer import Trainer

if TYPE_CHECKING:
    from l2i.fit.readers.source import Source
    from l2i.fit.split import PreparedData

ROUNDING_SLACK = 1 + 1e-9  # one row's difference is one standard error, but for rounding


def _is_as_good(error_gaps: NDArray[np.float64]) -> bool:
    if len(error_gaps) < 2:
        return True
    return bool(error_gaps.mean() <= ROUNDING_SLACK * error_gaps.std(ddof=1) / np.sqrt(len(error_gaps)))


def select_by_errors(errors: dict[str, NDArray[np.float64]]) -> str:
    """The name of the candidate to keep, from each one's errors on the same rows, [N].

    It is the first of l2i, baseline and supervised that lies within one standard error, paired row by row, of the one
    with the least errors: few rows cannot tell candidates apart, and then what has learned from more does better more
    often (docs/own-data.md).
    """
    best = min(errors, key=lambda name: (errors[name].mean(), PREFERENCE_ORDER.index(name)))
    return next(name for name in PREFERENCE_ORDER if name in errors and _is_as_good(errors[name] - errors[best]))


APPROX_SNAPSHOTS = 10  # snapshots of a run, about
NUM_LAST_SNAPSHOTS = 5  # those that the spread of a target is taken over

SamplesFactory = Callable[[torch.device, torch.dtype], Samples]
"""All rows, brought to a device."""


def make_snapshot_writer(folder: Path, load_samples: SamplesFactory) -> EvalCallback:
    """Writes a snapshot of each row's label at some of the evaluations; a step that comes twice is the same again."""

    def write_snapshot(trainer: Trainer, step: int) -> None:
        run = trainer.run
        stride = max(1, run.steps // run.eval_every // APPROX_SNAPSHOTS) * run.eval_every
        if step % stride and step != run.steps:
            return
        buffer = io.BytesIO()
        np.save(buffer, predict_labels(trainer, load_samples(trainer.device, param_dtype(trainer.run))))
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{step:09d}.npy", buffer.getvalue())

    return write_snapshot


def predict_labels(trainer: Trainer, samples: Samples) -> NDArray[Any]:
    """Class numbers [N], or targets [N, D] in their units."""
    outputs = trainer.predict(samples)
    if isinstance(trainer.task, Regression):
        return trainer.task.decode(outputs).float().cpu().numpy()
    return outputs.argmax(dim=1).int().cpu().numpy()


def read_snapshots(folder: Path, steps: int) -> NDArray[Any]:
    """All snapshots of a run of so many steps, [S, N] or [S, N, D]."""
    try:
        paths = sorted(path for path in folder.glob("*.npy") if int(path.stem) <= steps)
        return np.stack([read_npy_array(path) for path in paths])
    except (OSError, ValueError):
        raise InputError(f"{folder} is damaged; fit again in another --out") from None


def count_label_changes(snapshots: NDArray[Any], std: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """How often each row's label changed from one snapshot to the next, [N].

    A target has changed where it moved by more than a tenth of the labelled targets' spread `std`.
    """
    if std is None:
        return np.asarray((snapshots[1:] != snapshots[:-1]).sum(axis=0), dtype=np.int64)
    has_moved = (np.abs(np.diff(snapshots, axis=0)) > 0.1 * std).any(axis=2)
    return np.asarray(has_moved.sum(axis=0), dtype=np.int64)


NUM_VIEWS = 8
MAX_CHUNK_ROWS = 256  # rows perturbed together: columns that are swapped are swapped among them


def predictive_std(trainer: Trainer, samples: Samples, snapshots: NDArray[Any]) -> NDArray[np.float32]:  # [N, D]
    """The standard deviation over views and snapshots, in the targets' units; uncalibrated."""
    generator = Generator(trainer.device).manual_seed(trainer.run.seed)
    views = [_predict_view(trainer, samples, generator) for _ in range(NUM_VIEWS)]
    stacked = np.concatenate([np.stack(views), snapshots[-NUM_LAST_SNAPSHOTS:]])
    return np.asarray(stacked.std(axis=0, dtype=np.float64), dtype=np.float32)


@torch.no_grad()
def _predict_view(trainer: Trainer, samples: Samples, generator: Generator) -> NDArray[np.float32]:
    """Targets of one weak view of every row, as targets of the row itself; of texts, of a strong view."""
    task, splits, targets = trainer.task, trainer.splits, []
    augment = trainer.run.data.weak if splits.vocabulary is None else trainer.run.data.strong
    assert isinstance(task, Regression) and isinstance(samples.x, Tensor)
    for raw in samples.x.split(MAX_CHUNK_ROWS):
        raw = raw if splits.normalization is None else raw.to(splits.normalization.mean.dtype)
        view, frame = splits.make_view(augment, raw, generator)
        predictions = trainer.predict(Samples(view, torch.empty(len(view), device=trainer.device)))
        targets.append(task.decode(task.transport_label(predictions, None if frame is None else frame.inverse())))
    return torch.cat(targets).float().cpu().numpy()


MIN_ROWS_PER_GROUP = 10  # rows of each kind, under which nothing can be said
MAX_ROWS_PER_GROUP = 1000  # rows of each kind that are looked at
POOLED_SIDE = 8  # pixels that images are shrunk to


def covariate_shift_auc(x: Tensor, is_unlabeled: NDArray[np.bool_], seed: int) -> float | None:
    """How well a linear classifier tells labelled from unlabelled rows: the area under its ROC curve, by 5 folds.

    0.5 is not at all. None where there are too few rows of either kind.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    generator = np.random.default_rng(seed)
    row_groups = [generator.permutation(np.flatnonzero(mask))[:MAX_ROWS_PER_GROUP] for mask in (is_unlabeled, ~is_unlabeled)]
    if min(map(len, row_groups)) < MIN_ROWS_PER_GROUP:
        return None
    row_indices = np.concatenate(row_groups)
    inputs = x[torch.as_tensor(row_indices)]
    is_text = inputs.ndim == 2 and not inputs.is_floating_point()
    classifier, features = make_text_classifier(inputs) if is_text else make_dense_classifier(inputs.float())
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    scores = cross_val_score(classifier, features, is_unlabeled[row_indices], cv=folds, scoring="roc_auc")
    return float(scores.mean())


def make_dense_classifier(x: Tensor) -> tuple[Any, NDArray[np.float32]]:
    """A classifier of a table's inputs or of small images, and what it is shown."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pooled = F.adaptive_avg_pool2d(x, POOLED_SIDE) if x.ndim == 4 else x
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000))
    return classifier, pooled.flatten(1).numpy()


def make_text_classifier(ids: Tensor) -> tuple[Any, Any]:
    """A classifier of texts by their tokens, wherever they stand, and how often each text [L] has each of them."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    count, length = ids.shape
    indices = (np.repeat(np.arange(count), length), ids.flatten().numpy())
    token_counts = csr_matrix((np.ones(count * length, dtype=np.float32), indices))  # those of one place are added
    return make_pipeline(TfidfTransformer(sublinear_tf=True), LogisticRegression(class_weight="balanced")), token_counts


PREVIEWS_PER_END, PREVIEWS_PER_CLASS = 8, 3  # rows that a report shows, of the most and of the least sure; and of one class in a turn


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
    def from_trainer(name: str, trainer: Trainer, result: Result, data: PreparedData, folder: Path) -> TrainedCandidate:
        """Let the averaged model say what it thinks of every row."""
        task, run = trainer.task, trainer.run
        rows = data.rows_to_device(trainer.device, param_dtype(run))
        outputs, snapshots = trainer.predict(rows), read_snapshots(folder, run.steps)
        regression = task if isinstance(task, Regression) else None
        decoded_outputs = outputs.float() if regression is None else regression.decode(outputs).double()
        return TrainedCandidate(
            candidate=evaluate_candidate(name, trainer, result),
            outputs=decoded_outputs.cpu().numpy() + (0 if regression is None else data.offset),
            snapshots=snapshots,
            predictive_std=None if regression is None else predictive_std(trainer, rows, snapshots),
            mean=() if regression is None else tuple((regression.mean.double().cpu().numpy() + data.offset).tolist()),
            std=() if regression is None else tuple(regression.std.tolist()),
            threshold=getattr(run.method, "threshold", None),
            shape=compute_input_shape(run, trainer.splits),
            metric_name=task.metric_name,
            metric_description=task.metric_description,
        )


def make_title(name: str, run: Run) -> str:
    """A candidate in words."""
    return f"{run.method.name} + L2I" if name == "l2i" else run.method.name


def evaluate_candidate(name: str, trainer: Trainer, result: Result) -> Candidate:
    """The figures of the averaged model that is kept."""
    task, metrics = trainer.task, trainer.compute_metrics()

    def compute_mean_loss(samples: Samples) -> float:
        return float(task.loss(trainer.predict(samples), task.encode(samples.y)))

    return Candidate(
        name=name,
        title=make_title(name, trainer.run),
        validation_metric=metrics["validation"][task.metric_name],
        validation_cost=compute_mean_loss(trainer.splits.validation),
        test_metric=metrics["test"][task.metric_name] if "test" in metrics else None,
        steps=result.steps,
        seconds=result.seconds,
    )


def assemble_fit(
    data: PreparedData, trained: list[TrainedCandidate], choices: tuple[Choice, ...], source: dict[str, Any]
) -> tuple[FitArtifact, FitRows]:
    """Choose by the validation rows, calibrate on them, and gather what the other commands need."""
    best = select_candidate(trained, data)
    rows = collect_rows(data, trained, best)
    fitted = FitArtifact(
        source=source,
        inputs=data.preprocessor.to_json(),
        shape=best.shape,
        classes=data.source.classes,
        targets=data.source.target_names,
        has_landmarks=data.source.points,
        metric_name=best.metric_name,
        metric_description=best.metric_description + (f", resized to {best.shape[1]} × {best.shape[2]} pixels" if data.source.points else ""),
        choices=choices,
        notes=data.source.notes,
        candidates=tuple(t.candidate for t in trained),
        selected_name=best.candidate.name,
        num_snapshots=len(best.snapshots),
        target_mean=best.mean,
        target_std=best.std,
        covariate_shift_auc=covariate_shift_auc(data.x, data.split_names == "unlabeled", seed=0),
        mask_rate=compute_mask_rate(trained, data.split_names),
        **calibrate(best, rows),
    )
    return add_previews(fitted, rows, data.source), rows


def collect_rows(data: PreparedData, trained: list[TrainedCandidate], best: TrainedCandidate) -> FitRows:
    """What is kept of every row."""
    return FitRows(
        ids=data.source.ids,
        split_names=data.split_names,
        given_labels=data.source.given_labels,
        outputs={t.candidate.name: t.outputs for t in trained},
        change_counts=count_label_changes(best.snapshots, np.asarray(best.std) if best.std else None),
        predictive_std=best.predictive_std,
        sizes=data.source.sizes,
    )


def select_candidate(trained: list[TrainedCandidate], data: PreparedData) -> TrainedCandidate:
    """The candidate that the validation rows speak for."""
    is_validation, labels = data.split_names == "validation", data.source.given_labels
    errors: dict[str, NDArray[np.float64]] = {}
    for model in trained:
        predictions, truth = model.outputs[is_validation].astype(np.float64), labels[is_validation]
        row_errors = predictions.argmax(axis=1) != truth if labels.ndim == 1 else (((predictions - truth) / model.std) ** 2).mean(axis=1)
        errors[model.candidate.name] = np.asarray(row_errors, dtype=np.float64)
    name = select_by_errors(errors)
    return next(model for model in trained if model.candidate.name == name)


def calibrate(best: TrainedCandidate, rows: FitRows) -> dict[str, Any]:
    """Temperature or scale of the spread, from the validation rows."""
    is_validation = rows.split_names == "validation"
    if best.predictive_std is None:
        return {"temperature": fit_temperature(best.outputs[is_validation], rows.given_labels[is_validation])}
    return {"std_scale": fit_std_scale(best.outputs[is_validation] - rows.given_labels[is_validation], best.predictive_std[is_validation])}


def compute_mask_rate(trained: list[TrainedCandidate], split_names: NDArray[np.str_]) -> float | None:
    """The share of unlabelled rows that the method, with L2I if there is that, is confident enough of."""
    last, is_unlabeled = trained[-1], split_names == "unlabeled"
    if last.threshold is None or last.candidate.name == "supervised" or not is_unlabeled.any():
        return None
    logits = last.outputs[is_unlabeled].astype(np.float64)
    confidence = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    return float((confidence >= last.threshold).mean())


def add_previews(fitted: FitArtifact, rows: FitRows, source: Source) -> FitArtifact:
    """With the rows whose labels are the most and the least sure."""
    imputations = impute(fitted, rows)
    imputed_rows = np.flatnonzero(imputations.is_imputed)
    order = imputed_rows[np.argsort(-imputations.confidence[imputed_rows], kind="stable")]
    most_confident = interleave_classes(order, imputations.labels) if fitted.classes is not None else order
    preview_rows = list(dict.fromkeys([*most_confident[:PREVIEWS_PER_END].tolist(), *order[-PREVIEWS_PER_END:].tolist()]))
    previews: tuple[RowPreview, ...] = tuple(source.make_sample(row) for row in preview_rows)
    return dataclasses.replace(fitted, previews=previews)


def interleave_classes(order: NDArray[np.intp], labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Rows in order, with no more than a few of a class before others have had their turn."""
    turns = np.zeros(len(order), dtype=np.int64)
    for label in np.unique(labels[order]):
        of_class = labels[order] == label
        turns[of_class] = np.arange(of_class.sum()) // PREVIEWS_PER_CLASS
    return order[np.argsort(turns, kind="stable")]
