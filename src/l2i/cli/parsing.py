"""Arguments of a command as fields of a dataclass."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from l2i import recipes
from l2i.errors import InputError
from l2i.files.terminal import to_one_line
from l2i.torchrun import rank

if TYPE_CHECKING:
    from l2i.config import Run

T = TypeVar("T")
CommandFunction = Callable[[list[str]], int]  # arguments -> exit code
HELP_FLAGS = ("-h", "--help")
PEER_ERROR_DELAY = 5.0  # seconds


class Positional(NamedTuple):
    """A positional argument of a command."""

    metavar: str
    description: str
    choices: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None


def command(
    options_type: type[Any], *positionals: Positional
) -> Callable[[Callable[..., None]], CommandFunction]:
    """Turn a function of positional arguments and options into a command, named after it."""

    def decorate(run: Callable[..., None]) -> CommandFunction:
        @wraps(run)
        def parse_and_run(arguments: list[str]) -> int:
            prog, values = f"l2i {run.__name__}", []
            if not any(positional.choices for positional in positionals):
                usage = " ".join([prog, *(positional.metavar for positional in positionals)])
                handle_help_flag(arguments, options_type, usage)
            for positional in positionals:
                value, arguments = pop_positional(arguments, prog, positional)
                values.append(value)
                prog += f" {value}"
            run(*values, parse_options(options_type, arguments, prog, options_type()))
            return 0

        return parse_and_run

    return decorate


def pop_positional(arguments: list[str], prog: str, expected: Positional) -> tuple[str, list[str]]:
    """Split off the first argument, a name."""
    metavar, description, choices, check = expected
    if arguments and arguments[0] in HELP_FLAGS:
        list_hint = "; 'l2i list' lists all names" if choices else ""
        print(f"usage: {prog} {metavar} …\n")
        print(f"'{prog} {metavar} --help' lists all options{list_hint}.")
        print("".join(f"  {name}\n" for name in choices), end="")
        sys.exit(0)
    if not arguments or arguments[0].startswith("-"):
        example = f", such as '{choices[0]}'" if choices else ""
        raise InputError(f"'{prog}' needs {description}{example}: {prog} {metavar} …")
    if check is not None:
        check(arguments[0])
    return arguments[0], arguments[1:]


def pop_recipe_name(arguments: list[str], command: str) -> tuple[str, list[str]]:
    """Split off the name of a recipe."""
    examples = [cell for name in recipes.TABLES for cell in recipes.get_table(name).default_cells]
    recipe = Positional("RECIPE", "a recipe", ("digits", *examples))
    return pop_positional(arguments, f"l2i {command}", recipe)


def handle_help_flag(arguments: list[str], cls: type[T], prog: str) -> None:
    """Print a command's options and exit if the arguments ask for help."""
    if any(word in HELP_FLAGS for word in arguments):
        parse_options(cls, ["--help"], prog, cls())


def parse_run(name: str, words: list[str], command: str) -> Run:
    """Return the run of a recipe with the fields that the arguments override."""
    default = recipes.get(name)
    if any(word.partition("=")[0] in ("--method", "--method.name") for word in words):
        raise InputError(
            "the method is part of the recipe's name, as in 'l2i train digits/mixmatch-l2i-40' "
            "('l2i list' shows all)"
        )
    return parse_options(type(default), words, f"l2i {command} {name}", default)


def parse_options(cls: type[T], arguments: list[str], prog: str, default: T) -> T:
    """Return `default` with the fields that the arguments override, or raise InputError."""
    options: T = _call_tyro(cls, args=arguments, prog=prog, default=default)
    return options


def parse_known_options(cls: type[T], arguments: list[str], prog: str) -> tuple[T, list[str]]:
    """Return the options in the arguments, and the arguments that match no field."""
    options: T
    options, unknown = _call_tyro(cls, args=arguments, prog=prog, return_unknown_args=True)
    return options, unknown


def _call_tyro(cls: type[T], *, prog: str, **settings: Any) -> Any:
    import tyro

    captured_stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured_stderr):
            return tyro.cli(cls, prog=prog, **settings)
    except SystemExit as exit_error:
        if not exit_error.code:
            raise
        raise InputError(_condense_parser_error(captured_stderr.getvalue(), prog)) from None


def _condense_parser_error(message: str, prog: str) -> str:
    """Reduce tyro's boxed explanation to one line, with the most similar flag."""
    uncolored = re.sub(r"\x1b\[[0-9;]*m", "", message)
    lines = [line.strip("│| \n") for line in uncolored.splitlines() if line.startswith(("│", "|"))]
    rule_index = next((i for i, line in enumerate(lines) if line.startswith("──")), len(lines))
    words = (" ".join(lines[:rule_index]) or uncolored).split()
    hint = ""
    if "nrecognized" in message:
        unknown_flag = next((word.strip(",") for word in words if word.startswith("--")), "")
        candidates = [word.strip(",") for line in lines[rule_index:] for word in line.split()[:2]]
        suggestions = [word for word in candidates if word.startswith("--")]
        # "no-" precedes the field, not its section
        similar_flag = re.sub(r"^--no-(.+)\.", r"--\1.no-", unknown_flag)
        suggestions = get_close_matches(similar_flag, suggestions, n=1) or suggestions
        hint = f"; perhaps you meant {suggestions[0]}" if suggestions else ""
        if not unknown_flag and words[-1:] in (["True"], ["False"], ["true"], ["false"]):
            hint = (
                "; boolean flags take no value: use --data.weak.flip or --data.weak.no-flip, "
                "for example"
            )
        if unknown_flag:
            words = ["unknown", "option", unknown_flag]
    return f"{' '.join(words)}{hint} ('{prog} --help' shows all)"


def suggest_flag(options_type: type[Any], run_arguments: list[str]) -> str:
    """Return a hint if an argument of a run is almost one of the command's own options."""
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(options_type)]
    words = [word for word in run_arguments if word.startswith("--")]
    suggestions = [flag for word in words for flag in get_close_matches(word, flags, 1, 0.8)]
    return f"; perhaps you meant {suggestions[0]}" if suggestions else ""


def print_stderr(message: object, exit_code: int = 0) -> int:
    """Print one line on stderr and return the exit code.

    If all processes of torchrun fail alike, rank 0 prints first, and torchrun ends the others.
    """
    if exit_code and rank():
        time.sleep(PEER_ERROR_DELAY)
    print("l2i:", to_one_line(str(message)), file=sys.stderr)
    return exit_code
