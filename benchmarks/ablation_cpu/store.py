"""The records of the ablation: one JSON line per run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ablation_cpu.grid import ARMS, DYNAMICS_ARMS, GROUP_BY_SETTING

from l2i.errors import InputError

Record = dict[str, Any]


ARMS_BY_PART = {
    "tuning": ARMS,
    "arms": ARMS,
    "settings": tuple(GROUP_BY_SETTING),
    "dynamics": DYNAMICS_ARMS,
}


MAX_ABS_VALUE = 1e300  # larger numbers are not results of a run


@dataclass(frozen=True)
class RecordStore:
    """The records of one problem; several processes may append to it, one line at a time."""

    path: Path

    def read_records(self) -> list[Record]:
        """Return all records in the order in which they were written, after validation."""
        if not self.path.exists():
            return []
        try:
            records = [
                json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()
            ]
        except (OSError, ValueError, RecursionError):
            raise InputError(
                f"{self.path} is damaged; restore it, or choose a different folder"
            ) from None
        if not all(isinstance(line, dict) and "part" in line for line in records):
            raise InputError(
                f"{self.path} does not hold records of the ablation; restore it, or choose a "
                "different folder"
            )
        for number, line in enumerate(records, 1):
            if not is_valid_record(line):
                raise InputError(
                    f"{self.path}, line {number}, is not a valid record; restore it, or remove it"
                )
        return records

    def find_records(self, **criteria: object) -> list[Record]:
        """Return the records with these values."""
        return [
            line
            for line in self.read_records()
            if all(line.get(name) == value for name, value in criteria.items())
        ]

    def append(self, line: Record) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write((json.dumps(line) + os.linesep).encode())


def is_valid_record(line: Record) -> bool:
    """Return whether a record has the fields of its part."""
    part = line["part"]
    if part == "pace":
        return is_finite_number(line.get("ratio"))
    return (
        isinstance(part, str)
        and line.get("arm") in ARMS_BY_PART.get(part, ())
        and type(line.get("seed")) is int
        and type(line.get("steps")) is int
        and all(
            name in line and (line[name] is None or is_finite_number(line[name]))
            for name in ("metric", "validation")
        )
        and (
            part not in ("tuning", "arms")
            or (is_finite_number(line.get("lr")) and is_finite_number(line.get("weight")))
        )
        and (part != "dynamics" or is_valid_dynamics(line.get("dynamics")))
    )


def is_valid_dynamics(dynamics: object) -> bool:
    """Return whether these are probes: numbers, including the step."""
    return isinstance(dynamics, list) and all(
        isinstance(entry, dict)
        and {"step", "pseudo_label_error"} <= entry.keys()
        and all(map(is_finite_number, entry.values()))
        for entry in dynamics
    )


def is_finite_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < MAX_ABS_VALUE


PARTS = ("pace", "tuning", "arms", "settings", "dynamics")
