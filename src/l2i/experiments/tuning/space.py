"""What a sweep searches: fields of a run, and the values between which each is drawn.

MERGED:
A sweep as it was asked for, checked before anything is read or written.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from l2i.config import Run
from l2i.config.validate import COUNT_FIELDS, flatten_fields, validate
from l2i.errors import InputError
from l2i.experiments.options import TuneOptions
from l2i.quantity import resolve_count
from l2i.registry import make_unknown_error
from l2i.torchrun import world_size
from l2i.training.run_dir import FIELDS_FREE_ON_RESUME
from l2i.training.setup import with_data_root

Value = int | float

RELATIVE_RANGES: dict[str, tuple[float, float]] = {
    "optim.lr": (0.1, 10),
    "method.weight": (0.1, 10),
    "method.epsilon": (0.1, 10),
    "method.entropy": (0.1, 10),
    "l2i.eta": (0.01, 10),
    "l2i.label_lr": (0.1, 10),
    "l2i.outer_rate": (0.1, 10),
}
"""Searched from so many times the recipe's value to so many times, in logarithms, where it is above 0."""

ABSOLUTE_RANGES: dict[str, tuple[float, float, bool]] = {
    "method.rampup": (0.05, 0.8, False),  # shares of the run
    "method.threshold": (0.5, 0.99, False),
    "method.temperature": (0.1, 1.0, False),
    "method.alpha": (0.1, 2.0, True),
    "l2i.rho": (0.01, 1.0, True),
}
"""Searched from one value to another, in logarithms or not, where the recipe's lies between them."""

SIGNIFICANT_DIGITS = 4  # of a drawn value: enough, and short to type
MIN_LOG_SCALE_RATIO = 10  # times from low to high, from which on a range is searched in logarithms

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class SearchRange:
    """Between which values a field is drawn."""

    low: float
    high: float
    log: bool
    recipe_value: Value | None
    """The recipe's value, of a ramp-up as a share of the run; None where it has none."""
    is_int: bool = False

    @property
    def includes_recipe_value(self) -> bool:
        """Whether the first trial can have the recipe's value."""
        return self.recipe_value is not None and self.low <= self.recipe_value <= self.high

    def to_run_value(self, drawn: Value) -> Value:
        """What a run is given for a drawn value."""
        return drawn if self.is_int or drawn == self.recipe_value else round_value(drawn)

    def describe(self) -> tuple[float, float, str]:
        return self.low, self.high, "log" if self.log else "linear"


SearchSpace = dict[str, SearchRange]


def build_search_space(run: Run, fields: tuple[str, ...] = (), ranges: tuple[str, ...] = ()) -> SearchSpace:
    """The ranges of a recipe's fields: those it can be searched in, or of them `fields` alone, and those given."""
    recipe_values = {path: value for path, value in flatten_fields(run) if is_searchable(path, value)}
    default_ranges = {path: search_range for path, value in recipe_values.items() if (search_range := make_default_range(run, path, value)) is not None}
    custom_ranges = dict(parse_range(recipe_values, default_ranges, text) for text in ranges)
    selected_paths = [resolve_field_path(name, recipe_values) for name in fields]
    for path in selected_paths:
        if path not in default_ranges | custom_ranges:
            raise InputError(f"{path} has no range in this recipe; give one with it: --range {path}=LOW:HIGH")
    space = {path: (default_ranges | custom_ranges)[path] for path in recipe_values if path in custom_ranges or path in (selected_paths or default_ranges)}
    for path, search_range in space.items():
        for bound in (search_range.low, search_range.high):
            validate(apply_values(run, space, {path: int(bound) if search_range.is_int else bound}))
    return space


def is_searchable(path: str, value: Any) -> bool:
    """Whether a field can be searched: a number in a section, that does not change what trials are measured on."""
    if "." not in path or path.startswith("data.num_") or isinstance(value, bool):
        return False
    return isinstance(value, int | float) or path in ("l2i.eta", "l2i.outer_rate")


def make_default_range(run: Run, path: str, value: Value | None) -> SearchRange | None:
    """The range of a field in this recipe; None where it does nothing there or is switched off."""
    if not is_field_used(run, path) or value is None:
        return None
    if path == "method.rampup":
        value = value if isinstance(value, float) else resolve_count(value, run.steps) / run.steps
    if path in RELATIVE_RANGES and value > 0:
        low, high = (round_value(factor * value) for factor in RELATIVE_RANGES[path])
        return SearchRange(low=low, high=high, log=True, recipe_value=value)
    if path in ABSOLUTE_RANGES:
        low, high, log = ABSOLUTE_RANGES[path]
        search_range = SearchRange(low=low, high=high, log=log, recipe_value=value)
        return search_range if search_range.includes_recipe_value else None
    return None


def is_field_used(run: Run, path: str) -> bool:
    """Whether a field decides anything in this run."""
    if path.startswith("method."):
        return run.method.uses_pseudo_labels
    use_conditions = {
        "l2i.rho": run.l2i.update == "normalized",
        "l2i.label_lr": run.l2i.labels == "learnable",
        "l2i.outer_rate": run.l2i.outer_optimizer == "own",
    }
    return use_conditions.get(path, True) and (run.l2i.update != "off" or not path.startswith("l2i."))


def parse_range(recipe_values: dict[str, Any], default_ranges: SearchSpace, text: str) -> tuple[str, SearchRange]:
    """FIELD=LOW:HIGH, or FIELD=LOW:HIGH:SCALE, as a field and its range."""
    name, _, bounds = text.partition("=")
    match = re.fullmatch(r"([^:]+):([^:]+)(?::(log|linear))?", bounds)
    try:
        low, high = (float(match[i]) for i in (1, 2)) if match else (math.nan, math.nan)
    except ValueError:
        low = high = math.nan
    if match is not None and low >= high:
        raise InputError(f"--range {text}: the first value must be below the second")
    if match is None or not -math.inf < low < high < math.inf:
        raise InputError(
            f"--range takes FIELD=LOW:HIGH, as in --range optim.lr=1e-4:1e-2, or FIELD=LOW:HIGH:log or :linear; "
            f"it was given '{text}'"
        )
    path = resolve_field_path(name, recipe_values)
    default_range = default_ranges.get(path)
    log = default_range.log if default_range else low > 0 and high / low >= MIN_LOG_SCALE_RATIO
    log = log if match[3] is None else match[3] == "log"
    if log and low <= 0:
        raise InputError(f"--range {text}: there is no logarithm of {low:g}; start above 0, or search it linearly")
    is_int = isinstance(recipe_values[path], int) and path not in COUNT_FIELDS
    if is_int and not (low.is_integer() and high.is_integer()):
        raise InputError(f"--range {text}: {path} is a whole number; give whole numbers")
    return path, SearchRange(low=low, high=high, log=log, recipe_value=default_range.recipe_value if default_range else recipe_values[path], is_int=is_int)


def resolve_field_path(name: str, recipe_values: dict[str, Any]) -> str:
    """The path of a field that can be searched, written with hyphens or underscores."""
    path = name.replace("-", "_")
    if path not in recipe_values:
        raise make_unknown_error("field to search", name, list(recipe_values), "l2i train RECIPE --help")
    return path


def apply_values(run: Run, space: SearchSpace, drawn: dict[str, Value]) -> Run:
    """The run with values drawn from a space."""
    for path, value in drawn.items():
        run = set_path(run, path, space[path].to_run_value(value))
    return run


def set_path(section: S, path: str, value: Any) -> S:
    """A dataclass with one field, of its own or of those within it, replaced."""
    name, dot, rest = path.partition(".")
    new_value = set_path(getattr(section, name), rest, value) if dot else value
    return dataclasses.replace(section, **{name: new_value})  # type: ignore[type-var]


def round_value(value: float) -> float:
    """To a few digits."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


MAX_STUDY_NAME_LENGTH = 200  # characters of a study's name, which is a folder's as well


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What is searched, how far, and where it is kept."""

    recipe: str
    run: Run
    """The recipe's run with the fields that were changed; a trial has other values from the space."""
    space: SearchSpace
    num_trials: int
    prune: bool
    study_name: str
    folder: Path
    storage_url: str

    def get_trial_dir(self, number: int) -> Path:
        """Where the run of a trial is kept."""
        return self.folder / format_trial_name(number)

    def build_identity(self) -> dict[str, Any]:
        """All that the trials of a study have in common, as JSON has it."""
        common_fields = {path: value for path, value in flatten_fields(self.run) if path not in FIELDS_FREE_ON_RESUME}
        ranges = {f"range of {path}": search_range.describe() for path, search_range in self.space.items()}
        settings = {"recipe": self.recipe, "method": self.run.method.name, **common_fields, **ranges}
        return dict(json.loads(json.dumps(settings)))


def format_trial_name(number: int) -> str:
    """A trial's name, for its folder and its claim."""
    return f"trial-{number:04}"


def plan_sweep(recipe: str, run: Run, options: TuneOptions) -> SweepPlan:
    """The sweep that a recipe and options stand for."""
    if world_size() > 1:
        raise InputError("'l2i tune' trains a trial in one process; start the command itself several times instead")
    if options.trials < 1:
        raise InputError(f"trials={options.trials} must be at least 1")
    validate(run)
    if not run.data.num_validation:
        raise InputError("settings are chosen by validation samples and there are none; set --data.num-validation")
    study_name = f"{recipe.replace('/', '-')}-seed{run.seed}" if options.study is None else options.study
    if not study_name.isprintable() or "/" in study_name or study_name in ("", ".", "..") or len(study_name) > MAX_STUDY_NAME_LENGTH:
        raise InputError(f"study={study_name!r} cannot be the name of a study, and of its folder; give another --study")
    folder = Path(options.out if options.out is not None else f"runs/tune/{study_name}")
    return SweepPlan(
        recipe=recipe,
        run=with_data_root(run),
        space=build_search_space(run, options.fields, options.range),
        num_trials=options.trials,
        prune=options.prune,
        study_name=study_name,
        folder=folder,
        storage_url=f"sqlite:///{folder}/study.db" if options.storage is None else options.storage,
    )
