"""The command `l2i tune`; what is heavy is imported once its words are understood."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from importlib.util import find_spec

from l2i.arguments import parsed_first
from l2i.errors import InputError
from l2i.options import TuneOptions


def tune(arguments: list[str]) -> int:
    """Settings of a recipe, searched."""
    from l2i.recipes.chosen import changed, named

    name, rest = named(arguments, "tune")
    options, others = parsed_first(TuneOptions, rest, f"l2i tune {name}", TuneOptions())
    try:
        run = changed(name, others, "tune")
    except InputError as error:
        raise InputError(f"{error}{nearest(others)}") from None
    if find_spec("optuna") is None:
        raise InputError("'l2i tune' needs Optuna, which is not installed: pip install 'l2i[tune]'")
    from l2i.tune.plan import planned
    from l2i.tune.printed import dry
    from l2i.tune.sweep import sweep

    plan = planned(name, run, options)
    print(dry(plan) if options.dry_run else sweep(plan))
    return 0


def nearest(others: list[str]) -> str:
    """A hint where a word is almost one of the command's own options, which a run does not know of."""
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(TuneOptions)]
    near = [flag for word in others if word.startswith("--") for flag in get_close_matches(word, flags, 1, 0.8)]
    return f"; perhaps you meant {near[0]}" if near else ""
