"""`l2i fit`: three networks on one split of a person's data, the best by validation rows, and what is told of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from l2i.config import Run, replace, to_json
from l2i.data.split import Splits
from l2i.data.tokenized import Text
from l2i.errors import InputError
from l2i.methods import METHODS
from l2i.options import FitOptions
from l2i.own.choose import Facts, chosen, evaluations_for, explained, paced
from l2i.own.finish import Trained, finished, title_of
from l2i.own.fitted import META, Choice, Fitted, Rows, read_fit, write_fit
from l2i.own.places import folder_for
from l2i.own.prepare_text import LEARNED, store_encoder
from l2i.own.ready import Data, made_ready
from l2i.own.snapshots import watching
from l2i.own.source import Source, read_source
from l2i.registry import load
from l2i.training.build import pick_device
from l2i.training.checkpoint import write_whole
from l2i.training.folder import LOCK, held
from l2i.training.load import load_trainer
from l2i.training.run import train
from l2i.training.state import cpu_threads
from l2i.training.trainer import Trainer
from l2i.validate import validate

ASKED = "asked.json"
PROBE = 500  # test rows on which the outer update is measured, at most
Say = Callable[[str], object]
Override = Callable[[Run], Run]


def fit(path: str, options: FitOptions, override: Override, say: Say) -> tuple[Path, Fitted, Rows]:
    """Read, split, choose, train and judge; a fit that is done is not done again.

    `override` changes fields of the run that was chosen from the data; `say` is told what is found and chosen.
    """
    source = read_source(path, options, say)
    first = override(expected(source, options))
    data = made_ready(source, options, first)
    run, choices = planned(data, options, override, first)
    folder = folder_for(path, options)
    runs = candidates(run, options, folder, bool((data.parts == "unlabeled").any()))
    Trainer(list(runs.values())[-1], splits=data.splits).close()  # wrong input is found before anything is written
    asked = asked_for(path, options, run, data.splits)
    check_free(folder, asked)
    with held(folder):
        check_free(folder, asked)
        write_whole(folder / ASKED, asked)
        for note in data.source.notes:
            say(note)
        if (folder / META).exists():
            say(f"{folder}: done before; give another --out to fit again")
            return (folder, *read_fit(folder))
        for choice in choices:
            say(f"{choice.name}: {choice.value} ({choice.why})")
        if source.encoder is not None:
            store_encoder(source.encoder, folder)
        trained = [trained_on(data, *each, f" ({i} of {len(runs)})") for i, each in enumerate(runs.items(), 1)]
        fitted, rows = finished(data, trained, choices, {"path": str(path), **source.options})
        write_fit(folder, fitted, rows)
    return folder, fitted, rows


def expected(source: Source, options: FitOptions) -> Run:
    """A run of the right method: what the user says of seed and device is needed before all is chosen."""
    blank = source.given < 0 if source.classes is not None else np.isnan(source.given).any(axis=1)
    facts = Facts(
        shape=tuple(source.inputs.shape[1:]) if source.encoder is None else (LEARNED,),
        classes=None if source.classes is None else len(source.classes),
        labeled=int((~blank).sum()),
        unlabeled=int(blank.sum()),
        points=source.points,
        text=source.encoder is not None,
        weights=source.encoder,
    )
    if options.method != "auto":
        load("method", METHODS, options.method)  # a wrong name is one even where no row is unlabelled
    return chosen(facts, method=options.method if facts.unlabeled else "auto")[0]


def planned(data: Data, options: FitOptions, override: Override, asked: Run) -> tuple[Run, tuple[Choice, ...]]:
    """The run for the data, checked, and why it is so."""
    facts = Facts(
        shape=tuple(data.x.shape[1:]),
        classes=data.splits.classes,
        labeled=len(data.splits.labeled.x),
        unlabeled=len(data.splits.unlabeled.x),
        points=data.source.points,
        text=data.source.encoder is not None,
        weights=data.source.encoder,
        gpu=pick_device(asked.device).type == "cuda",
    )
    suited, why = chosen(facts, method=options.method if facts.unlabeled else "auto")
    suited = replace(suited, probe=min(PROBE, len(data.splits.test.x)))
    run = override(paced(suited, override(suited).steps, evaluations_for(facts)))
    check_network(run, suited)
    validate(run)
    if facts.text and asked.data.text.length != LEARNED:
        why["texts"] = "as asked"
    return run, explained(run, suited, why)


def check_network(run: Run, suited: Run) -> None:
    """That an encoder reads texts, and nothing else does or is read by one."""
    if suited.model.name == "encoder" and run.model.name != "encoder":
        raise InputError(f"--model.name {run.model.name} cannot read texts; leave it out, or leave out --encoder")
    if suited.model.name != "encoder" and run.model.name == "encoder":
        raise InputError("--model.name encoder reads texts; name their column by --text and the weights by --encoder")
    if suited.model.name != "encoder" and run.data.text != Text():
        raise InputError("--data.text is for texts that an encoder reads; leave it out, or give --encoder")


def candidates(run: Run, options: FitOptions, folder: Path, unlabeled: bool) -> dict[str, Run]:
    """What is trained, in order: supervised, the method without L2I, and with it."""
    runs: dict[str, Run] = {}
    off = {"outer_update": "off"}
    if options.baselines or not run.method.imputes or not unlabeled:
        runs["supervised"] = replace(run, method="supervised", l2i=off, probe=0)
    if run.method.name != "supervised" and (options.baselines or run.l2i.outer_update == "off"):
        runs["baseline"] = replace(run, l2i=off, probe=0)
    if run.l2i.outer_update != "off":
        runs["l2i"] = run
    return {name: replace(r, name=name, out=str(folder / name)) for name, r in runs.items()}


def asked_for(path: str, options: FitOptions, run: Run, splits: Splits) -> bytes:
    """What a fit is of: the data, the options and the run; where it is trained does not matter."""
    asked = {"path": str(Path(path).resolve()), **dataclasses.asdict(options), "out": None, "run": to_json(run)}
    asked["run"] |= dict.fromkeys(("device", "engine"))
    return json.dumps({**asked, "data": splits.fingerprint()}, indent=1, ensure_ascii=False).encode()


def check_free(folder: Path, asked: bytes) -> None:
    """That the folder is empty, or this fit's; another's is never overwritten."""
    there = folder / ASKED
    if there.is_file() and there.read_bytes() != asked:
        raise InputError(f"{folder} holds a fit of other data or options; give another --out, or remove the folder")
    taken = folder.is_dir() and any(p.name != LOCK and p.suffix != ".partial" for p in folder.iterdir())
    if taken and not there.is_file():
        raise InputError(f"{folder} holds something else already; give another --out")


def trained_on(data: Data, name: str, run: Run, place: str = "") -> Trained:
    """Train a candidate, and have it say what it thinks of every row."""
    folder = Path(run.out or name)
    result = train(
        run, splits=data.splits, label=title_of(name, run) + place, watch=watching(folder / "snapshots", data.rows_on)
    )
    with cpu_threads(run.threads):
        trainer, _ = load_trainer(folder, splits=data.splits, precision="float32")  # as `predict` and exports answer
        with closing(trainer):
            return Trained.of(name, trainer, result, data, folder / "snapshots")


def described(fitted: Fitted) -> list[list[str]]:
    """The candidates as rows of a table: title, validation, test, seconds."""

    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}" if abs(value) < 1e4 else f"{value:.4g}"

    return [
        [c.title, shown(c.validation), shown(c.test), f"{c.seconds:.1f}", "chosen" if c.name == fitted.chosen else ""]
        for c in fitted.candidates
    ]
