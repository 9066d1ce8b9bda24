"""Print the lines of a JSON-lines file as a Markdown table, one column per field.

python -m benchmarks.columns FILE FIELD …
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import make_parser
from benchmarks.trials import format_field

from l2i.experiments.formatting import render_markdown


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("columns", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("fields", nargs="+", metavar="FIELD")
    options = parser.parse_args(arguments)
    lines = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines()]
    rows = [[format_field(line.get(name)) for name in options.fields] for line in lines]
    print(render_markdown([options.fields, *rows], code=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
