"""Arguments of a command as fields of a dataclass; the only file that imports the command-line library.

MERGED:
The recipe that a command is given, and its run with the fields that the other words change.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from l2i import recipes
from l2i.errors import InputError
from l2i.torchrun import rank

if TYPE_CHECKING:
    from l2i.config import Run

T = TypeVar("T")
PEER_ERROR_DELAY = 5.0  # seconds


def print_stderr(message: object, exit_code: int) -> int:
    """One line on stderr. Of processes that fail alike, the first says so: torchrun then ends the others."""
    if exit_code and rank():
        time.sleep(PEER_ERROR_DELAY)
    print("l2i:", " ".join(str(message).split()), file=sys.stderr)
    return exit_code


def print_utf8(text: str) -> None:
    """A file's text on stdout, in UTF-8 whatever the locale, as the file would be."""
    buffer = getattr(sys.stdout, "buffer", None)  # which a stream of a notebook does not have
    if buffer is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode())
        buffer.flush()


def escape_unencodable() -> None:
    """Have characters that the locale lacks written as escapes, where Python would stop."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def pop_positional(arguments: list[str], command: str, metavar: str, description: str, choices: list[str]) -> tuple[str, list[str]]:
    """The first argument, a name, and the rest."""
    if arguments and arguments[0] in ("-h", "--help"):
        choice_lines = "".join(f"\n  {name}" for name in choices)
        list_hint = "; 'l2i list' shows more" if choices else ""
        print(f"usage: l2i {command} {metavar} …\n\n'l2i {command} {metavar} --help' shows what can be set{list_hint}.{choice_lines}")
        sys.exit(0)
    if not arguments or arguments[0].startswith("-"):
        example = f", such as '{choices[0]}'" if choices else ""
        raise InputError(f"'l2i {command}' needs {description}{example}: l2i {command} {metavar} …")
    return arguments[0], arguments[1:]


def handle_help_flag(arguments: list[str], cls: type[T], prog: str) -> None:
    """Where help is asked for, show what a command takes, and leave."""
    if any(word in ("-h", "--help") for word in arguments):
        parse_options(cls, ["--help"], prog, cls())


def parse_options(cls: type[T], arguments: list[str], prog: str, default: T) -> T:
    """`default` with the fields that the arguments override; what does not fit is an InputError."""
    import tyro

    return _parse_or_raise(lambda: tyro.cli(cls, args=arguments, prog=prog, default=default), prog)


def parse_known_options(cls: type[T], arguments: list[str], prog: str, default: T) -> tuple[T, list[str]]:
    """As `parsed`, and the arguments that are none of the fields."""
    import tyro

    return _parse_or_raise(
        lambda: tyro.cli(cls, args=arguments, prog=prog, default=default, return_unknown_args=True), prog
    )


def rename_flag(name: str) -> object:
    """What an annotation says for a flag that a field cannot be named after, as --load-results."""
    import tyro

    return tyro.conf.arg(name=name)


def _parse_or_raise(parse: Callable[[], T], prog: str) -> T:
    """What `parse` finds; what it says before it leaves is an InputError."""
    captured_stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured_stderr):
            return parse()
    except SystemExit as exit_error:
        if not exit_error.code:
            raise
        raise InputError(condense_parser_error(captured_stderr.getvalue(), prog)) from None


def condense_parser_error(message: str, prog: str) -> str:
    """The command-line library explains itself in a box of several lines; this is what it says."""
    uncolored = re.sub(r"\x1b\[[0-9;]*m", "", message)
    box_lines = [line.strip("│| \n") for line in uncolored.splitlines() if line.startswith(("│", "|"))]
    rule_index = next((i for i, line in enumerate(box_lines) if line.startswith("──")), len(box_lines))
    words = (" ".join(box_lines[:rule_index]) or uncolored).split()
    suggestions = [word.strip(",") for line in box_lines[rule_index:] for word in line.split()[:2] if word.startswith("--")]
    unknown_flag = next((word.strip(",") for word in words if word.startswith("--")), "")
    suggestions = get_close_matches(re.sub(r"^--no-(.+)\.", r"--\1.no-", unknown_flag), suggestions, n=1) or suggestions  # «no» stands by the field
    hint = f"; perhaps you meant {suggestions[0]}" if suggestions and "nrecognized" in message else ""
    if "nrecognized" in message and words[-1:] in (["True"], ["False"], ["true"], ["false"]) and not unknown_flag:
        hint = "; what is on or off takes no value: --data.weak.flip for on, --data.weak.no-flip for off, as an example"
    return f"{' '.join(words)}{hint} ('{prog} --help' shows all)"


def pop_recipe_name(arguments: list[str], command: str) -> tuple[str, list[str]]:
    """A recipe's name, and the rest of the arguments."""
    examples = [cell for name in recipes.TABLES for cell in recipes.get_table(name).default_cells]
    return pop_positional(arguments, command, "RECIPE", "a recipe", ["digits", *examples])


def parse_run(name: str, words: list[str], command: str) -> Run:
    """The run of a recipe with the fields that words override."""
    default = recipes.get(name)
    if any(word.partition("=")[0] in ("--method", "--method.name") for word in words):
        raise InputError(
            "a method comes with its recipe, as in 'l2i train digits/mixmatch-l2i-40' ('l2i list' shows all)"
        )
    return parse_options(type(default), words, f"l2i {command} {name}", default)
