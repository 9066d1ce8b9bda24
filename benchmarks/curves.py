"""Print columns of runs' evaluations at equally spaced steps as a Markdown table.

python -m benchmarks.curves LABEL=FILE … [--columns COLUMN …] [--every STEPS]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import make_parser

from l2i.experiments.formatting import render_markdown
from l2i.training.metrics import parse_metrics


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("curves", __doc__)
    parser.add_argument("runs", nargs="+", metavar="LABEL=FILE")
    parser.add_argument("--columns", nargs="+", default=["test"], metavar="COLUMN")
    parser.add_argument("--every", type=int, default=1, metavar="STEPS")
    options = parser.parse_args(arguments)
    runs = {}
    for label, _, path in (run.partition("=") for run in options.runs):
        rows = parse_metrics(Path(path).read_bytes())
        runs[label] = {int(row["step"] or 0): row for row in rows}
    steps = sorted({step for rows in runs.values() for step in rows})
    steps = [step for step in steps if step % options.every == 0]
    table = [["at step", *(f"{step:,}" for step in steps)]]
    for column in options.columns:
        for label, by_step in runs.items():
            values = [by_step.get(step, {}).get(column) for step in steps]
            if any(value is not None for value in values):
                cells = ["" if value is None else f"{value:.3g}" for value in values]
                table.append([f"{column}, {label}", *cells])
    print(render_markdown(table, code=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
