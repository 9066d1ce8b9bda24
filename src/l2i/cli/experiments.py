"""The command `l2i tune`; what is heavy is imported once its words are understood."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from importlib.util import find_spec

from l2i.cli.parsing import parse_known_options
from l2i.errors import InputError
from l2i.experiments.options import TuneOptions


def tune(arguments: list[str]) -> int:
    """Settings of a recipe, searched."""
    from l2i.cli.parsing import parse_run, pop_recipe_name

    recipe_name, remaining = pop_recipe_name(arguments, "tune")
    options, run_arguments = parse_known_options(TuneOptions, remaining, f"l2i tune {recipe_name}", TuneOptions())
    try:
        run = parse_run(recipe_name, run_arguments, "tune")
    except InputError as error:
        raise InputError(f"{error}{suggest_flag(run_arguments)}") from None
    if find_spec("optuna") is None:
        raise InputError("'l2i tune' needs Optuna, which is not installed: pip install 'l2i[tune]'")
    from l2i.experiments.tuning.space import plan_sweep
    from l2i.experiments.tuning.summary import render_dry_run
    from l2i.experiments.tuning.sweep import run_sweep

    plan = plan_sweep(recipe_name, run, options)
    print(render_dry_run(plan) if options.dry_run else run_sweep(plan))
    return 0


def suggest_flag(run_arguments: list[str]) -> str:
    """A hint where a word is almost one of the command's own options, which a run does not know of."""
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(TuneOptions)]
    suggestions = [flag for word in run_arguments if word.startswith("--") for flag in get_close_matches(word, flags, 1, 0.8)]
    return f"; perhaps you meant {suggestions[0]}" if suggestions else ""
