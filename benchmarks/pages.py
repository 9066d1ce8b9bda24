"""Regenerate the tables and plots of the pages under benchmarks/.

    python -m benchmarks.pages            rewrite every generated block and plot
    python -m benchmarks.pages --check    only list the blocks that are out of date

A generated block stands between `<!-- COMMAND -->` and `<!-- end -->`, where COMMAND is an
`l2i compare … --from …` or a `python -m benchmarks.MODULE …`, run from the root of the repository.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.arguments import make_parser

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^<!-- ((?:l2i|python -m benchmarks)\b[^\n]*) -->\n(.*?)^<!-- end -->$", re.M | re.S
)
PLOT_FLAGS = ("--plot", "--plots", "--analyze-updates")  # their files are not part of a block


class Block(NamedTuple):
    """A generated block of a page."""

    command: str
    text: str


def list_pages() -> list[Path]:
    return sorted((ROOT / "benchmarks").rglob("*.md"))


def find_blocks(page: Path) -> list[Block]:
    return [Block(*match) for match in BLOCK.findall(page.read_text(encoding="utf-8"))]


def run_block(command: str, plots: Path | None = None) -> str:
    """Run a block's command in this process and return what it prints.

    With `plots`, plots are written there instead of where the command says.
    """
    words = shlex.split(command)
    for flag in PLOT_FLAGS:
        if flag in words and plots is not None:
            place = words.index(flag) + 1
            words[place] = str(plots / Path(words[place]).name)
        elif flag in words and words[0] == "l2i":
            words.append("--overwrite")  # the plot that the page shows so far
    if words[0] == "l2i":
        module, arguments = "l2i.cli", words[1:]
    else:
        module, arguments = words[2], words[3:]
    if module == "benchmarks.ablation_cpu":
        module += ".__main__"
    with _capture_stdout() as output, contextlib.chdir(ROOT):
        code = importlib.import_module(module).run_command(arguments)
    if code:
        raise RuntimeError(f"'{command}' ended with exit code {code}")
    text = output.getvalue().decode("utf-8")
    return _select_last_table(text) if "--analyze-updates" in words else text


@contextlib.contextmanager
def _capture_stdout() -> Iterator[io.BytesIO]:
    output = io.BytesIO()
    writer = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(writer), contextlib.redirect_stderr(io.StringIO()):
        yield output
    writer.detach()  # or it would close the buffer


def _select_last_table(text: str) -> str:
    """Return the last table: --analyze-updates prints the comparison before its own."""
    lines = text.splitlines(keepends=True)
    rule = max(number for number, line in enumerate(lines) if line.startswith("|---"))
    return "".join(lines[rule - 1 :])


def regenerate(page: Path, plots: Path | None = None) -> str:
    """Return the text of a page with all blocks regenerated; plots as in `run_block`."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{run_block(match[1], plots)}<!-- end -->"

    return BLOCK.sub(replace, page.read_text(encoding="utf-8"))


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("pages", __doc__)
    parser.add_argument("--check", action="store_true", help="list stale pages, write nothing")
    options = parser.parse_args(arguments)
    os.environ.pop("L2I_DATA", None)  # tables come from stored results alone
    stale = []
    with tempfile.TemporaryDirectory() as folder:
        for page in list_pages():
            text = regenerate(page, Path(folder) if options.check else None)
            if text != page.read_text(encoding="utf-8"):
                stale.append(page.relative_to(ROOT))
                if not options.check:
                    page.write_text(text, encoding="utf-8")
    for page in stale:
        print(f"{'out of date' if options.check else 'updated'}: {page}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
