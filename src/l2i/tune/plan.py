"""A sweep as it was asked for, checked before anything is read or written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2i.config import Run
from l2i.errors import InputError
from l2i.launched import started
from l2i.options import TuneOptions
from l2i.training.build import placed
from l2i.training.folder import ELSEWHERE
from l2i.tune.space import Space, space_of
from l2i.validate import fields_of, validate

NAME = 200  # characters of a study's name, which is a folder's as well


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is searched, how far, and where it is kept."""

    recipe: str
    run: Run
    """The recipe's run with the fields that were changed; a trial has other values from the space."""
    space: Space
    trials: int
    prune: bool
    study: str
    folder: Path
    url: str

    def folder_of(self, number: int) -> Path:
        """Where the run of a trial is kept."""
        return self.folder / part_of(number)

    def identity(self) -> dict[str, Any]:
        """All that the trials of a study have in common, as JSON has it."""
        fields = {path: value for path, value in fields_of(self.run) if path not in ELSEWHERE}
        ranges = {f"range of {path}": found.described() for path, found in self.space.items()}
        plain = {"recipe": self.recipe, "method": self.run.method.name, **fields, **ranges}
        return dict(json.loads(json.dumps(plain)))


def part_of(number: int) -> str:
    """A trial's name, for its folder and its claim."""
    return f"trial-{number:04}"


def planned(recipe: str, run: Run, options: TuneOptions) -> Plan:
    """The sweep that a recipe and options stand for."""
    if started() > 1:
        raise InputError("'l2i tune' trains a trial in one process; start the command itself several times instead")
    if options.trials < 1:
        raise InputError(f"trials={options.trials} must be at least 1")
    validate(run)
    if not run.data.num_validation:
        raise InputError("settings are chosen by validation samples and there are none; set --data.num-validation")
    study = f"{recipe.replace('/', '-')}-seed{run.seed}" if options.study is None else options.study
    if not study.isprintable() or "/" in study or study in ("", ".", "..") or len(study) > NAME:
        raise InputError(f"study={study!r} cannot be the name of a study, and of its folder; give another --study")
    folder = Path(options.out if options.out is not None else f"runs/tune/{study}")
    return Plan(
        recipe=recipe,
        run=placed(run),
        space=space_of(run, options.fields, options.range),
        trials=options.trials,
        prune=options.prune,
        study=study,
        folder=folder,
        url=f"sqlite:///{folder}/study.db" if options.storage is None else options.storage,
    )
