"""`l2i fit`: read, split and encode a user's data, train the candidates, and keep the best one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

from l2i.candidates.choice import MAX_FEATURE_NETWORK_STEPS, MAX_NETWORK_STEPS
from l2i.config import Data, Run, replace, to_json
from l2i.config.validate import validate
from l2i.data.samples import describe_changes
from l2i.data.tokenization import Text
from l2i.errors import DamagedFile, InputError
from l2i.files.output import (
    PARTIAL_SUFFIX,
    ProgressCallback,
    check_not_in_run,
    check_outside_data,
    write_atomic,
)
from l2i.files.safety import check_regular_file
from l2i.fit import defaults
from l2i.fit.artifact import (
    IDENTITY_FILE,
    META_FILE,
    Choice,
    FitArtifact,
    FitRows,
    read_fit,
    write_fit,
)
from l2i.fit.candidates import TrainedCandidate, assemble_fit, make_snapshot_writer, make_title
from l2i.fit.image_encoder import choose_image_encoder, make_read_options, suggest_encoder
from l2i.fit.options import FitOptions, RunFlags, ask_for_networks
from l2i.fit.preprocess import INFER_LENGTH, save_encoder
from l2i.fit.readers.source import Source, read_source
from l2i.fit.split import PreparedData, prepare_data
from l2i.fit.tables import check_table_options, fit_table
from l2i.models.frozen_encoder import DEFAULT_ENCODER
from l2i.training.checkpoint import translate_disk_full
from l2i.training.loading import load_trainer
from l2i.training.run import train
from l2i.training.run_dir import LOCK_FILE, find_differences, lock_run_dir
from l2i.training.setup import pick_device, use_threads
from l2i.training.trainer import Trainer

MAX_PROBE_SAMPLES = 500  # test rows on which the outer update is measured, at most
Identity = dict[str, Any]


def fit(
    path: str,
    options: FitOptions,
    make_override: Callable[[Run], RunFlags],
    notify: ProgressCallback,
    *,
    run_fields: Collection[str] = (),
) -> tuple[Path, FitArtifact, FitRows]:
    """Read, split, choose defaults, train and evaluate; a fit that is already done is only read.

    `make_override` is called once, with a run of the right method, and returns what sets the user's
    fields in any run of that method; `run_fields` are those, or their sections. `notify` receives
    notes and choices, one line each.
    """
    folder = Path(options.out or f"runs/{Path(path).resolve().stem}")
    check_outside_data(folder, Path(path).expanduser())
    check_not_in_run(folder)
    wants_networks = ask_for_networks(options, run_fields)
    encoder = choose_image_encoder(options, wants_networks=wants_networks)
    source = read_source(path, make_read_options(path, options), notify, encoder)
    plan = _plan_fit(source, options, make_override, folder, wants_networks=wants_networks)
    source = plan.data.source  # of images, without what they were before they were encoded
    identity = _make_fit_identity(path, options, plan.run, source)
    _check_fit_dir(folder, identity)
    with translate_disk_full(folder), lock_run_dir(folder):
        _check_fit_dir(folder, identity)
        for note in (*source.notes, *suggest_encoder(source, options, wants_networks)):
            notify(note)
        if (folder / META_FILE).exists():
            notify(f"{folder} is already fitted; choose a different --out to fit again")
            return (folder, *read_fit(folder))
        write_atomic(folder / IDENTITY_FILE, json.dumps(identity, indent=1).encode())
        source_info = {"path": str(path), **source.options}
        if plan.networks:
            fitted, rows = _fit_networks(plan, folder, source_info, notify)
        else:
            choices = plan.choices
            fitted, rows = fit_table(
                plan.data, options, plan.run, folder, choices, source_info, notify
            )
        write_fit(folder, fitted, rows)
    return folder, fitted, rows


class _FitPlan(NamedTuple):
    """What is to be fitted, with all input checked and nothing written yet."""

    data: PreparedData
    run: Run
    choices: tuple[Choice, ...]
    networks: dict[str, Run]
    """Those to train on a fixed split; none if models are compared by cross-validation."""
    split_description: str


def _plan_fit(
    source: Source,
    options: FitOptions,
    make_override: Callable[[Run], RunFlags],
    folder: Path,
    *,
    wants_networks: bool,
) -> _FitPlan:
    """Split and encode the rows, and choose what to fit to them."""
    default_run = _make_preliminary_run(source, options)
    override = make_override(default_run)
    preliminary = override(default_run)
    is_cross_validated = source.has_features or (source.is_table and not wants_networks)
    check_table_options(source, options, is_cross_validated=is_cross_validated)
    data = prepare_data(source, options, preliminary, is_cross_validated=is_cross_validated)
    run, choices = plan_run(
        data, options, override, preliminary, is_cross_validated=is_cross_validated
    )
    if is_cross_validated:
        return _FitPlan(data, run, choices, {}, "")
    has_unlabeled = bool((data.split_names == "unlabeled").any())
    networks = make_candidate_runs(run, options, folder, has_unlabeled)
    # find wrong input before anything is written
    with closing(Trainer(list(networks.values())[-1], splits=data.splits)) as trainer:
        return _FitPlan(data, run, choices, networks, trainer.describe_splits())


def _fit_networks(
    plan: _FitPlan, folder: Path, source_info: dict[str, Any], notify: ProgressCallback
) -> tuple[FitArtifact, FitRows]:
    """Train the networks on a fixed split, and keep the best one."""
    for choice in plan.choices:
        notify(f"{choice.name}: {choice.value} ({choice.reason})")
    notify(f"split: {plan.split_description}")
    if plan.data.source.encoder is not None:
        save_encoder(plan.data.source.encoder, folder)
    trained = [
        train_candidate(plan.data, *name_and_run, f" ({i} of {len(plan.networks)})")
        for i, name_and_run in enumerate(plan.networks.items(), 1)
    ]
    return assemble_fit(plan.data, trained, plan.choices, source_info)


def _make_preliminary_run(source: Source, options: FitOptions) -> Run:
    """Return a run of the right method; its seed, device, texts and hold-out prepare the data."""
    is_unlabeled = source.is_unlabeled
    shape = tuple(source.inputs.shape[1:]) if source.encoder is None else (INFER_LENGTH,)
    facts = _make_facts(source, shape, int((~is_unlabeled).sum()), int(is_unlabeled.sum()))
    method, _ = defaults.choose_method(facts, options.method)
    run = Run(data=Data(text=Text(length=INFER_LENGTH)) if facts.is_text else Data(), method=method)
    return replace(run, l2i={"update": defaults.choose_update(method)})


def _make_facts(
    source: Source,
    shape: tuple[int, ...],
    labeled: int,
    unlabeled: int,
    has_gpu: bool = False,
    tuned: str | None = None,
) -> defaults.Facts:
    return defaults.Facts(
        shape=shape,
        classes=None if source.classes is None else len(source.classes),
        labeled=labeled,
        unlabeled=unlabeled,
        has_points=source.points,
        has_gpu=has_gpu,
        is_text=source.encoder is not None,
        weights=source.encoder or tuned,
    )


def plan_run(
    data: PreparedData,
    options: FitOptions,
    override: RunFlags,
    preliminary: Run,
    *,
    is_cross_validated: bool = False,
) -> tuple[Run, tuple[Choice, ...]]:
    """Return the validated run for the data, and the reason for each choice."""
    splits, shape = data.splits, tuple(data.x.shape[1:])
    num_labeled, num_unlabeled = len(splits.labeled.x), len(splits.unlabeled.x)
    has_gpu = pick_device(preliminary.device).type == "cuda"
    tuned = (options.encoder or DEFAULT_ENCODER) if options.fine_tune else None
    facts = _make_facts(data.source, shape, num_labeled, num_unlabeled, has_gpu, tuned)
    default_run, reasons = defaults.choose_run(facts, method=options.method)
    default_run = replace(default_run, probe_samples=min(MAX_PROBE_SAMPLES, len(splits.test.x)))
    steps, num_evals = override(default_run).steps, defaults.choose_num_evals(facts)
    max_steps = MAX_FEATURE_NETWORK_STEPS if data.source.has_features else MAX_NETWORK_STEPS
    if is_cross_validated and steps > max_steps:
        steps, reasons["steps"] = max_steps, "few, as every fold trains a network"
    run = override(defaults.with_steps(default_run, steps, num_evals))
    _check_model_choice(run, default_run)
    validate(run)
    if facts.is_text and preliminary.data.text.length != INFER_LENGTH:
        reasons["texts"] = defaults.SET_BY_USER
    return run, defaults.explain_choices(run, default_run, reasons)


def _check_model_choice(run: Run, default_run: Run) -> None:
    """Check that text, and only text, goes to an encoder."""
    is_text, name = default_run.model.name == "encoder", run.model.name
    if is_text and name != "encoder":
        fix = "remove it, or remove --encoder"
        raise InputError(f"--model.name {name} does not take text; {fix}")
    if not is_text and name == "encoder":
        fix = "name the columns with --text and the weights with --encoder"
        raise InputError(f"--model.name encoder needs text; {fix}")
    if not is_text and run.data.text != Text():
        fix = "remove it, or add --encoder"
        raise InputError(f"--data.text applies only with --encoder; {fix}")


def make_candidate_runs(
    run: Run, options: FitOptions, folder: Path, has_unlabeled: bool
) -> dict[str, Run]:
    """Return the runs to train, in order: supervised, the method without L2I, and with it."""
    runs: dict[str, Run] = {}
    l2i_off = {"update": "off"}
    if options.baselines or not run.method.uses_pseudo_labels or not has_unlabeled:
        runs["supervised"] = replace(run, method="supervised", l2i=l2i_off, probe_samples=0)
    if run.method.name != "supervised" and (options.baselines or run.l2i.update == "off"):
        runs["baseline"] = replace(run, l2i=l2i_off, probe_samples=0)
    if run.l2i.update != "off":
        runs["l2i"] = run
    return {name: replace(r, name=name, out=str(folder / name)) for name, r in runs.items()}


def _make_fit_identity(path: str, options: FitOptions, run: Run, source: Source) -> Identity:
    """Return what identifies a fit: data, options and run, but not the device."""
    identity = {
        "path": str(Path(path).expanduser().resolve()),
        "options": {**dataclasses.asdict(options), "out": None},
        "run": to_json(run) | dict.fromkeys(("device", "engine")),
        "data": source.fingerprint(),
    }
    return cast(Identity, json.loads(json.dumps(identity)))


def _check_fit_dir(folder: Path, identity: Identity) -> None:
    """Check that the folder is empty or holds this fit; nothing else is ever overwritten."""
    path = folder / IDENTITY_FILE
    if path.is_file():
        problem = _find_mismatch(_read_identity(path), identity)
        if problem is not None:
            fix = "choose a different --out, or remove the folder"
            raise InputError(f"{folder} contains a fit {problem}; {fix}")
    elif folder.is_dir() and any(
        p.name != LOCK_FILE and p.suffix != PARTIAL_SUFFIX for p in folder.iterdir()
    ):
        raise InputError(f"{folder} exists and is not a fit folder; choose a different --out")


def _read_identity(path: Path) -> Identity:
    try:
        return dict(**json.loads(check_regular_file(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        fix = "restore it, or choose a different --out"
        raise DamagedFile(f"{path} is damaged; {fix}") from None


def _find_mismatch(stored: Identity, current: Identity) -> str | None:
    """Say how a stored fit differs from this one, wherever its data lies, or return None."""
    data, options, run = (stored.get(name) for name in ("data", "options", "run"))
    if not (isinstance(data, dict) and isinstance(options, dict) and isinstance(run, dict)):
        return "by an older version of l2i, which recorded less of its data"
    mismatches = find_differences(options, current["options"])
    changes = describe_changes(data, current["data"], "rows")
    if changes is not None and not mismatches:
        return f"of other data (changed: {changes})"
    mismatches += find_differences(run, current["run"])
    return f"with other options ({'; '.join(mismatches[:4])})" if mismatches else None


def train_candidate(
    data: PreparedData, name: str, run: Run, label_suffix: str = ""
) -> TrainedCandidate:
    """Train a candidate, and predict every row with its averaged model."""
    folder = Path(run.out or name)
    snapshots = folder / "snapshots"
    final_trainer: Trainer | None = None
    write_snapshot = make_snapshot_writer(snapshots, data.rows_to_device)

    def on_evaluation(trainer: Trainer, step: int) -> None:
        nonlocal final_trainer
        write_snapshot(trainer, step)
        if step == run.steps and _is_reported_model(trainer):
            final_trainer = trainer

    label = make_title(name, run) + label_suffix
    result = train(run, splits=data.splits, label=label, compact=True, on_evaluation=on_evaluation)
    with use_threads(run.threads):
        if final_trainer is None:
            final_trainer, _ = load_trainer(folder, splits=data.splits, precision="float32")
        with closing(final_trainer) as trainer:
            return TrainedCandidate.from_trainer(name, trainer, result, data, snapshots)


def _is_reported_model(trainer: Trainer) -> bool:
    """Return whether a trainer ends with the model to report, in float32 as `predict` uses it.

    With early stopping that model is on disk; processes of a shared run no longer communicate.
    """
    is_last_step = trainer.run.report != "best"
    return is_last_step and trainer.precision == "float32" and trainer.group.size == 1
