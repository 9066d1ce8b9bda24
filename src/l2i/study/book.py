"""What the study has found so far: a line of JSON a run, in a file a problem; what is there is not trained again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from l2i.errors import InputError
from l2i.study.trial import Line

KEYS = ("part", "arm", "seed", "lr", "weight")  # what tells one line from another


@dataclass(frozen=True)
class Book:
    """The lines of one problem. Several processes may write to it: each line is written in one go."""

    path: Path

    def lines(self) -> list[Line]:
        if not self.path.exists():
            return []
        try:
            found = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError, RecursionError):
            raise InputError(f"{self.path} is damaged; restore it, or give another folder") from None
        if not all(isinstance(line, dict) and KEYS[0] in line for line in found):
            raise InputError(f"{self.path} holds no lines of a study; restore it, or give another folder")
        return found

    def find(self, **wanted: object) -> list[Line]:
        """The lines with these values."""
        return [line for line in self.lines() if all(line.get(name) == value for name, value in wanted.items())]

    def add(self, line: Line) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write((json.dumps(line) + os.linesep).encode())
