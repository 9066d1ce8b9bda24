"""What a folder holds of the study, and the figures that tables and plots are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import TypeVar

from l2i.config import Run
from l2i.errors import InputError
from l2i.study.book import Book
from l2i.study.plan import Study
from l2i.study.problems import ARMS, PROBLEMS, Arm, Problem
from l2i.study.settings import SETTINGS
from l2i.study.trial import Line

PARTS = ("pace", "tuning", "arms", "settings", "course")
WITHOUT = next(iter(SETTINGS))  # what a setting is compared with
IN_UNITS = ("diabetes", "friedman")  # data sets whose figure is the RMSE; that of others is an error in %

T = TypeVar("T")
Figures = dict[int, float | None]  # by seed; None where the run diverged


@dataclass(frozen=True)
class Found:
    """The lines of one problem."""

    problem: Problem
    book: Book

    @cached_property
    def lines(self) -> list[Line]:
        return self.book.lines()

    @property
    def run(self) -> Run:
        return self.problem.run("l2i")

    @property
    def measure(self) -> str:
        return "RMSE" if self.run.data.name in IN_UNITS else "error (%)"

    @property
    def digits(self) -> int:
        return 3 if self.measure == "RMSE" else 2

    def those(self, **wanted: object) -> list[Line]:
        """The lines with these values, the first of each seed where two processes have trained one run."""
        found: dict[object, Line] = {}
        for line in self.lines:
            if all(line.get(name) == value for name, value in wanted.items()):
                found.setdefault(tuple(line.get(name) for name in ("arm", "seed", "lr", "weight")), line)
        return list(found.values())

    def chosen(self, arm: Arm) -> tuple[float, float]:
        """The rate and λ that an arm was given for the comparison."""
        return Study(self.problem, self.book, None, str).chosen(arm)

    def tuned(self) -> bool:
        """Whether every arm has all its trials."""
        try:
            return all(map(self.chosen, ARMS))
        except InputError:
            return False

    def arms(self) -> dict[Arm, Figures]:
        """Each arm's figures as it was tuned, of the seeds that all arms have; nothing where one lacks them."""
        found: dict[Arm, Figures] = {}
        if not self.those(part="arms") or not self.tuned():
            return found
        for arm in ARMS:
            lr, weight = self.chosen(arm)
            found[arm] = by_seed(self.those(part="arms", arm=arm, lr=lr, weight=weight))
        seeds = sorted(set.intersection(*map(set, found.values())))
        return {arm: {seed: each[seed] for seed in seeds} for arm, each in found.items()} if seeds else {}

    def pace(self) -> float | None:
        """How many times as long a step takes with L2I, where that was measured."""
        return next((line["ratio"] for line in self.those(part="pace")), None)

    def settings(self) -> dict[str, Figures]:
        """Each setting's figures, where there are those to compare them with."""
        found = {name: by_seed(self.those(part="settings", arm=name)) for name in SETTINGS}
        whole = {name: each for name, each in found.items() if each}
        return whole if any(figure is not None for figure in found[WITHOUT].values()) else {}


def found_in(folder: str, names: Iterable[str]) -> list[Found]:
    """What a folder holds of these problems, in the study's order."""
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that holds PROBLEM.jsonl, which 'l2i study' writes")
    strange = [path for path in sorted(place.glob("*.jsonl")) if path.stem not in PROBLEMS]
    if strange:
        raise InputError(
            f"{strange[0]} is of no problem of the study ('l2i study --dry-run' shows them); give a folder of a study, "
            "as results/study"
        )
    found = [Found(PROBLEMS[name], Book(place / f"{name}.jsonl")) for name in names]
    there = [each for each in found if each.lines]
    if not there:
        raise InputError(
            f"{folder} holds nothing of the study; 'l2i study --keep {folder}' trains it and keeps it there"
        )
    return there


def by_seed(lines: Iterable[Line]) -> Figures:
    """Figures by seed."""
    return {line["seed"]: line["figure"] for line in sorted(lines, key=lambda line: int(line["seed"]))}


def told(found: Figures) -> list[float]:
    """The figures of the runs that did not diverge."""
    return [figure for figure in found.values() if figure is not None]


def differences(ours: Figures, theirs: Figures) -> list[float]:
    """Ours less theirs, seed by seed, where neither diverged."""
    pairs = [(figure, theirs.get(seed)) for seed, figure in ours.items()]
    return [mine - other for mine, other in pairs if mine is not None and other is not None]


def in_percent(ours: Figures, theirs: Figures, base: Figures) -> list[float]:
    """Ours less theirs, in % of the baseline's mean figure; nothing where that is 0."""
    whole = mean(told(base) or [0.0])
    return [100 * difference / whole for difference in differences(ours, theirs)] if whole else []


def middle(values: list[float]) -> tuple[float, float]:
    """Mean and standard error; the error of one value is 0."""
    return mean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def over(found: list[Found], which: Callable[[Found], T]) -> list[tuple[Found, T]]:
    """The problems that have figures of a part, with them."""
    return [(each, figures) for each in found if (figures := which(each))]
