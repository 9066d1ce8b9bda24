"""Print text on a terminal as it is: names in data and files may hold markup or control codes."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# all control codes but line feed and tab, marks that change the direction of text, and bytes of
# file names that are not UTF-8
CONTROL_CODES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_controls(text: str) -> str:
    """Replace control codes by their escapes in Python: a terminal shows them, and obeys none."""
    return CONTROL_CODES.sub(lambda match: repr(match[0])[1:-1], text)


def to_one_line(text: str) -> str:
    """Put a message on one line, with control codes escaped, whatever names and cells it quotes."""
    return escape_controls(" ".join(text.split()))


def make_console(*, stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """Return a console that prints text as it is: without markup, emoji codes and highlighting."""
    from rich.console import Console

    return Console(
        stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False, highlight=False
    )


def print_lines(*lines: object, stderr: bool = False) -> None:
    """Print lines on stdout or stderr, with control codes escaped."""
    for line in lines:
        print(escape_controls(str(line)), file=sys.stderr if stderr else sys.stdout, flush=stderr)


def print_utf8(text: str) -> None:
    """Write text to stdout in UTF-8, whatever the locale, as it would be in a file.

    On a terminal, control codes are escaped.
    """
    if sys.stdout.isatty():
        text = escape_controls(text)
    buffer = getattr(sys.stdout, "buffer", None)  # a notebook's stream has none
    if buffer is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode())
        buffer.flush()
