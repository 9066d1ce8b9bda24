"""`l2i fit`: three networks on one split of a person's data, the best by validation rows, and what is told of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2i.config import Run, replace, to_json
from l2i.data.split import Samples, Splits, by_class, divided
from l2i.errors import InputError
from l2i.methods import METHODS
from l2i.options import FitOptions
from l2i.own.choose import Facts, chosen, explained, paced
from l2i.own.finish import Trained, finished, title_of
from l2i.own.fitted import META, Choice, Fitted, Rows, read_fit, write_fit
from l2i.own.parts import parts_of
from l2i.own.places import folder_for
from l2i.own.prepare import BLANK, ImageInputs, TableInputs, learned
from l2i.own.reading import few
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
Say = Callable[[str], object]
Override = Callable[[Run], Run]


class Data(NamedTuple):
    """A source, made ready: encoded inputs of every row, and the split."""

    source: Source
    inputs: TableInputs | ImageInputs
    parts: NDArray[np.str_]
    x: Tensor
    y: Tensor
    splits: Splits
    offset: NDArray[np.float64]
    """[D], regression: what was taken off the targets, so that float32 holds their digits; [0] otherwise."""

    def rows_on(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """Every row, on a device."""
        return Samples(self.x, self.y).to(device, dtype, pixels=self.splits.pixels is not None)


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
        trained = [trained_on(data, *each, f" ({i} of {len(runs)})") for i, each in enumerate(runs.items(), 1)]
        fitted, rows = finished(data, trained, choices, {"path": str(path), **source.options})
        write_fit(folder, fitted, rows)
    return folder, fitted, rows


def expected(source: Source, options: FitOptions) -> Run:
    """A run of the right method: what the user says of seed and device is needed before all is chosen."""
    blank = source.given < 0 if source.classes is not None else np.isnan(source.given).any(axis=1)
    facts = Facts(
        shape=tuple(source.inputs.shape[1:]),
        classes=None if source.classes is None else len(source.classes),
        labeled=int((~blank).sum()),
        unlabeled=int(blank.sum()),
        points=source.points,
    )
    if options.method != "auto":
        load("method", METHODS, options.method)  # a wrong name is one even where no row is unlabelled
    return chosen(facts, method=options.method if facts.unlabeled else "auto")[0]


def made_ready(source: Source, options: FitOptions, run: Run) -> Data:
    """Encode and split; what inputs look like is learned from rows that are trained on."""
    parts = parts_of(source.given, validation=options.validation, test=options.test, seed=run.seed)
    if not (parts == "validation").any():
        raise InputError("no rows are set aside to choose by; give --validation 1 or more, or a share such as 0.2")
    seen = np.isin(parts, ("labeled", "unlabeled"))
    if isinstance(source.inputs, np.ndarray):
        images = ImageInputs.learned(source.inputs[seen])
        return ready(source, images, parts, torch.from_numpy(images.grey(source.inputs)), run)
    source = without_blank(source, seen)
    rows = source.inputs[seen]
    table = TableInputs(columns=tuple(learned(rows[name], kind) for name, kind in source.kinds.items()))
    return ready(source, table, parts, torch.from_numpy(table(source.inputs)), run)


def without_blank(source: Source, seen: NDArray[np.bool_]) -> Source:
    """Without the columns that are blank in all rows that are trained on: nothing can be learned of them."""
    assert not isinstance(source.inputs, np.ndarray)
    rows = source.inputs[seen]
    blank = [name for name in source.kinds if (rows[name].isna() | (rows[name] == BLANK)).all()]
    if not blank:
        return source
    if len(blank) == len(source.kinds):
        raise InputError("no column holds anything in the rows that are trained on; give more rows")
    note = f"blank in all rows that are trained on, left out: {few(blank)}"
    kinds = {name: kind for name, kind in source.kinds.items() if name not in blank}
    return dataclasses.replace(source, kinds=kinds, inputs=source.inputs[list(kinds)], notes=(*source.notes, note))


def offset_of(targets: NDArray[Any], *, around: bool) -> NDArray[np.float64]:
    """The mean of each target, where targets are to be `around` 0: float32 has too few digits for a date in seconds."""
    return np.asarray(targets.mean(axis=0), dtype=np.float64) if around else np.zeros(1)


def ready(source: Source, inputs: TableInputs | ImageInputs, parts: NDArray[np.str_], x: Tensor, run: Run) -> Data:
    """The five sets of a run, and all rows in a piece."""
    classes = None if source.classes is None else len(source.classes)
    offset = offset_of(source.given[parts == "labeled"], around=classes is None and not source.points)
    y = torch.from_numpy(source.given - offset).float() if classes is None else torch.from_numpy(source.given).long()
    every = Samples(x, y)
    sets = {
        n: every.take(torch.from_numpy(np.flatnonzero(parts == n))) for n in np.unique([*parts, "unlabeled", "test"])
    }
    labeled = sets["labeled"]
    fitted = drawn = torch.arange(len(labeled.x))
    if run.l2i.holdout == "separate" and run.l2i.outer_update != "off":
        fitted, drawn = (torch.cat(groups) for groups in divided(by_class(labeled.y, fitted, classes)))
    splits = Splits(
        labeled=labeled.take(fitted),
        unlabeled=sets["unlabeled"],
        holdout=labeled.take(drawn),
        validation=sets["validation"],
        test=sets["test"],
        classes=classes,
        points=source.points,
        pixels=inputs.pixels if isinstance(inputs, ImageInputs) else None,
        columns=inputs.layout if isinstance(inputs, TableInputs) else None,
    )
    return Data(source, inputs, parts, x, y, splits, offset)


def planned(data: Data, options: FitOptions, override: Override, asked: Run) -> tuple[Run, tuple[Choice, ...]]:
    """The run for the data, checked, and why it is so."""
    facts = Facts(
        shape=tuple(data.x.shape[1:]),
        classes=data.splits.classes,
        labeled=len(data.splits.labeled.x),
        unlabeled=len(data.splits.unlabeled.x),
        points=data.source.points,
        gpu=pick_device(asked.device).type == "cuda",
    )
    suited, why = chosen(facts, method=options.method if facts.unlabeled else "auto")
    run = override(paced(replace(suited, probe=min(500, len(data.splits.test.x))), override(suited).steps))
    validate(run)
    return run, explained(run, suited, why)


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
