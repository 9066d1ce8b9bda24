"""Print the lines of a JSON-lines file as a Markdown table, one column per field.

python -m benchmarks.columns FILE FIELD …
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trials import format_field

from l2i.experiments.formatting import render_markdown


def run_command(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.columns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("fields", nargs="+", metavar="FIELD")
    options = parser.parse_args(arguments)
    lines = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines()]
    rows = [[format_field(line.get(name)) for name in options.fields] for line in lines]
    print(render_markdown([options.fields, *rows], code=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
