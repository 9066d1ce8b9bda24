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
from l2i.candidates.catalog import Inputs, check_names
from l2i.candidates.choice import TableChoice, choose_for_table
from l2i.candidates.distance import LabeledDistance, find_foreign, find_foreign_limit, fit_distance
from l2i.candidates.error_scale import ErrorScale, fit_error_scale
from l2i.candidates.network import Network
from l2i.candidates.selection import AVERAGE_NAME, Selection
from l2i.candidates.storage import describe_model
from l2i.config import Run
from l2i.errors import InputError
from l2i.files.output import ProgressCallback, write_atomic
from l2i.fit.artifact import FINAL, MODEL_FILE, Candidate, Choice, FitArtifact, FitRows
from l2i.fit.candidates import compute_covariate_shift_auc
from l2i.fit.formatting import format_metric, pluralize
from l2i.fit.options import FitOptions
from l2i.fit.previews import add_previews
from l2i.fit.projection import save_projection
from l2i.fit.readers.source import Source
from l2i.fit.split import PreparedData
from l2i.fit.table_metric import TableMetric, choose_metric
from l2i.fit.table_record import FolderRecord
from l2i.training.setup import use_threads

NETWORK_FLAGS = "--method, --validation and the settings of networks"
MANY_ROWS = 10_000  # rows of a table, from which the default time is longer
DEFAULT_MINUTES, DEFAULT_MINUTES_MANY_ROWS, DEFAULT_MINUTES_IMAGES = 1.0, 3.0, 10.0


@dataclass(frozen=True, kw_only=True)
class _TableFit:
    """A chosen and fitted model, and what it says of every row."""

    choice: TableChoice
    model: torch.nn.Module
    distance: LabeledDistance
    metric: TableMetric
    final: NDArray[Any]
    """[N, C] logits, or [N, D] targets in their units, by models that have not seen the label."""
    by_candidate: dict[str, NDArray[Any]]
    """Likewise of each candidate, NaN where a row was not predicted."""
    predictive_std: NDArray[np.float32] | None
    """[N, D]."""
    errors: ErrorScale | None
    is_foreign: NDArray[np.bool_]
    """[N]."""
    foreign_limit: float


def choose_minutes(options: FitOptions, num_rows: int, *, are_images: bool = False) -> float | None:
    """Return the time after which no candidate is begun: the user's, or the default.

    None for no limit: candidates that the user names are all tried.
    """
    if options.minutes is not None or options.candidates:
        return options.minutes
    if are_images:
        return DEFAULT_MINUTES_IMAGES
    return DEFAULT_MINUTES if num_rows <= MANY_ROWS else DEFAULT_MINUTES_MANY_ROWS


def get_kind_of_inputs(source: Source) -> Inputs:
    """Return what candidates there are for."""
    return "features" if source.has_features else "columns"


def check_table_options(source: Source, options: FitOptions, *, is_cross_validated: bool) -> None:
    """Check options that apply to tables whose model is chosen by cross-validation."""
    if options.minutes is not None and not options.minutes > 0:
        raise InputError(f"--minutes {options.minutes:g} must be more than 0, such as 1")
    defaults = FitOptions()
    for name in ("candidates", "minutes", "balance", "group"):
        if getattr(options, name) != getattr(defaults, name) and not is_cross_validated:
            problem = f"--{name} applies to models that are compared by cross-validation"
            can_have = source.is_table or isinstance(source.inputs, np.ndarray)
            fix = f"remove it, or remove {NETWORK_FLAGS}" if can_have else "remove it"
            raise InputError(f"{problem}; {fix}")
    if source.has_features and (options.validation is not None or not options.baselines):
        name = "--no-baselines" if options.validation is None else "--validation"
        problem = f"{name} applies to networks that are trained on pixels"
        raise InputError(f"{problem}; remove it, or add --encoder none")
    if is_cross_validated:
        task = "regression" if source.classes is None else "classification"
        check_names(options.candidates, task, get_kind_of_inputs(source))
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
    are_images = data.source.has_features
    minutes = choose_minutes(options, len(data.x), are_images=are_images)
    record = FolderRecord(folder)
    metric = choose_metric(data, is_balanced=options.balance)
    if record.count():
        notify(f"resuming: {pluralize(record.count(), 'candidate')} done before")
    with use_threads(run.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        choice = choose_for_table(
            data.splits,
            run,
            options.candidates,
            minutes=minutes,
            notify=_make_reporter(notify, minutes, data, metric),
            groups=_take_groups(data, "labeled"),
            unlabeled_groups=_take_groups(data, "unlabeled"),
            is_balanced=options.balance,
            record=record,
            inputs=get_kind_of_inputs(data.source),
        )
        if choice is None:
            fix = "label more rows, or leave out --candidates"
            raise InputError(f"too few labelled rows for these candidates; {fix}")
        selection = choice.selection
        notify(f"fitting {selection.title} to all {pluralize(len(selection.rows.x), 'label')}")
        fitted = _fit_chosen(data, choice, metric)
    _save_model(folder, fitted)
    if data.projection is not None:
        save_projection(folder, data.projection)
    choices = _explain_choice(data, selection, minutes, options, network_choices)
    return _assemble(data, fitted, choices, source_info)


def _take_groups(data: PreparedData, split: str) -> NDArray[np.str_] | None:
    groups = data.source.groups
    return None if groups is None else np.asarray(groups[data.split_names == split])


def _make_reporter(
    notify: ProgressCallback, minutes: float | None, data: PreparedData, metric: TableMetric
) -> Callable[[Progress], None]:
    """Return a callback that says which candidate was scored, how, and what time is left."""
    truth = data.source.given_labels[data.split_names == "labeled"]
    mean, std = (0.0, 1.0) if data.splits.classes else (truth.mean(axis=0), truth.std(axis=0))
    name, unit = metric.name.partition(" (%)")[0], " %" if "%" in metric.name else ""

    def report(progress: Progress) -> None:
        event = progress.event
        number = f"candidate {progress.number} of {progress.total}, {progress.title}"
        if not isinstance(event, Score):
            notify(f"{number}: skipped, {event.reason}")
            return
        times = f"{event.seconds:.1f} s"
        if minutes is not None:
            times += f", {max(0.0, 60 * minutes - progress.seconds):.0f} s left"
        result = "too few labels for folds"
        if len(event.outputs):
            value = metric.compute(event.outputs[0] * std + mean, truth)
            result = f"{name} {format_metric(value, metric.name)}{unit}"
        notify(f"{number}: {result} ({times})")

    return report


def _fit_chosen(data: PreparedData, choice: TableChoice, metric: TableMetric) -> _TableFit:
    """Fit what was chosen to all labels, and predict all rows by models that have not seen them.

    Labelled rows are predicted out of fold, unlabelled ones by models that did not train on them,
    and test rows by the model that is saved.
    """
    selection = choice.selection
    model = selection.fit()
    distance, among = fit_distance(selection.rows.x, selection.seed, selection.rows.groups)
    is_labeled, is_unlabeled = (data.split_names == s for s in ("labeled", "unlabeled"))
    raw = predict(model, data.x.numpy())
    if selection.folds:
        raw[is_labeled] = choice.outputs
    imputed = choice.predict_unlabeled()
    if imputed is not None:
        raw[is_unlabeled] = imputed.numpy()
    relative = distance.measure(data.x.numpy())
    relative[is_labeled] = among
    errors, predictive_std = None, None
    if data.splits.classes is None:
        gaps = choice.outputs - selection.rows.y
        errors = fit_error_scale(gaps, raw[is_labeled], among, choice.std)
        predictive_std = errors.compute_stds(relative, raw).astype(np.float32)
    x = data.x.numpy()
    is_foreign = is_unlabeled.copy()
    is_foreign[is_unlabeled] = find_foreign(
        distance,
        among,
        x[is_labeled],
        x[is_unlabeled],
        selection.seed,
        selection.rows.unlabeled_groups,
    )
    return _TableFit(
        choice=choice,
        model=model,
        distance=distance,
        metric=metric,
        final=_decode(raw, data, choice),
        by_candidate=_collect_outputs(data, choice, is_labeled),
        predictive_std=predictive_std,
        errors=errors,
        is_foreign=is_foreign,
        foreign_limit=find_foreign_limit(among),
    )


def _decode(raw: Floats, data: PreparedData, choice: TableChoice) -> NDArray[Any]:
    """Return logits as they are saved, or targets in their units."""
    if data.splits.classes is not None:
        return raw.astype(np.float32)
    return np.asarray(raw * choice.std + choice.mean + data.offset)


def _collect_outputs(
    data: PreparedData, choice: TableChoice, is_labeled: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Return outputs of each candidate, and of the average if it was chosen, out of fold."""
    selection = choice.selection
    found = {n: s.outputs[0] for n, s in selection.scores.items() if len(s.outputs)}
    if selection.name == AVERAGE_NAME:
        found[AVERAGE_NAME] = selection.outputs
    spread = {}
    for name, outputs in found.items():
        values = np.full((len(is_labeled), outputs.shape[1]), np.nan)
        values[is_labeled] = outputs
        spread[name] = _decode(values, data, choice)
    return spread


def _save_model(folder: Path, fitted: _TableFit) -> None:
    from safetensors.torch import save

    tensors = {f"model.{name}": t for name, t in describe_model(fitted.model)[1].items()}
    tensors |= {f"distance.{name}": t for name, t in fitted.distance.state_dict().items()}
    write_atomic(folder / MODEL_FILE, save({n: t.contiguous() for n, t in tensors.items()}))


def _assemble(
    data: PreparedData, fitted: _TableFit, choices: tuple[Choice, ...], source_info: dict[str, Any]
) -> tuple[FitArtifact, FitRows]:
    """Collect what the other commands need."""
    source, choice, selection = data.source, fitted.choice, fitted.choice.selection
    is_regression, limit = source.classes is None, fitted.foreign_limit
    rows = FitRows(
        ids=source.ids,
        split_names=data.split_names,
        given_labels=source.given_labels,
        outputs={**fitted.by_candidate, FINAL: fitted.final},
        change_counts=np.zeros(len(source.ids), dtype=np.int64),
        predictive_std=fitted.predictive_std,
        is_foreign=fitted.is_foreign,
        groups=source.groups,
        sizes=source.sizes,
    )
    artifact = FitArtifact(
        source=source_info,
        inputs=data.preprocessor.to_json(),
        shape=tuple(data.x.shape[1:]),
        classes=source.classes,
        targets=source.target_names,
        has_landmarks=source.points,
        metric_name=fitted.metric.name,
        metric_description=fitted.metric.description,
        is_balanced=fitted.metric.is_balanced,
        class_shares=_measure_shares(selection) if fitted.metric.is_balanced else (),
        choices=choices,
        notes=source.notes,
        candidates=_list_candidates(data, fitted),
        selected_name=selection.name,
        num_snapshots=0,
        num_folds=len(selection.folds[0]) if selection.folds else 0,
        model=describe_model(fitted.model)[0],
        skipped=tuple(f"{s.name}: {s.reason}" for s in selection.skipped),
        temperature=choice.temperature,
        **_list_error_fields(fitted.errors),
        foreign_limit=limit if np.isfinite(limit) else None,
        target_mean=tuple((choice.mean + data.offset).tolist()) if is_regression else (),
        target_std=tuple(choice.std.tolist()) if is_regression else (),
        covariate_shift_auc=compute_covariate_shift_auc(
            data.x, data.split_names == "unlabeled", seed=0
        ),
    )
    return add_previews(artifact, rows, source), rows


def _list_error_fields(errors: ErrorScale | None) -> dict[str, Any]:
    """Return the fields of a fit that describe the errors of targets."""
    if errors is None:
        return {}
    return {
        "interval_factors": errors.factors,
        "error_std": errors.std,
        "std_slopes": errors.slopes,
        "std_by_distance": errors.by_distance,
    }


def _measure_shares(selection: Selection) -> tuple[float, ...]:
    """Return the share of each class among the labelled rows."""
    counts = np.bincount(selection.rows.y, minlength=selection.rows.num_classes or 0)
    return tuple((counts.clip(1) / counts.clip(1).sum()).tolist())


def _list_candidates(data: PreparedData, fitted: _TableFit) -> tuple[Candidate, ...]:
    """Return each candidate with its metric out of fold, and the chosen average if it is one."""
    selection = fitted.choice.selection
    levels = {n: (s.candidate.title, s.candidate.level) for n, s in selection.scores.items()}
    if selection.name == AVERAGE_NAME:
        levels[AVERAGE_NAME] = (selection.title, selection.level)
    is_test = data.split_names == "test"

    def measure(values: NDArray[Any], split: NDArray[np.bool_]) -> float:
        return fitted.metric.compute(values[split], data.source.given_labels[split])

    candidates = []
    for name, (title, level) in levels.items():
        score, values = selection.scores.get(name), fitted.by_candidate.get(name)
        has_test = is_test.any() and name == selection.name
        candidate = Candidate(
            name=name,
            title=title,
            validation_metric=float("nan"),
            validation_cost=float("nan"),
            test_metric=measure(fitted.final, is_test) if has_test else None,
            steps=0,
            seconds=0.0 if score is None else score.seconds,
            level=int(level),
        )
        if values is not None:
            metric = measure(values, data.split_names == "labeled")
            loss = selection.loss if score is None else score.loss
            candidate = dataclasses.replace(
                candidate, validation_metric=metric, validation_cost=loss
            )
        candidates.append(candidate)
    return tuple(candidates)


def _explain_encoder(source: Source, options: FitOptions) -> list[Choice]:
    if source.features is None:
        return []
    side = source.features.side
    value = f"{source.features.encoder}, frozen, {side} × {side} pixels"
    reason = "it is installed" if options.encoder is None else "set by you"
    return [Choice(name="encoder", value=value, reason=reason)]


def _explain_choice(
    data: PreparedData,
    selection: Selection,
    minutes: float | None,
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
    is_set = options.minutes is not None or bool(options.candidates)
    source = "set by you" if is_set else f"{len(data.x):,} rows"
    chosen = [
        *_explain_encoder(data.source, options),
        Choice(name="folds", value=folds, reason=num_labels),
        Choice(
            name="minutes", value="no limit" if minutes is None else f"{minutes:g}", reason=source
        ),
        Choice(
            name="candidates",
            value=", ".join(selection.scores),
            reason="set by you" if options.candidates else "all that suit the data, in time",
        ),
    ]
    if selection.rows.groups is not None:
        count = pluralize(len(np.unique(selection.rows.groups)), "group")
        reason = "set by you: rows of a group are in the same fold"
        chosen.append(Choice(name="groups", value=f"{options.group}, {count}", reason=reason))
    if options.balance:
        reason = "set by you: every class counts the same"
        chosen.append(Choice(name="balance", value="on", reason=reason))
    chosen_candidates = [selection.scores[name].candidate for name in selection.chosen]
    is_network = any(isinstance(candidate, Network) for candidate in chosen_candidates)
    return (*chosen, *(network_choices if is_network else ()))
