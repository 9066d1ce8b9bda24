"""Print the final metric of every run in folders of results, seed by seed, as Markdown.

    python -m benchmarks.seeds FOLDER/TABLE … [--cells CELL …] [--means | --no-means]

Δ is the paired difference of a cell with L2I from its baseline. A run that was stopped before its
result was written counts by its evaluations.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.arguments import make_parser

from l2i import recipes
from l2i.experiments.formatting import format_values, render_markdown
from l2i.training.evaluation import NUM_FINAL_EVALS, compute_final_metric, extract_curve
from l2i.training.metrics import parse_metrics

RUN_FILE = re.compile(r"(.+)-seed(\d+)\.jsonl?")


def compute_metric(path: Path) -> float:
    """Return the final metric of a run that was stopped: the median of its last 20 evaluations.

    With early stopping it is that of the best one.
    """
    name = RUN_FILE.fullmatch(path.name)
    assert name is not None
    run = recipes.get(f"{path.parent.name}/{name[1]}")
    rows = parse_metrics(path.read_bytes())
    steps = int(rows[-1]["step"] or 0)
    test, validation = (extract_curve(rows, part) for part in ("test", "validation"))
    if run.report == "median":
        return median(test[step] for step in sorted(test)[-NUM_FINAL_EVALS:])
    return compute_final_metric(test, validation, steps, run.report)


def read_metrics(folder: Path) -> dict[str, dict[int, float]]:
    """Return the metrics of a folder by cell and seed, in the order of the recipes."""
    metrics: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("*-seed*.jsonl")):
        if name := RUN_FILE.fullmatch(path.name):
            result = path.with_suffix(".json")
            stored = json.loads(result.read_text())["metric"] if result.exists() else None
            value = compute_metric(path) if stored is None else float(stored)
            metrics.setdefault(name[1], {})[int(name[2])] = value
    order = [cell.partition("/")[2] for cell in recipes.get_table(folder.name).cells]
    return {cell: metrics[cell] for cell in sorted(metrics, key=order.index)}


def read_metric_name(folder: Path) -> str:
    path = next(iter(sorted(folder.glob("*-seed*.json"))))
    return str(json.loads(path.read_text())["metric_name"])


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("seeds", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER/TABLE")
    parser.add_argument("--cells", nargs="+", default=[], metavar="CELL")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--means", action="store_true", help="leave single seeds out")
    choice.add_argument("--no-means", action="store_true", help="leave means out")
    options = parser.parse_args(arguments)
    metrics_by_folder = {folder: read_metrics(folder) for folder in options.folders}
    seeds = sorted(
        {s for m in metrics_by_folder.values() for by_seed in m.values() for s in by_seed}
    )
    shown_seeds = [] if options.means else seeds
    gains = [f"Δ seed {seed}" for seed in shown_seeds]
    rows = [["cell", *(f"seed {seed}" for seed in shown_seeds), "mean", *gains, "Δ", "seeds"]]
    for folder, metrics in metrics_by_folder.items():
        table = recipes.get_table(folder.name)
        decimals = 3 if "RMSE" in read_metric_name(folder) else 2
        for cell, by_seed in metrics.items():
            if options.cells and cell not in options.cells:
                continue
            baseline = (table.find_baseline(f"{table.name}/{cell}") or "").partition("/")[2]
            reference = metrics.get(baseline, {})
            paired = {s: by_seed[s] - reference[s] for s in by_seed if s in reference}
            rows.append(
                [
                    f"{table.name}/{cell}" if len(metrics_by_folder) > 1 else cell,
                    *(f"{by_seed[s]:.{decimals}f}" if s in by_seed else "" for s in shown_seeds),
                    format_values(by_seed.values(), decimals),
                    *(f"{paired[s]:+.{decimals}f}" if s in paired else "" for s in shown_seeds),
                    format_values(paired.values(), decimals, "+") if paired else "",
                    str(len(by_seed)),
                ]
            )
    hidden = ("mean", "Δ", "seeds") if options.no_means else ()
    kept = [
        k for k, name in enumerate(rows[0]) if any(r[k] for r in rows[1:]) and name not in hidden
    ]
    rows = [[row[k] for k in kept] for row in rows]
    print(render_markdown(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
