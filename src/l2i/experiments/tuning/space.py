"""The search space of a sweep, and the plan of one, checked before anything is read or written."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2i.config import Run
from l2i.config.serialization import set_path
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
    **dict.fromkeys(("l2i.paper.eta", "l2i.paper.supervised_eta"), (0.01, 10)),
    "l2i.paper.label_lr": (0.1, 10),
}
"""Bounds as multiples of the recipe's value, on a log scale; for positive values only."""

ABSOLUTE_RANGES: dict[str, tuple[float, float, bool]] = {
    "method.rampup": (0.05, 0.8, False),  # fractions of the run
    "method.threshold": (0.5, 0.99, False),
    "method.temperature": (0.1, 1.0, False),
    "method.alpha": (0.1, 2.0, True),
    "l2i.rho": (0.01, 1.0, True),
}
"""Bounds, and whether the scale is logarithmic; used if the recipe's value lies between them."""

SIGNIFICANT_DIGITS = 4  # of a drawn value: precise enough, and short to type
MIN_LOG_SCALE_RATIO = 10  # of high to low, from which on a range is searched on a log scale
MAX_STUDY_NAME_LENGTH = 200  # the name of a study also names its folder


@dataclass(frozen=True, kw_only=True)
class SearchRange:
    """The values between which a field is drawn."""

    low: float
    high: float
    log: bool
    recipe_value: Value | None
    """The recipe's value, for a ramp-up as a fraction of the run; None if the recipe has none."""
    is_int: bool = False

    @property
    def includes_recipe_value(self) -> bool:
        """Whether the first trial can have the recipe's value."""
        return self.recipe_value is not None and self.low <= self.recipe_value <= self.high

    def to_run_value(self, drawn: Value) -> Value:
        """Return the value that a run has for a drawn one."""
        return drawn if self.is_int or drawn == self.recipe_value else _round_value(drawn)

    def describe(self) -> tuple[float, float, str]:
        return self.low, self.high, "log" if self.log else "linear"


SearchSpace = dict[str, SearchRange]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What is searched, with how many trials, and where the results go."""

    recipe: str
    run: Run
    """The recipe's run with the user's changes; a trial replaces the values of the space."""
    space: SearchSpace
    num_trials: int
    prune: bool
    study_name: str
    folder: Path
    storage_url: str

    def get_trial_dir(self, number: int) -> Path:
        return self.folder / format_trial_name(number)

    def build_identity(self) -> dict[str, Any]:
        """Return everything that the trials of a study have in common, as JSON values."""
        names = {"recipe": self.recipe, "method": self.run.method.name}
        fields = {p: v for p, v in flatten_fields(self.run) if p not in FIELDS_FREE_ON_RESUME}
        ranges = {f"range of {path}": bounds.describe() for path, bounds in self.space.items()}
        return dict(json.loads(json.dumps({**names, **fields, **ranges})))


def format_trial_name(number: int) -> str:
    """Return the name of a trial's folder and claim."""
    return f"trial-{number:04}"


def plan_sweep(recipe: str, run: Run, options: TuneOptions) -> SweepPlan:
    """Check a recipe and options, and return the sweep that they describe."""
    if world_size() > 1:
        raise InputError(
            "'l2i tune' trains each trial in one process; "
            "start the command several times instead of using torchrun"
        )
    if options.trials < 1:
        raise InputError(f"trials={options.trials} must be at least 1")
    validate(run)
    if not run.data.num_validation:
        raise make_no_validation_error()
    default_name = f"{recipe.replace('/', '-')}-seed{run.seed}"
    study_name = default_name if options.study is None else options.study
    is_file_name = study_name.isprintable() and "/" not in study_name
    if not is_file_name or study_name in ("", ".", "..") or len(study_name) > MAX_STUDY_NAME_LENGTH:
        raise InputError(
            f"study={study_name!r} is not a valid folder name; choose a different --study"
        )
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


def make_no_validation_error() -> InputError:
    """Return the error for a run without validation samples."""
    return InputError(
        "settings are selected on validation samples, but there are none; set --data.num-validation"
    )


def build_search_space(
    run: Run, fields: tuple[str, ...] = (), ranges: tuple[str, ...] = ()
) -> SearchSpace:
    """Return the ranges of a recipe's fields.

    These are the default ranges, of `fields` only if any are named, and those of `ranges`
    (FIELD=LOW:HIGH), which may be of further fields.
    """
    recipe_values = {path: v for path, v in flatten_fields(run) if _is_searchable(path, v)}
    candidates = {path: _make_default_range(run, path, v) for path, v in recipe_values.items()}
    default_ranges = {path: r for path, r in candidates.items() if r is not None}
    custom_ranges = dict(_parse_range(recipe_values, default_ranges, text) for text in ranges)
    all_ranges = default_ranges | custom_ranges
    selected_paths = [_resolve_field_path(name, recipe_values) for name in fields]
    for path in selected_paths:
        if path not in all_ranges:
            raise InputError(
                f"{path} has no default range in this recipe; add --range {path}=LOW:HIGH"
            )
    searched = {*custom_ranges, *(selected_paths or default_ranges)}
    space = {path: all_ranges[path] for path in recipe_values if path in searched}
    for path, search_range in space.items():
        for bound in (search_range.low, search_range.high):
            validate(apply_values(run, space, {path: int(bound) if search_range.is_int else bound}))
    return space


def _is_searchable(path: str, value: Any) -> bool:
    """Check for a numeric field of a section that does not change what trials are evaluated on."""
    if "." not in path or path.startswith("data.num_") or isinstance(value, bool):
        return False
    is_rate = path in ("l2i.paper.eta", "l2i.paper.supervised_eta")  # may be None
    return isinstance(value, int | float) or is_rate


def _make_default_range(run: Run, path: str, value: Value | None) -> SearchRange | None:
    """Return the range of a field in this recipe; None if it has no effect or is switched off."""
    if not _is_field_used(run, path) or value is None:
        return None
    if path == "method.rampup":
        value = value if isinstance(value, float) else resolve_count(value, run.steps) / run.steps
    if path in RELATIVE_RANGES and value > 0:
        low, high = (_round_value(factor * value) for factor in RELATIVE_RANGES[path])
        return SearchRange(low=low, high=high, log=True, recipe_value=value)
    if path in ABSOLUTE_RANGES:
        low, high, log = ABSOLUTE_RANGES[path]
        search_range = SearchRange(low=low, high=high, log=log, recipe_value=value)
        return search_range if search_range.includes_recipe_value else None
    return None


def _is_field_used(run: Run, path: str) -> bool:
    if path.startswith("method."):
        return run.method.uses_pseudo_labels
    if path == "l2i.rho":
        return run.l2i.update == "normalized"
    if path == "l2i.paper.label_lr" and run.l2i.labels != "learnable":
        return False
    if path == "l2i.paper.eta" and run.l2i.paper.inner_supervised:
        return False  # then supervised_eta is the look-ahead's
    return run.l2i.update != "off" or not path.startswith("l2i.")


def _parse_range(
    recipe_values: dict[str, Any], default_ranges: SearchSpace, text: str
) -> tuple[str, SearchRange]:
    """Parse FIELD=LOW:HIGH or FIELD=LOW:HIGH:SCALE."""
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
            "--range takes FIELD=LOW:HIGH, as in --range optim.lr=1e-4:1e-2, "
            f"or FIELD=LOW:HIGH:log or :linear, not '{text}'"
        )
    path = _resolve_field_path(name, recipe_values)
    recipe_value, log = recipe_values[path], low > 0 and high / low >= MIN_LOG_SCALE_RATIO
    if path in default_ranges:
        recipe_value, log = default_ranges[path].recipe_value, default_ranges[path].log
    log = log if match[3] is None else match[3] == "log"
    if log and low <= 0:
        raise InputError(
            f"--range {text}: a log scale cannot start at {low:g}; start above 0, or append :linear"
        )
    is_int = isinstance(recipe_values[path], int) and path not in COUNT_FIELDS
    if is_int and not (low.is_integer() and high.is_integer()):
        raise InputError(f"--range {text}: {path} is an integer; use integers")
    return path, SearchRange(low=low, high=high, log=log, recipe_value=recipe_value, is_int=is_int)


def _resolve_field_path(name: str, recipe_values: dict[str, Any]) -> str:
    """Return the path of a searchable field, written with hyphens or underscores."""
    path = name.replace("-", "_")
    if path not in recipe_values:
        raise make_unknown_error(
            "field to search", name, list(recipe_values), "l2i train RECIPE --help"
        )
    return path


def apply_values(run: Run, space: SearchSpace, drawn: dict[str, Value]) -> Run:
    """Return the run with values drawn from a space."""
    for path, value in drawn.items():
        run = set_path(run, path, space[path].to_run_value(value))
    return run


def _round_value(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
