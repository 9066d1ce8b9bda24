"""Arguments of a command as fields of a dataclass; the only file that imports the command-line library."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

from l2i.errors import InputError
from l2i.launched import index

T = TypeVar("T")
LATER = 5.0  # seconds


def tell(message: object, exit_code: int) -> int:
    """One line on stderr. Of processes that fail alike, the first says so: torchrun then ends the others."""
    if exit_code and index():
        time.sleep(LATER)
    print("l2i:", " ".join(str(message).split()), file=sys.stderr)
    return exit_code


def print_exactly(text: str) -> None:
    """A file's text on stdout, in UTF-8 whatever the locale, as the file would be."""
    buffer = getattr(sys.stdout, "buffer", None)  # which a stream of a notebook does not have
    if buffer is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode())
        buffer.flush()


def never_fail() -> None:
    """Have characters that the locale lacks written as escapes, where Python would stop."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def positional(arguments: list[str], command: str, word: str, what: str, known: list[str]) -> tuple[str, list[str]]:
    """The first argument, a name, and the rest."""
    if arguments and arguments[0] in ("-h", "--help"):
        listed = "".join(f"\n  {name}" for name in known)
        more = "; 'l2i list' shows more" if known else ""
        print(f"usage: l2i {command} {word} …\n\n'l2i {command} {word} --help' shows what can be set{more}.{listed}")
        sys.exit(0)
    if not arguments or arguments[0].startswith("-"):
        example = f", such as '{known[0]}'" if known else ""
        raise InputError(f"'l2i {command}' needs {what}{example}: l2i {command} {word} …")
    return arguments[0], arguments[1:]


def explained(arguments: list[str], cls: type[T], prog: str) -> None:
    """Where help is asked for, show what a command takes, and leave."""
    if any(word in ("-h", "--help") for word in arguments):
        parsed(cls, ["--help"], prog, cls())


def parsed(cls: type[T], arguments: list[str], prog: str, default: T) -> T:
    """`default` with the fields that the arguments override; what does not fit is an InputError."""
    import tyro

    return _in_one_line(lambda: tyro.cli(cls, args=arguments, prog=prog, default=default), prog)


def parsed_first(cls: type[T], arguments: list[str], prog: str, default: T) -> tuple[T, list[str]]:
    """As `parsed`, and the arguments that are none of the fields."""
    import tyro

    return _in_one_line(
        lambda: tyro.cli(cls, args=arguments, prog=prog, default=default, return_unknown_args=True), prog
    )


def flag(name: str) -> object:
    """What an annotation says for a flag that a field cannot be named after, as --from."""
    import tyro

    return tyro.conf.arg(name=name)


def _in_one_line(parse: Callable[[], T], prog: str) -> T:
    """What `parse` finds; what it says before it leaves is an InputError."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as leave:
        if not leave.code:
            raise
        raise InputError(one_line(said.getvalue(), prog)) from None


def one_line(box: str, prog: str) -> str:
    """The command-line library explains itself in a box of several lines; this is what it says."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    inside = [line.strip("│| \n") for line in plain.splitlines() if line.startswith(("│", "|"))]
    rule = next((i for i, line in enumerate(inside) if line.startswith("──")), len(inside))
    words = (" ".join(inside[:rule]) or plain).split()
    near = [word.strip(",") for line in inside[rule:] for word in line.split()[:2] if word.startswith("--")]
    asked = next((word.strip(",") for word in words if word.startswith("--")), "")
    near = get_close_matches(re.sub(r"^--no-(.+)\.", r"--\1.no-", asked), near, n=1) or near  # «no» stands by the field
    hint = f"; perhaps you meant {near[0]}" if near and "nrecognized" in box else ""
    if "nrecognized" in box and words[-1:] in (["True"], ["False"], ["true"], ["false"]) and not asked:
        hint = "; what is on or off takes no value: --data.weak.flip for on, --data.weak.no-flip for off, as an example"
    return f"{' '.join(words)}{hint} ('{prog} --help' shows all)"
