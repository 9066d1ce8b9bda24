"""What the study has found so far: a line of JSON a run, in a file a problem; what is there is not trained again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from l2i.errors import InputError
from l2i.study.problems import ARMS, WATCHED
from l2i.study.settings import SETTINGS
from l2i.study.trial import Line

KNOWN = {"tuning": ARMS, "arms": ARMS, "settings": tuple(SETTINGS), "course": WATCHED}  # arms of a part
LARGEST = 1e300  # beyond it, a number is none that a run has come to


@dataclass(frozen=True)
class Book:
    """The lines of one problem. Several processes may write to it: each line is written in one go."""

    path: Path

    def lines(self) -> list[Line]:
        """All of them, in the order in which they were written; each has what its part writes."""
        if not self.path.exists():
            return []
        try:
            found = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError, RecursionError):
            raise InputError(f"{self.path} is damaged; restore it, or give another folder") from None
        if not all(isinstance(line, dict) and "part" in line for line in found):
            raise InputError(f"{self.path} holds no lines of a study; restore it, or give another folder")
        for number, line in enumerate(found, 1):
            if not sound(line):
                raise InputError(
                    f"{self.path}, line {number}, is damaged, or of no such study; restore it, or remove it"
                )
        return found

    def find(self, **wanted: object) -> list[Line]:
        """The lines with these values."""
        return [line for line in self.lines() if all(line.get(name) == value for name, value in wanted.items())]

    def add(self, line: Line) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write((json.dumps(line) + os.linesep).encode())


def sound(line: Line) -> bool:
    """Whether a line has what its part writes."""
    part = line["part"]
    if part == "pace":
        return finite(line.get("ratio"))
    return (
        isinstance(part, str)
        and line.get("arm") in KNOWN.get(part, ())
        and type(line.get("seed")) is int
        and type(line.get("steps")) is int
        and all(name in line and (line[name] is None or finite(line[name])) for name in ("figure", "validation"))
        and (part not in ("tuning", "arms") or (finite(line.get("lr")) and finite(line.get("weight"))))
        and (part != "course" or watched(line.get("course")))
    )


def watched(course: object) -> bool:
    """Whether these are records of a course: numbers, a step among them."""
    return isinstance(course, list) and all(
        isinstance(each, dict) and {"step", "imputed"} <= each.keys() and all(map(finite, each.values()))
        for each in course
    )


def finite(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < LARGEST
