"""Fit a table: choose a model by cross-validation over all labels, and refit it on all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.candidates.base import Floats, Progress, Score, predict
from l2i.candidates.calibration import compute_interval_factors
from l2i.candidates.catalog import check_names
from l2i.candidates.choice import TableChoice, choose_for_table
from l2i.candidates.distance import (
    LabeledDistance,
    compute_stds,
    find_foreign_limit,
    fit_distance,
    scale_by_distance,
)
from l2i.candidates.network import Network
from l2i.candidates.selection import AVERAGE_NAME, Selection
from l2i.candidates.storage import describe_model
from l2i.config import Run
from l2i.errors import InputError
from l2i.files.output import ProgressCallback, write_atomic
from l2i.fit.artifact import FINAL, MODEL_FILE, Candidate, Choice, FitArtifact, FitRows
from l2i.fit.candidates import add_previews, compute_covariate_shift_auc
from l2i.fit.formatting import format_metric, pluralize
from l2i.fit.options import FitOptions
from l2i.fit.readers.source import Source
from l2i.fit.split import PreparedData
from l2i.fit.table_record import FolderRecord
from l2i.tasks import Classification
from l2i.training.setup import use_threads

NETWORK_FLAGS = "--method, --validation and the settings of networks"
MANY_ROWS = 10_000  # rows of a table, from which the default time is longer
DEFAULT_MINUTES, DEFAULT_MINUTES_MANY_ROWS = 1.0, 3.0


@dataclass(frozen=True, kw_only=True)
class ErrorScale:
    """How large errors of targets are, by those of labelled rows out of fold."""

    std: tuple[float, ...]  # [D], in the targets' units, at the usual distance to labelled rows
    by_distance: bool
    factors: tuple[float, ...]  # [D], multiples of a std that cover 90 % of new targets


@dataclass(frozen=True, kw_only=True)
class _Outputs:
    """Outputs of every row, and how far they may be off."""

    final: NDArray[Any]  # [N, C] logits, or [N, D] targets in their units
    by_candidate: dict[str, NDArray[Any]]  # likewise, NaN where a row was not predicted
    predictive_std: NDArray[np.float32] | None  # [N, D]
    errors: ErrorScale | None
    is_foreign: NDArray[np.bool_]  # [N]


def choose_minutes(options: FitOptions, num_rows: int) -> float:
    """Return the time after which no candidate is begun: the user's, or the default."""
    if options.minutes is not None:
        return options.minutes
    return DEFAULT_MINUTES if num_rows <= MANY_ROWS else DEFAULT_MINUTES_MANY_ROWS


def check_table_options(source: Source, options: FitOptions, *, is_cross_validated: bool) -> None:
    """Check options that apply to tables whose model is chosen by cross-validation."""
    if options.minutes is not None and not options.minutes > 0:
        raise InputError(f"--minutes {options.minutes:g} must be more than 0, such as 1")
    defaults = FitOptions()
    for name in ("candidates", "minutes", "balance", "group"):
        if getattr(options, name) != getattr(defaults, name) and not is_cross_validated:
            problem = f"--{name} applies to tables whose models are compared by cross-validation"
            fix = f"remove it, or remove {NETWORK_FLAGS}" if source.is_table else "remove it"
            raise InputError(f"{problem}; {fix}")
    if is_cross_validated:
        check_names(
            options.candidates, "regression" if source.classes is None else "classification"
        )
    if options.balance and source.classes is None:
        raise InputError("--balance applies to classes, not to numbers; remove it")
    if source.groups is not None:
        count = len(np.unique(source.groups[~source.is_unlabeled]))
        if count < 2:
            problem = f"group column '{options.group}' has one group among the labelled rows"
            raise InputError(f"{problem}; label rows of other groups, or remove --group")


def fit_table(
    data: PreparedData,
    options: FitOptions,
    run: Run,
    folder: Path,
    network_choices: tuple[Choice, ...],
    source_info: dict[str, Any],
    notify: ProgressCallback,
) -> tuple[FitArtifact, FitRows]:
    """Compare the candidates, refit the chosen one, save it, and predict every row."""
    minutes = choose_minutes(options, len(data.x))
    with use_threads(run.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        choice = choose_for_table(
            data.splits,
            run,
            options.candidates,
            minutes=minutes,
            notify=_make_reporter(notify, minutes, data),
            groups=_take_groups(data),
            is_balanced=options.balance,
            record=FolderRecord(folder),
        )
        if choice is None:
            fix = "label more rows, or leave out --candidates"
            raise InputError(f"too few labelled rows for these candidates; {fix}")
        selection = choice.selection
        notify(f"fitting {selection.title} to all {pluralize(len(selection.rows.x), 'label')}")
        model = selection.fit()
        distance, among = fit_distance(selection.rows.x, run.seed)
        outputs = _predict_rows(data, choice, model, distance, among)
    _save_model(folder, model, distance)
    return _assemble(
        data, choice, outputs, model, among, minutes, options, network_choices, source_info
    )


def _take_groups(data: PreparedData) -> NDArray[np.str_] | None:
    groups = data.source.groups
    if groups is None:
        return None
    return np.asarray(groups[data.split_names == "labeled"])


def _make_reporter(
    notify: ProgressCallback, minutes: float, data: PreparedData
) -> Callable[[Progress], None]:
    """Return a callback that says which candidate was scored, how, and what time is left."""
    truth = data.source.given_labels[data.split_names == "labeled"]
    mean, std = (0.0, 1.0) if data.splits.classes else (truth.mean(axis=0), truth.std(axis=0))
    name = "error" if data.splits.classes else "RMSE"

    def report(progress: Progress) -> None:
        event = progress.event
        number = f"candidate {progress.number} of {progress.total}"
        if not isinstance(event, Score):
            notify(f"{number}, {event.name}: skipped, {event.reason}")
            return
        left = max(0.0, 60 * minutes - progress.seconds)
        times = f"{event.seconds:.1f} s, {left:.0f} s left"
        result = "too few labels for folds"
        if len(event.outputs):
            error = _compute_metric(data, event.outputs[0] * std + mean, truth)
            unit = " %" if data.splits.classes else ""
            result = f"{name} {format_metric(error, f'{name}{unit}')}{unit}"
        notify(f"{number}, {event.candidate.title}: {result} ({times})")

    return report


def _predict_rows(
    data: PreparedData,
    choice: TableChoice,
    model: torch.nn.Module,
    distance: LabeledDistance,
    among: Floats,
) -> _Outputs:
    """Return outputs of all rows by models that have not seen the row's label.

    Labelled rows are predicted out of fold, unlabelled ones by models that did not train on them,
    and test rows by the model that is saved.
    """
    names, mean, std = data.split_names, choice.mean + data.offset, choice.std
    is_classifier = data.splits.classes is not None
    is_labeled, is_unlabeled = names == "labeled", names == "unlabeled"
    raw = predict(model, data.x.numpy())
    if choice.selection.folds:
        raw[is_labeled] = choice.outputs
    imputed = choice.predict_unlabeled()
    if imputed is not None:
        raw[is_unlabeled] = imputed.numpy()

    def decode(values: Floats) -> NDArray[Any]:
        return values.astype(np.float32) if is_classifier else values * std + mean

    relative = distance.measure(data.x.numpy())
    relative[is_labeled] = among
    is_foreign = is_unlabeled & (relative > find_foreign_limit(among))
    errors = None if is_classifier else _estimate_errors(choice, among)
    predictive_std = (
        None
        if errors is None
        else compute_stds(errors.std, relative, by_distance=errors.by_distance).astype(np.float32)
    )
    return _Outputs(
        final=decode(raw),
        by_candidate={
            name: decode(_spread(score.outputs, is_labeled))
            for name, score in choice.selection.scores.items()
            if len(score.outputs)
        },
        predictive_std=predictive_std,
        errors=errors,
        is_foreign=is_foreign,
    )


def _spread(outputs: Floats, is_labeled: NDArray[np.bool_]) -> Floats:
    """Put outputs of labelled rows in their places, NaN elsewhere."""
    values = np.full((len(is_labeled), outputs.shape[2]), np.nan)
    values[is_labeled] = outputs[0]
    return values


def _estimate_errors(choice: TableChoice, among: Floats) -> ErrorScale:
    """Fit stds and intervals to the errors of labelled rows out of fold.

    Without folds nothing is known of the errors: they are as large as those of the mean.
    """
    errors = choice.outputs - choice.selection.rows.y
    scale = scale_by_distance(errors, among)
    size = np.maximum(np.sqrt(np.square(errors / scale).mean(axis=0)), 1e-6)
    factors = compute_interval_factors(errors, size * scale)
    is_by_distance = bool((scale != 1).any())
    std = tuple((size * choice.std).tolist())
    return ErrorScale(std=std, by_distance=is_by_distance, factors=tuple(factors.tolist()))


def _save_model(folder: Path, model: torch.nn.Module, distance: LabeledDistance) -> None:
    from safetensors.torch import save

    tensors = {f"model.{name}": t for name, t in describe_model(model)[1].items()}
    tensors |= {f"distance.{name}": t for name, t in distance.state_dict().items()}
    write_atomic(folder / MODEL_FILE, save({n: t.contiguous() for n, t in tensors.items()}))


def _assemble(
    data: PreparedData,
    choice: TableChoice,
    outputs: _Outputs,
    model: torch.nn.Module,
    among: Floats,
    minutes: float,
    options: FitOptions,
    network_choices: tuple[Choice, ...],
    source_info: dict[str, Any],
) -> tuple[FitArtifact, FitRows]:
    """Collect what the other commands need."""
    source, selection = data.source, choice.selection
    is_classifier = source.classes is not None
    rows = FitRows(
        ids=source.ids,
        split_names=data.split_names,
        given_labels=source.given_labels,
        outputs={**outputs.by_candidate, FINAL: outputs.final},
        change_counts=np.zeros(len(source.ids), dtype=np.int64),
        predictive_std=outputs.predictive_std,
        is_foreign=outputs.is_foreign,
    )
    description = Classification.metric_description
    if not is_classifier:
        unit = "standard deviations of the labelled targets"
        unit = unit if len(source.target_names) > 1 else "the target's units"
        description = f"root mean squared error, in {unit}"
    limit = find_foreign_limit(among)
    fitted = FitArtifact(
        source=source_info,
        inputs=data.preprocessor.to_json(),
        shape=tuple(data.x.shape[1:]),
        classes=source.classes,
        targets=source.target_names,
        metric_name=Classification.metric_name if is_classifier else "RMSE",
        metric_description=description,
        choices=_explain_choice(data, selection, minutes, options, network_choices),
        notes=source.notes,
        candidates=_list_candidates(data, choice, outputs),
        selected_name=selection.name,
        num_snapshots=0,
        num_folds=len(selection.folds[0]) if selection.folds else 0,
        model=describe_model(model)[0],
        skipped=tuple(f"{s.name}: {s.reason}" for s in selection.skipped),
        temperature=choice.temperature,
        interval_factors=outputs.errors.factors if outputs.errors else (),
        error_std=outputs.errors.std if outputs.errors else (),
        std_by_distance=outputs.errors is not None and outputs.errors.by_distance,
        foreign_limit=limit if np.isfinite(limit) else None,
        target_mean=() if is_classifier else tuple((choice.mean + data.offset).tolist()),
        target_std=() if is_classifier else tuple(choice.std.tolist()),
        covariate_shift_auc=compute_covariate_shift_auc(
            data.x, data.split_names == "unlabeled", seed=0
        ),
    )
    return add_previews(fitted, rows, source), rows


def _list_candidates(
    data: PreparedData, choice: TableChoice, outputs: _Outputs
) -> tuple[Candidate, ...]:
    """Return each candidate with its metric out of fold, and the chosen average if it is one."""
    selection = choice.selection
    is_labeled = data.split_names == "labeled"

    def measure(values: NDArray[Any], mask: NDArray[np.bool_]) -> float:
        return _compute_metric(data, values[mask], data.source.given_labels[mask])

    candidates = []
    for name, score in selection.scores.items():
        values = outputs.by_candidate.get(name)
        metric = float("nan") if values is None else measure(values, is_labeled)
        level, title = int(score.candidate.level), score.candidate.title
        loss = float("nan") if values is None else score.loss
        candidates.append(_make_candidate(name, title, metric, loss, score.seconds, level))
    if selection.name == AVERAGE_NAME:
        values = outputs.final.copy()
        values[is_labeled] = _average_members(selection, choice, data)
        metric = measure(values, is_labeled)
        title, level = selection.title, int(selection.level)
        loss = selection.loss
        candidates.append(_make_candidate(AVERAGE_NAME, title, metric, loss, 0.0, level))
    is_test = data.split_names == "test"
    if not is_test.any():
        return tuple(candidates)
    test_metric = measure(outputs.final, is_test)
    return tuple(
        dataclasses.replace(c, test_metric=test_metric) if c.name == selection.name else c
        for c in candidates
    )


def _average_members(selection: Selection, choice: TableChoice, data: PreparedData) -> Floats:
    values = selection.outputs
    if data.splits.classes is not None:
        return values
    return np.asarray(values * choice.std + choice.mean + data.offset)


def _make_candidate(
    name: str, title: str, metric: float, loss: float, seconds: float, level: int
) -> Candidate:
    return Candidate(
        name=name,
        title=title,
        validation_metric=metric,
        validation_cost=loss,
        test_metric=None,
        steps=0,
        seconds=seconds,
        level=level,
    )


def _compute_metric(data: PreparedData, values: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the error in per cent, or the RMSE; of several targets in their stds."""
    if data.splits.classes is not None:
        return float(100 * (values.argmax(axis=1) != truth).mean())
    labels = data.source.given_labels[data.split_names == "labeled"]
    unit = labels.std(axis=0) if truth.shape[1] > 1 else 1.0
    return float(np.sqrt(np.square((values - truth) / unit).mean()))


def _explain_choice(
    data: PreparedData,
    selection: Selection,
    minutes: float,
    options: FitOptions,
    network_choices: tuple[Choice, ...],
) -> tuple[Choice, ...]:
    """Return how the model was chosen, and how a network was trained if it is one."""
    num_labels = pluralize(len(selection.rows.x), "labelled row")
    folds = "none"
    if selection.folds:
        repeats = len(selection.folds)
        folds = f"{len(selection.folds[0])}"
        folds += f", repeated {repeats} times" if repeats > 1 else ""
    source = "set by you" if options.minutes is not None else f"{len(data.x):,} rows"
    chosen = [
        Choice(name="folds", value=folds, reason=num_labels),
        Choice(name="minutes", value=f"{minutes:g}", reason=source),
        Choice(
            name="candidates",
            value=", ".join(selection.scores),
            reason="set by you" if options.candidates else "all that suit the table, in time",
        ),
    ]
    if options.balance:
        reason = "set by you: every class counts the same"
        chosen.append(Choice(name="balance", value="on", reason=reason))
    chosen_candidates = [selection.scores[name].candidate for name in selection.chosen]
    is_network = any(isinstance(candidate, Network) for candidate in chosen_candidates)
    return (*chosen, *(network_choices if is_network else ()))
