"""Result files that outlive their runs: FOLDER/TABLE/CELL-seedN.json, and beside each the run's metrics, .jsonl."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from l2i.config import Run
from l2i.data.limits import plain_file
from l2i.errors import InputError
from l2i.kept_settings import check_alike
from l2i.lines import Line, longer_of, short
from l2i.options import CompareOptions
from l2i.recipes.cells import Table
from l2i.training.build import FOLDER
from l2i.training.checkpoint import room, write_whole
from l2i.training.folder import Result, folder_of

NAMED = re.compile(r"(.+)-seed(0|[1-9][0-9]*)\.json")
READING = ("from_", "cells", "markdown", "plot", "mechanism", "data")  # options that matter where nothing is trained
DAMAGED = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Kept:
    """The results of a table that a folder holds."""

    table: Table
    folder: Path
    results: dict[str, dict[int, Result]]
    """By name, then by seed; cells in the table's order, a longer baseline before the cell that it is for."""

    def path(self, name: str, seed: int) -> Path:
        return self.folder / f"{short(name)}-seed{seed}.json"

    def those(self, runs: Iterable[Run]) -> dict[int, Result]:
        """The results of a cell's runs, by seed, of those that are kept."""
        found = {run.seed: run for run in runs if run.seed in self.results.get(run.name, {})}
        for seed, run in found.items():
            steps = self.results[run.name][seed].steps
            if steps != run.steps:
                again = f"give --steps {steps}" if run.name in self.table.cells else "remove it to train it again"
                raise InputError(
                    f"{self.path(run.name, seed)} is of {steps:,} steps, and {run.steps:,} are asked for; "
                    f"{again}, or give another --keep"
                )
            check_alike(self.results[run.name][seed], run, self.path(run.name, seed))
        return {seed: self.results[run.name][seed] for seed, run in found.items()}

    def add(self, run: Run) -> None:
        """Keep a run that is done."""
        folder, path = folder_of(run), self.path(run.name, run.seed)
        with room(folder):
            write_whole(path.with_suffix(".jsonl"), (folder / "metrics.jsonl").read_bytes())
            write_whole(path, (folder / "result.json").read_bytes())  # last: with it the run counts as kept

    def alike(self, lines: Sequence[Line]) -> None:
        """That the runs of a line, of its baseline and of its control are of as many steps."""
        for line in lines:
            same = [each for each in (line, line.same_steps, line.control) if each and each.name in self.table.cells]
            runs = [(self.path(each.name, result.seed), result.steps) for each in same for result in each.results]
            for path, steps in runs:
                if steps != runs[0][1]:
                    raise InputError(
                        f"{runs[0][0]} is of {runs[0][1]:,} steps and {path} of {steps:,}; "
                        "put runs of different lengths in different folders"
                    )


def kept_in(folder: str, table: Table) -> Kept:
    """What a folder holds of a table; nothing, where it is not there."""
    place = place_of(Path(folder), table.name)
    names = {short(name): name for name in known(table)}
    found: dict[str, dict[int, Result]] = {name: {} for name in names.values()}
    for path in place.glob("*-seed*.json"):
        match = NAMED.fullmatch(path.name)
        if match is None:
            continue
        if match[1] not in names:
            raise InputError(f"{path} is of no cell of {table.name} ('l2i list {table.name}/' shows them); take it out")
        name, seed = names[match[1]], int(match[2])
        found[name][seed] = result_of(path, name, seed)
    return Kept(table, place, {name: dict(sorted(results.items())) for name, results in found.items() if results})


def place_of(folder: Path, table: str) -> Path:
    """The table's own folder: one within `folder`, or `folder` itself."""
    within = folder / table
    itself = folder.resolve().name == table or any(folder.glob("*-seed*.json"))
    return folder if itself and not within.is_dir() else within


def known(table: Table) -> dict[str, None]:
    """Names that results can have, in order."""
    names: dict[str, None] = {}
    for cell in table.cells:
        if table.baseline(cell) is not None:
            longer = longer_of(cell, table)
            names.pop(longer, None)  # of two names for one cell, it stands before the second
            names[longer] = None
        names[cell] = None
    return names


def result_of(path: Path, name: str, seed: int) -> Result:
    """The result that a file holds."""
    try:
        found = Result(**json.loads(plain_file(path).read_text(encoding="utf-8")))
        whole = sound(found)
    except DAMAGED:
        whole = False
    if not whole:
        raise InputError(f"{path} is damaged, or no result of a run; restore it, or remove it")
    if (found.name, found.seed) != (name, seed):
        raise InputError(f"{path} holds the result of {found.name}, seed {found.seed}; name it so, or remove it")
    return found


def sound(found: Result) -> bool:
    """Whether the fields are of the kinds that a run writes."""
    texts = [found.name, found.figure_name, found.definition, found.hardware, found.precision]
    texts += [found.versions["torch"], found.versions["l2i"], *found.warnings]
    counts, numbers = (found.seed + 1, found.steps, found.at_once), (found.figure, found.seconds)
    return (
        all(type(text) is str for text in texts)
        and all(type(count) is int and 0 < count < 2**53 for count in counts)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and found.seconds > 0
        and (found.settings is None or type(found.settings) is dict)
    )


def read_kept(table: Table, options: CompareOptions) -> Kept:
    """What the folder of --from holds; options that are for training are refused."""
    assert options.from_ is not None
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name not in READING and value != field.default:
            flag = f"--{'no-' * (value is False)}{field.name.replace('_', '-')}"
            raise InputError(f"{flag} does not go with --from, which trains nothing; leave one of them out")
    if not Path(options.from_).is_dir():
        raise InputError(f"{options.from_} is not a folder; give the one that holds {table.name}/CELL-seedN.json")
    kept = kept_in(options.from_, table)
    if not kept.results:
        raise InputError(
            f"{options.from_} holds no results of {table.name} ({table.name}/CELL-seedN.json); "
            f"'l2i compare {table.name} --keep {options.from_}' trains its cells and keeps them there"
        )
    return kept


def references(table: Table, options: CompareOptions) -> dict[str, float]:
    """Figures that need no training: as they are kept, or else from the data, which --from can do without."""
    folder = options.keep if options.from_ is None else options.from_
    place = None if folder is None else place_of(Path(folder), table.name)
    there = {} if place is None or table.reference is None else references_in(place, table)
    if there or table.reference is None:
        if options.from_ is not None and options.data.root is not None:
            raise InputError("--data.root does not matter here, since no row needs the data; leave it out")
        return there
    if options.from_ is not None and options.data.root is None:
        with suppress(InputError):  # another data set's folder, perhaps
            return table.reference(None) if os.environ.get(FOLDER) else {}
        return {}
    found = table.reference(options.data.root)
    if place is not None and options.keep is not None:
        for name, figure in found.items():
            write_whole(place / f"{short(name)}.json", (json.dumps({"name": name, "figure": figure}) + "\n").encode())
    return found


def references_in(place: Path, table: Table) -> dict[str, float]:
    """Those that a table's folder holds: its JSON files that are of no seed."""
    found = {}
    for path in sorted(path for path in place.glob("*.json") if not NAMED.fullmatch(path.name)):
        try:
            told: dict[str, Any] = json.loads(plain_file(path).read_text(encoding="utf-8"))
            whole = told["name"] == f"{table.name}/{path.stem}" and math.isfinite(told["figure"])
        except DAMAGED:
            whole = False
        if not whole:
            raise InputError(f"{path} is damaged, or no figure of {table.name}; restore it, or remove it")
        found[told["name"]] = float(told["figure"])
    return found
