"""Which of the networks to keep, by the validation rows alone.

MERGED:
`l2i fit`: three networks on one split of a person's data, the best by validation rows, and what is told of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from l2i.config import Run, replace, to_json
from l2i.config.validate import validate
from l2i.data.samples import Splits
from l2i.data.tokenization import Text
from l2i.errors import InputError
from l2i.files.atomic import write_atomic
from l2i.fit.artifact import META_FILE, Choice, FitArtifact, FitRows, read_fit, write_fit
from l2i.fit.candidates import TrainedCandidate, assemble_fit, make_snapshot_writer, make_title
from l2i.fit.defaults import Facts, choose_num_evals, choose_run, explain_choices, with_steps
from l2i.fit.options import FitOptions
from l2i.fit.predict import resolve_fit_dir
from l2i.fit.preprocess import INFER_LENGTH, save_encoder
from l2i.fit.readers.source import Source, read_source
from l2i.fit.split import PreparedData, prepare_data
from l2i.methods import METHODS
from l2i.registry import load_registered
from l2i.training.loading import load_trainer
from l2i.training.run import train
from l2i.training.run_dir import LOCK_FILE, lock_run_dir
from l2i.training.setup import pick_device, use_threads
from l2i.training.trainer import Trainer

IDENTITY_FILE = "asked.json"
MAX_PROBE_SAMPLES = 500  # test rows on which the outer update is measured, at most
ProgressCallback = Callable[[str], object]
Override = Callable[[Run], Run]


def fit(path: str, options: FitOptions, override: Override, notify: ProgressCallback) -> tuple[Path, FitArtifact, FitRows]:
    """Read, split, choose, train and judge; a fit that is done is not done again.

    `override` changes fields of the run that was chosen from the data; `say` is told what is found and chosen.
    """
    source = read_source(path, options, notify)
    preliminary = override(preliminary_run(source, options))
    data = prepare_data(source, options, preliminary)
    run, choices = plan_run(data, options, override, preliminary)
    folder = resolve_fit_dir(path, options)
    runs = make_candidate_runs(run, options, folder, bool((data.split_names == "unlabeled").any()))
    Trainer(list(runs.values())[-1], splits=data.splits).close()  # wrong input is found before anything is written
    identity = fit_identity(path, options, run, data.splits)
    check_fit_dir(folder, identity)
    with lock_run_dir(folder):
        check_fit_dir(folder, identity)
        write_atomic(folder / IDENTITY_FILE, identity)
        for note in data.source.notes:
            notify(note)
        if (folder / META_FILE).exists():
            notify(f"{folder}: done before; give another --out to fit again")
            return (folder, *read_fit(folder))
        for choice in choices:
            notify(f"{choice.name}: {choice.value} ({choice.reason})")
        if source.encoder is not None:
            save_encoder(source.encoder, folder)
        trained = [train_candidate(data, *name_and_run, f" ({i} of {len(runs)})") for i, name_and_run in enumerate(runs.items(), 1)]
        fitted, rows = assemble_fit(data, trained, choices, {"path": str(path), **source.options})
        write_fit(folder, fitted, rows)
    return folder, fitted, rows


def preliminary_run(source: Source, options: FitOptions) -> Run:
    """A run of the right method: what the user says of seed and device is needed before all is chosen."""
    is_unlabeled = source.given_labels < 0 if source.classes is not None else np.isnan(source.given_labels).any(axis=1)
    facts = Facts(
        shape=tuple(source.inputs.shape[1:]) if source.encoder is None else (INFER_LENGTH,),
        classes=None if source.classes is None else len(source.classes),
        labeled=int((~is_unlabeled).sum()),
        unlabeled=int(is_unlabeled.sum()),
        has_points=source.points,
        is_text=source.encoder is not None,
        weights=source.encoder,
    )
    if options.method != "auto":
        load_registered("method", METHODS, options.method)  # a wrong name is one even where no row is unlabelled
    return choose_run(facts, method=options.method if facts.unlabeled else "auto")[0]


def plan_run(data: PreparedData, options: FitOptions, override: Override, preliminary: Run) -> tuple[Run, tuple[Choice, ...]]:
    """The run for the data, checked, and why it is so."""
    facts = Facts(
        shape=tuple(data.x.shape[1:]),
        classes=data.splits.classes,
        labeled=len(data.splits.labeled.x),
        unlabeled=len(data.splits.unlabeled.x),
        has_points=data.source.points,
        is_text=data.source.encoder is not None,
        weights=data.source.encoder,
        has_gpu=pick_device(preliminary.device).type == "cuda",
    )
    default_run, reasons = choose_run(facts, method=options.method if facts.unlabeled else "auto")
    default_run = replace(default_run, probe_samples=min(MAX_PROBE_SAMPLES, len(data.splits.test.x)))
    run = override(with_steps(default_run, override(default_run).steps, choose_num_evals(facts)))
    check_model_choice(run, default_run)
    validate(run)
    if facts.is_text and preliminary.data.text.length != INFER_LENGTH:
        reasons["texts"] = "as asked"
    return run, explain_choices(run, default_run, reasons)


def check_model_choice(run: Run, default_run: Run) -> None:
    """That an encoder reads texts, and nothing else does or is read by one."""
    if default_run.model.name == "encoder" and run.model.name != "encoder":
        raise InputError(f"--model.name {run.model.name} cannot read texts; leave it out, or leave out --encoder")
    if default_run.model.name != "encoder" and run.model.name == "encoder":
        raise InputError("--model.name encoder reads texts; name their column by --text and the weights by --encoder")
    if default_run.model.name != "encoder" and run.data.text != Text():
        raise InputError("--data.text is for texts that an encoder reads; leave it out, or give --encoder")


def make_candidate_runs(run: Run, options: FitOptions, folder: Path, has_unlabeled: bool) -> dict[str, Run]:
    """What is trained, in order: supervised, the method without L2I, and with it."""
    runs: dict[str, Run] = {}
    l2i_off = {"update": "off"}
    if options.baselines or not run.method.uses_pseudo_labels or not has_unlabeled:
        runs["supervised"] = replace(run, method="supervised", l2i=l2i_off, probe_samples=0)
    if run.method.name != "supervised" and (options.baselines or run.l2i.update == "off"):
        runs["baseline"] = replace(run, l2i=l2i_off, probe_samples=0)
    if run.l2i.update != "off":
        runs["l2i"] = run
    return {name: replace(candidate_run, name=name, out=str(folder / name)) for name, candidate_run in runs.items()}


def fit_identity(path: str, options: FitOptions, run: Run, splits: Splits) -> bytes:
    """What a fit is of: the data, the options and the run; where it is trained does not matter."""
    identity = {"path": str(Path(path).resolve()), **dataclasses.asdict(options), "out": None, "run": to_json(run)}
    identity["run"] |= dict.fromkeys(("device", "engine"))
    return json.dumps({**identity, "data": splits.fingerprint()}, indent=1, ensure_ascii=False).encode()


def check_fit_dir(folder: Path, identity: bytes) -> None:
    """That the folder is empty, or this fit's; another's is never overwritten."""
    identity_path = folder / IDENTITY_FILE
    if identity_path.is_file() and identity_path.read_bytes() != identity:
        raise InputError(f"{folder} holds a fit of other data or options; give another --out, or remove the folder")
    is_occupied = folder.is_dir() and any(p.name != LOCK_FILE and p.suffix != ".partial" for p in folder.iterdir())
    if is_occupied and not identity_path.is_file():
        raise InputError(f"{folder} holds something else already; give another --out")


def train_candidate(data: PreparedData, name: str, run: Run, label_suffix: str = "") -> TrainedCandidate:
    """Train a candidate, and have it say what it thinks of every row."""
    folder = Path(run.out or name)
    result = train(
        run, splits=data.splits, label=make_title(name, run) + label_suffix, on_evaluation=make_snapshot_writer(folder / "snapshots", data.rows_to_device)
    )
    with use_threads(run.threads):
        trainer, _ = load_trainer(folder, splits=data.splits, precision="float32")  # as `predict` and exports answer
        with closing(trainer):
            return TrainedCandidate.from_trainer(name, trainer, result, data, folder / "snapshots")


def summary_rows(fitted: FitArtifact) -> list[list[str]]:
    """The candidates as rows of a table: title, validation, test, seconds."""

    def format_value(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}" if abs(value) < 1e4 else f"{value:.4g}"

    return [
        [c.title, format_value(c.validation_metric), format_value(c.test_metric), f"{c.seconds:.1f}", "chosen" if c.name == fitted.selected_name else ""]
        for c in fitted.candidates
    ]
