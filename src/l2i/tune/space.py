"""What a sweep searches: fields of a run, and the values between which each is drawn."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from l2i.config import Run
from l2i.errors import InputError
from l2i.registry import unknown
from l2i.shares import resolved
from l2i.validate import COUNTS, fields_of, validate

Value = int | float

TIMES: dict[str, tuple[float, float]] = {
    "optim.lr": (0.1, 10),
    "method.weight": (0.1, 10),
    "method.epsilon": (0.1, 10),
    "method.entropy": (0.1, 10),
    "l2i.eta": (0.01, 10),
    "l2i.eta_z": (0.1, 10),
    "l2i.outer_rate": (0.1, 10),
}
"""Searched from so many times the recipe's value to so many times, in logarithms, where it is above 0."""

BETWEEN: dict[str, tuple[float, float, bool]] = {
    "method.rampup": (0.05, 0.8, False),  # shares of the run
    "method.threshold": (0.5, 0.99, False),
    "method.temperature": (0.1, 1.0, False),
    "method.alpha": (0.1, 2.0, True),
    "l2i.rho": (0.01, 1.0, True),
}
"""Searched from one value to another, in logarithms or not, where the recipe's lies between them."""

DIGITS = 4  # of a drawn value: enough, and short to type
WIDE = 10  # times from low to high, from which on a range is searched in logarithms

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Between which values a field is drawn."""

    low: float
    high: float
    log: bool
    own: Value | None
    """The recipe's value, of a ramp-up as a share of the run; None where it has none."""
    whole: bool = False

    @property
    def starts(self) -> bool:
        """Whether the first trial can have the recipe's value."""
        return self.own is not None and self.low <= self.own <= self.high

    def value(self, drawn: Value) -> Value:
        """What a run is given for a drawn value."""
        return drawn if self.whole or drawn == self.own else rounded(drawn)

    def described(self) -> tuple[float, float, str]:
        return self.low, self.high, "log" if self.log else "linear"


Space = dict[str, Range]


def space_of(run: Run, fields: tuple[str, ...] = (), ranges: tuple[str, ...] = ()) -> Space:
    """The ranges of a recipe's fields: those it can be searched in, or of them `fields` alone, and those given."""
    own = {path: value for path, value in fields_of(run) if is_number(path, value)}
    usual = {path: found for path, value in own.items() if (found := usual_range(run, path, value)) is not None}
    given = dict(given_range(own, usual, text) for text in ranges)
    wanted = [known(name, own) for name in fields]
    for path in wanted:
        if path not in usual | given:
            raise InputError(f"{path} has no range in this recipe; give one with it: --range {path}=LOW:HIGH")
    space = {path: (usual | given)[path] for path in own if path in given or path in (wanted or usual)}
    for path, found in space.items():
        for edge in (found.low, found.high):
            validate(with_values(run, space, {path: int(edge) if found.whole else edge}))
    return space


def is_number(path: str, value: Any) -> bool:
    """Whether a field can be searched: a number in a section, that does not change what trials are measured on."""
    if "." not in path or path.startswith("data.num_") or isinstance(value, bool):
        return False
    return isinstance(value, int | float) or path in ("l2i.eta", "l2i.outer_rate")


def usual_range(run: Run, path: str, value: Value | None) -> Range | None:
    """The range of a field in this recipe; None where it does nothing there or is switched off."""
    if not is_used(run, path) or value is None:
        return None
    if path == "method.rampup":
        value = value if isinstance(value, float) else resolved(value, run.steps) / run.steps
    if path in TIMES and value > 0:
        low, high = (rounded(times * value) for times in TIMES[path])
        return Range(low=low, high=high, log=True, own=value)
    if path in BETWEEN:
        low, high, log = BETWEEN[path]
        found = Range(low=low, high=high, log=log, own=value)
        return found if found.starts else None
    return None


def is_used(run: Run, path: str) -> bool:
    """Whether a field decides anything in this run."""
    if path.startswith("method."):
        return run.method.imputes
    used = {
        "l2i.rho": run.l2i.outer_update == "normalized",
        "l2i.eta_z": run.l2i.labels == "learnable",
        "l2i.outer_rate": run.l2i.outer_optimizer == "own",
    }
    return used.get(path, True) and (run.l2i.outer_update != "off" or not path.startswith("l2i."))


def given_range(own: dict[str, Any], usual: Space, text: str) -> tuple[str, Range]:
    """FIELD=LOW:HIGH, or FIELD=LOW:HIGH:SCALE, as a field and its range."""
    name, _, bounds = text.partition("=")
    parts = re.fullmatch(r"([^:]+):([^:]+)(?::(log|linear))?", bounds)
    try:
        low, high = (float(parts[i]) for i in (1, 2)) if parts else (math.nan, math.nan)
    except ValueError:
        low = high = math.nan
    if parts is not None and low >= high:
        raise InputError(f"--range {text}: the first value must be below the second")
    if parts is None or not -math.inf < low < high < math.inf:
        raise InputError(
            f"--range takes FIELD=LOW:HIGH, as in --range optim.lr=1e-4:1e-2, or FIELD=LOW:HIGH:log or :linear; "
            f"it was given '{text}'"
        )
    path = known(name, own)
    before = usual.get(path)
    log = before.log if before else low > 0 and high / low >= WIDE
    log = log if parts[3] is None else parts[3] == "log"
    if log and low <= 0:
        raise InputError(f"--range {text}: there is no logarithm of {low:g}; start above 0, or search it linearly")
    whole = isinstance(own[path], int) and path not in COUNTS
    if whole and not (low.is_integer() and high.is_integer()):
        raise InputError(f"--range {text}: {path} is a whole number; give whole numbers")
    return path, Range(low=low, high=high, log=log, own=before.own if before else own[path], whole=whole)


def known(name: str, own: dict[str, Any]) -> str:
    """The path of a field that can be searched, written with hyphens or underscores."""
    path = name.replace("-", "_")
    if path not in own:
        raise unknown("field to search", name, list(own), "l2i train RECIPE --help")
    return path


def with_values(run: Run, space: Space, drawn: dict[str, Value]) -> Run:
    """The run with values drawn from a space."""
    for path, value in drawn.items():
        run = with_field(run, path, space[path].value(value))
    return run


def with_field(section: S, path: str, value: Any) -> S:
    """A dataclass with one field, of its own or of those within it, replaced."""
    name, dot, rest = path.partition(".")
    inner = with_field(getattr(section, name), rest, value) if dot else value
    return dataclasses.replace(section, **{name: inner})  # type: ignore[type-var]


def rounded(value: float) -> float:
    """To a few digits."""
    return float(f"{value:.{DIGITS}g}")
